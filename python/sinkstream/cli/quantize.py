"""`sinkstream quantize`: write a GGUF file with fewer bits, from a GGUF file or a folder."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.filesize import decimal

from sinkstream.cli import common_options
from sinkstream.cli.terminal import printable, progress_bar
from sinkstream.export.quantized_mixes import MIXES
from sinkstream.export.write_quantized import write_quantized
from sinkstream.request.checks import as_choice


@common_options.takes_bundles
def quantize(
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN",
            help="A 16-bit or 32-bit GGUF file or Hugging Face folder, or the name of one.",
        ),
    ],
    target: Annotated[str, typer.Argument(metavar="OUT", help="The GGUF file to write.")],
    mix: Annotated[
        str,
        typer.Option("--type", metavar="TYPE", help=f"The mix of block types: {', '.join(MIXES)}."),
    ] = "Q4_K_M",
    force: Annotated[bool, typer.Option("--force", help="Replace OUT if it exists.")] = False,
    threads: common_options.Threads = None,
    download: common_options.Download = False,
) -> int:
    """Quantize a model to a GGUF file, as llama.cpp's quantizer does."""
    mix = as_choice("quantize", "type", mix.upper(), list(MIXES))
    with progress_bar("Quantizing", in_bytes=True, with_time=True) as show:
        written = write_quantized(
            source,
            target,
            mix,
            replaces=force,
            download=download,
            threads=threads,
            progress=show,
        )
    sizes = f"{decimal(written.bytes_before)} to {decimal(written.bytes)}"
    sys.stdout.write(f"{printable(str(written.path))}: {mix}, {sizes}\n")
    return 0
