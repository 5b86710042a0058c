"""Exceptions and warnings. A message names the call, the argument, its rule and its value."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class SinkstreamError(Exception):
    """Base class of the package's own errors. Wrong types raise TypeError.

    Attributes:
        code: A stable identifier for programs, such as "invalid_argument".
        param: The argument or field at fault, if there is one.
        request_id: The request that failed (`Stream.request_id`), if there is one.
        prompt_index: The index of the prompt that failed, from 0, if there were several.
        results: The result or error of each prompt, if `Model.generate` was given several and has
            completed those that did not fail. Otherwise empty.
    """

    code = "error"
    prompt_index: int | None = None
    results: Sequence[Any] = ()

    def __init__(
        self, message: str, *, param: str | None = None, request_id: int | None = None
    ) -> None:
        super().__init__(message)
        self.param = param
        self.request_id = request_id


class InvalidArgument(SinkstreamError, ValueError):
    """An argument has a value that the call does not accept."""

    code = "invalid_argument"


class ContextExceeded(InvalidArgument):
    """A prompt, or the part of it that is pinned, has more tokens than the model may see of it."""

    code = "context_length_exceeded"


class CheckpointError(SinkstreamError, ValueError):
    """A checkpoint is missing, damaged, unsupported, or inconsistent with its own description.

    Also raised for a saved session that is missing or damaged, or belongs to a different model.
    """

    code = "checkpoint"


class CapacityError(SinkstreamError, RuntimeError):
    """There is not enough memory: for the model at `load`, or for a request later."""

    code = "capacity"


class SessionBusy(SinkstreamError, RuntimeError):
    """The stream, session, cache or iterator is in use."""

    code = "session_busy"


class NonFiniteLogits(SinkstreamError, RuntimeError):
    """The model returned NaN or infinity; only the affected sequence has ended.

    Attributes:
        index: The index of the token for which the logits were computed; None outside streams.
    """

    code = "non_finite_logits"
    index: int | None = None


class DeviceError(SinkstreamError, RuntimeError):
    """The GPU or its driver has failed; the message quotes the driver."""

    code = "device"


class EngineDead(SinkstreamError, RuntimeError):
    """The model is closed, or its generation thread has failed; the message gives the cause."""

    code = "engine_dead"


# At the interpreter's exit the models are closed while daemon threads still run. Their next call
# then raises SystemExit, which ends a thread without a traceback and is caught by no
# `except Exception`.
_is_exiting = False


def note_exit() -> None:
    """Note that the interpreter is exiting, and that only daemon threads are left."""
    global _is_exiting
    _is_exiting = True


def engine_dead(message: str) -> BaseException:
    """Return the exception for a call that finds no generation thread, usually an `EngineDead`."""
    if _is_exiting and threading.current_thread() is not threading.main_thread():
        return SystemExit()
    return EngineDead(message)


class ForkError(SinkstreamError, RuntimeError):
    """The model was loaded before this process was forked. A child process cannot use it."""

    code = "fork"


# Frames that are never the caller's: the package's own, and those of context managers.
_SKIPPED_FILES = (str(Path(__file__).parent) + os.sep, contextlib.__file__)


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that names the calling line outside the package."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_SKIPPED_FILES):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def how_to_install(*extras: str) -> str:
    """Return the command that installs what extras need, in backquotes.

    It names the packages themselves, so it works whether this package was installed from a clone, a
    wheel or an index.

    Example:
        >>> how_to_install("structured")
        "`pip install 'llguidance<1.10,>=1.9'`"
    """
    return f"`pip install {shlex.join(_requirements(extras))}`"


_OWN_EXTRA = re.compile(r"sinkstream\[([\w-]+)\]")
_EXTRA_MARKER = re.compile(r"""(?:^| and )\(?extra == ['"]([\w-]+)['"]\)?""")


def _requirements(extras: Sequence[str]) -> list[str]:
    from importlib import metadata  # takes a hundredth of a second

    found = []
    for line in metadata.requires("sinkstream") or ():
        requirement, marker = (part.strip() for part in f"{line};".split(";")[:2])
        named = _EXTRA_MARKER.search(marker)
        if named is None or named[1] not in extras:
            continue
        if other := _OWN_EXTRA.fullmatch(requirement):
            found += _requirements([other[1]])
        else:
            condition = _EXTRA_MARKER.sub("", marker)
            found.append(requirement + (condition and f"; {condition}"))
    return found
