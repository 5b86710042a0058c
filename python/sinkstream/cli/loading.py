"""Loads the model of a command, with a progress bar on a terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import sinkstream
from sinkstream.cli.options import Loading
from sinkstream.cli.progress import progress_bar


def load_model(loading: Loading, *, max_sequences: int = 1, **others: Any) -> sinkstream.Model:
    """Return the loaded model, by default for one stream at a time.

    Args:
        loading: The loading options of the command line.
        max_sequences: As for `sinkstream.load`.
        **others: Further options of `sinkstream.load`.
    """
    options = asdict(loading)
    path = options.pop("model")
    with progress_bar("Loading", in_bytes=True) as show:
        return sinkstream.load(
            path, max_sequences=max_sequences, progress=show, **options, **others
        )
