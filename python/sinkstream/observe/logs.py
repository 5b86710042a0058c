"""Writes to the logger "sinkstream"; never a prompt, a reply or a token id.

The generation thread takes no Python lock and therefore logs nothing: the thread that reads a
request's end logs it.
"""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

from sinkstream.errors import EngineDead, ForkError

if TYPE_CHECKING:
    from sinkstream import _core

logger = logging.getLogger("sinkstream")
# Silent until the application configures logging.
logger.addHandler(logging.NullHandler())

_dead: weakref.WeakSet[object] = weakref.WeakSet()  # models whose failure has been logged


def stats_before(model: _core.Model) -> dict[str, Any] | None:
    """Return the counters for `request_waits` as they are before a request; None if it is off."""
    return model.stats() if logger.isEnabledFor(logging.INFO) else None


def request_waits(request_id: int, before: dict[str, Any], needed_pages: int) -> None:
    """Log that a request cannot start, because others hold the memory that it needs."""
    if before["free_pages"] >= needed_pages:
        return
    logger.info(
        "request %d: waiting for cache memory; %d of %d pages free, waiting=%d running=%d "
        "parked=%d",
        request_id,
        *(before[name] for name in ("free_pages", "pages", "waiting", "running", "parked")),
    )


def request_ended(native: _core.TokenStream) -> None:
    """Log a request's finish reason and counts; "cancelled" if its reader ends it now."""
    if not logger.isEnabledFor(logging.DEBUG):
        return
    try:
        stats, reason = native.stats(), native.finish_reason or "cancelled"
    except ForkError:  # in a forked child, closing ends nothing
        return
    logger.debug(
        "request %d: %s; prompt_tokens=%d generated_tokens=%d evicted_tokens=%d",
        stats["request_id"],
        reason,
        stats["prompt_tokens"],
        stats["generated_tokens"],
        stats["evicted_tokens"],
    )


def engine_died(model: object, error: EngineDead) -> None:
    """Log, once per model, that its generation thread has failed."""
    if model in _dead:
        return
    _dead.add(model)
    logger.error("%s", error)
