"""Exceptions and warnings. Every message says where, which name, the rule, and the value."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path


class SinkstreamError(Exception):
    """Base of all errors of the package.

    Attributes:
        code: A stable word for programs, such as "invalid_argument".
        param: The argument or field at fault, where there is one.
        request_id: The request that it ended (`Stream.request_id`), where there is one.
    """

    code = "error"

    def __init__(
        self, message: str, *, param: str | None = None, request_id: int | None = None
    ) -> None:
        super().__init__(message)
        self.param = param
        self.request_id = request_id


class InvalidArgument(SinkstreamError, ValueError):
    """An argument has a value that the call cannot take."""

    code = "invalid_argument"


class CheckpointError(SinkstreamError, ValueError):
    """A checkpoint is missing, damaged, of an unknown kind, or does not fit its own description.

    Of a saved session the same, or it belongs to another model.
    """

    code = "checkpoint"


class CapacityError(SinkstreamError, RuntimeError):
    """The memory that was announced at load does not hold what was asked for."""

    code = "capacity"


class SessionBusy(SinkstreamError, RuntimeError):
    """Somebody else is using this stream or session right now."""

    code = "session_busy"


class NonFiniteLogits(SinkstreamError, RuntimeError):
    """The model returned NaN or infinity; only the sequence concerned has ended.

    Attributes:
        index: The index of the token that the logits were for; None outside of streams.
    """

    code = "non_finite_logits"
    index: int | None = None


class DeviceError(SinkstreamError, RuntimeError):
    """The GPU, or its driver, has failed; what the driver says is in the message."""

    code = "device"


class EngineDead(SinkstreamError, RuntimeError):
    """The generation thread has stopped after a failure; its cause is in the message."""

    code = "engine_dead"


class ForkError(SinkstreamError, RuntimeError):
    """A model that was loaded before a fork is used in the child process."""

    code = "fork"


# Frames of these files are not the caller's: the package's own, and those of `with` blocks.
_OWN_FILES = (str(Path(__file__).parent), contextlib.__file__)


def warn_caller(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and name the line outside of the package that made the call."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_FILES):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
