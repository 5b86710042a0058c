"""A progress bar with the time left, on standard error, where that is a terminal."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

# The speed is averaged over the last minutes: the first tokens of a text are faster than the rest.
_AVERAGE_S = 120.0


class Bar:
    """Shows how far a run is; silent where nobody could see it."""

    def __init__(self, name: str, total: int, *, done: int = 0, shown: bool = True) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not (shown and console.is_terminal),
            speed_estimate_period=_AVERAGE_S,
        )
        self._task = self._progress.add_task(name, total=total, completed=done, note="")

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def advance(self, count: int, note: str = "") -> None:
        """Count `count` more as done, and show a note behind the bar."""
        self._progress.update(self._task, advance=count, note=note)
