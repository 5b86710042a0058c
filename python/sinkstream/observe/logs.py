"""What goes to the logger "sinkstream": never a prompt, a reply or a token id.

The generation thread takes no lock of Python's and so logs nothing: a request's end is logged by
the thread that reads its end.
"""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING

from sinkstream.errors import EngineDead, ForkError

if TYPE_CHECKING:
    from sinkstream import _core

logger = logging.getLogger("sinkstream")
# Whoever configures no logging hears nothing.
logger.addHandler(logging.NullHandler())

_dead: weakref.WeakSet[object] = weakref.WeakSet()  # whose death has been logged


def request_ended(native: _core.TokenStream) -> None:
    """Log how a request has ended, or that its reader ends it now, with its counts."""
    if not logger.isEnabledFor(logging.DEBUG):
        return
    try:
        stats, reason = native.stats(), native.finish_reason or "cancelled"
    except ForkError:  # a child closes what is its parent's, and ends nothing
        return
    logger.debug(
        "request %d: %s; prompt_tokens=%d generated_tokens=%d evicted_tokens=%d",
        stats["request_id"],
        reason,
        stats["prompt_tokens"],
        stats["generated_tokens"],
        stats["evicted_tokens"],
    )


def engine_died(owner: object, error: EngineDead) -> None:
    """Log once for a model that its generation thread has failed."""
    if owner in _dead:
        return
    _dead.add(owner)
    logger.error("%s", error)
