"""A progress bar on standard error, for any function that takes `progress=`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sinkstream.cli.interrupts import raising
from sinkstream.cli.terminal import is_terminal

# The speed is averaged over the last two minutes, because the first tokens of a text are fastest.
_AVERAGE_S = 120.0


@contextmanager
def progress_bar(
    name: str, *, in_bytes: bool = False, with_time: bool = False, note: str = ""
) -> Iterator[Callable[..., None]]:
    """Show a bar until the end of the block.

    Args:
        name: Shown before the bar.
        in_bytes: Whether the bar counts bytes.
        with_time: Whether to show the elapsed and the remaining time.
        note: Shown after the bar: a format string for the arguments after (done, total).

    Yields:
        A function of (done, total, …) that moves the bar. It does nothing if standard error is
        not a terminal.
    """
    if not is_terminal(sys.stderr):
        yield lambda *_: None
        return
    with raising(False):
        # Slow to import, so only if a bar is shown.
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            ProgressColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

    columns: list[ProgressColumn] = [
        # Markup would read rich's table of emoji, which takes half a megabyte.
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn() if in_bytes else MofNCompleteColumn(),
    ]
    if with_time:
        columns += [TimeElapsedColumn(), TimeRemainingColumn()]
    columns.append(TextColumn("{task.fields[note]}", markup=False))
    with Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        speed_estimate_period=_AVERAGE_S,
    ) as progress:
        task = progress.add_task(name, total=None, note="")
        has_begun = False

        def show(done: int, total: int, *found: object) -> None:
            nonlocal has_begun
            if not has_begun:
                # What a resumed run had done before does not count towards its speed.
                has_begun = True
                progress.reset(task, total=total, completed=done)
            progress.update(task, total=total, completed=done, note=note.format(*found))

        yield show
