"""Loads the model of a command, with a progress bar where somebody can see it."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

import sinkstream


def load_model(path: str | None, *, max_sequences: int = 1, **options: Any) -> sinkstream.Model:
    """Return the model, for one stream at a time where nothing else is said.

    Args:
        path: As for `sinkstream.load`.
        max_sequences: As for `sinkstream.load`.
        **options: As for `sinkstream.load`.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        return sinkstream.load(path, max_sequences=max_sequences, **options)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("Loading", total=None)
        return sinkstream.load(
            path,
            max_sequences=max_sequences,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
            **options,
        )
