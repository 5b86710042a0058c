"""`sinkstream pack`: pack a model's weights now, so that its first load takes a second."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.filesize import decimal

from sinkstream.cli import common_options
from sinkstream.cli.terminal import printable, progress_bar
from sinkstream.loading.pack import pack as pack_model


@common_options.takes_bundles
def pack(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A GGUF file, a Hugging Face folder, or a name that `sinkstream models` lists.",
        ),
    ] = None,
    quantize: common_options.Quantize = None,
    threads: common_options.Threads = None,
    download: common_options.Download = False,
) -> int:
    """Pack a model's weights for the loads to come, however large they are."""
    with (
        progress_bar("Packing", in_bytes=True) as read,
        progress_bar("Writing", in_bytes=True) as written,
    ):
        path, size = pack_model(
            model,
            quantize=quantize,
            threads=threads,
            download=download,
            read=read,
            written=written,
        )
    sys.stdout.write(f"{printable(str(path))}: {decimal(size)}\n")
    return 0
