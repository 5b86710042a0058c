"""Loads the model of a command, with a progress bar on a terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sinkstream.cli.interrupts import raising
from sinkstream.cli.options import Loading
from sinkstream.cli.progress import progress_bar
from sinkstream.model import Model


def import_loader() -> None:
    """Import what loading needs. During this, Ctrl-C ends the process at once."""
    with raising(False):
        import sinkstream.loading.load  # noqa: F401


def load_model(loading: Loading, *, max_sequences: int = 1, **others: Any) -> Model:
    """Return the loaded model, by default for one stream at a time.

    Args:
        loading: The loading options of the command line.
        max_sequences: As for `sinkstream.load`.
        **others: Further options of `sinkstream.load`.
    """
    import_loader()
    from sinkstream.loading.load import load

    options = asdict(loading)
    path = options.pop("model")
    with progress_bar("Loading", in_bytes=True) as show:
        return load(path, max_sequences=max_sequences, progress=show, **options, **others)
