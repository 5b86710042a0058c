"""A progress bar on standard error, for anything that takes `progress=`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sinkstream.cli.terminal import is_terminal

# The speed is averaged over the last minutes: the first tokens of a text are faster than the rest.
_AVERAGE_S = 120.0


@contextmanager
def progress_bar(
    name: str, *, in_bytes: bool = False, with_time: bool = False, note: str = ""
) -> Iterator[Callable[..., None]]:
    """Show a bar until the end of the block, and then remove it.

    Args:
        name: Stands before the bar.
        in_bytes: What is counted are bytes.
        with_time: Show the time that has passed and the time left.
        note: Stands after the bar; a format for the arguments that follow (done, total).

    Yields:
        A function of (done, total, …) that moves the bar. It does nothing where standard error is
        no terminal.
    """
    if not is_terminal(sys.stderr):
        yield lambda *_: None
        return
    # Not imported where no bar is shown: it takes long.
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
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn() if in_bytes else MofNCompleteColumn(),
    ]
    if with_time:
        columns += [TimeElapsedColumn(), TimeRemainingColumn()]
    columns.append(TextColumn("{task.fields[note]}"))
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
            if (
                not has_begun
            ):  # a run that was resumed: what it found done says nothing of its speed
                has_begun = True
                progress.reset(task, total=total, completed=done)
            progress.update(task, total=total, completed=done, note=note.format(*found))

        yield show
