"""Shows text and progress: in a notebook by replacing one output, elsewhere as they arrive."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from sinkstream.observe.notebook import escaped, quotation

Progress = Callable[[int, int], None]
"""Called with (done, total)."""

KEPT_CHARACTERS = 100_000
"""Of a text in a notebook, which stores its outputs."""

# A notebook sends each update to the browser.
_EVERY_S = 0.1


class _Output:
    """An output of a notebook cell."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown_at = float("-inf")

    def show(self, plain: str, html: str) -> None:
        """Replace what the output shows."""
        display: Any = import_module("IPython.display").display  # the kernel has it
        data = {"text/plain": plain, "text/html": html}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)
        self._shown_at = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the last update is long enough ago."""
        return time.monotonic() - self._shown_at >= _EVERY_S


class GrowingText:
    """Text that is shown as it grows: in one output of a notebook, or on standard output."""

    def __init__(self) -> None:
        self._output = _Output() if is_notebook() else None
        self._text = ""
        self._is_cut = False

    def add(self, text: str) -> None:
        """Append text."""
        if self._output is None:
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        self._text += text
        if len(self._text) > KEPT_CHARACTERS:
            self._is_cut = True
            self._text = self._text[-KEPT_CHARACTERS:]
        if self._output.is_due:
            self._show(self._output)

    def end(self) -> None:
        """Show the rest."""
        if self._output is None:
            sys.stdout.write("\n")
        else:
            self._show(self._output)

    def _show(self, output: _Output) -> None:
        text = "…" + self._text if self._is_cut else self._text
        output.show(text, quotation(text))


def progress_function(
    where: str, progress: Progress | bool | None, title: str, *, in_percent: bool = False
) -> Progress | None:
    """Return the function to call with (done, total), if there is one.

    Args:
        where: The call, for errors.
        progress: The caller's own function. True shows a bar in a notebook, and a line on a
            terminal that can redraw one until it is complete.
        title: What the bar counts.
        in_percent: Whether to show a share instead of the two numbers.

    Raises:
        TypeError: It is something else.
    """
    if progress is None or progress is False:
        return None
    if progress is not True:
        if not callable(progress):
            raise TypeError(
                f"{where}: `progress` must be a function or a bool, but is of type "
                f"{type(progress).__name__}."
            )
        return progress

    def counted(done: int, total: int) -> str:
        share = 100 * done // total if total else 100
        return f"{title}: {share} %" if in_percent else f"{title}: {done:,} of {total:,}"

    if is_notebook():
        return _bar(counted)
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    can_redraw = is_terminal and os.environ.get("TERM", "dumb") != "dumb"
    return _line(counted) if can_redraw else None


def _bar(counted: Callable[[int, int], str]) -> Progress:
    output = _Output()

    def show(done: int, total: int) -> None:
        if output.is_due or done >= total:
            words = counted(done, total)
            bar = f'<progress value="{done}" max="{max(total, 1)}"></progress>'
            output.show(words, f"<div>{bar} {escaped(words)}</div>")

    return show


def _line(counted: Callable[[int, int], str]) -> Progress:
    def show(done: int, total: int) -> None:
        sys.stderr.write("\r\x1b[K" + (counted(done, total) if done < total else ""))
        sys.stderr.flush()

    return show


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    package = sys.modules.get("IPython")
    return package is not None and hasattr(package.get_ipython(), "kernel")
