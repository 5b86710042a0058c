"""Loads the model of a command, with a progress bar where somebody can see it."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

import sinkstream


def load_model(path: str | None, **options: Any) -> sinkstream.Model:
    """Return the model for one stream at a time.

    Args:
        path: As for `sinkstream.load`.
        **options: As for `sinkstream.load`.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        return sinkstream.load(path, max_sequences=1, **options)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("Loading", total=None)
        return sinkstream.load(
            path,
            max_sequences=1,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
            **options,
        )
