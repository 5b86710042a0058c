"""Quotes what comes from elsewhere in error messages: short, escaped, on one line.

Values of untrusted files, and errors of libraries.
"""

from __future__ import annotations

import json
import reprlib
from typing import Any

_MAX_TEXT = 100  # longer than any real tensor name, shorter than two lines of a terminal

_short = reprlib.Repr()
_short.maxlist = _short.maxtuple = 8
_short.maxdict = 4
_short.maxother = 60


def quoted(value: Any) -> str:
    """Return `value` for an error message: strings in double quotes, control characters escaped."""
    if isinstance(value, str):
        cut = value if len(value) <= _MAX_TEXT else value[: _MAX_TEXT - 1] + "…"
        return json.dumps(cut, ensure_ascii=not cut.isprintable())
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return _short.repr(value)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; its type if it has none."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0]
