"""Leaves work that waits for a stalled engine, so that its client gets a response."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from sinkstream.server.service import Service

_T = TypeVar("_T")


async def unless_stalled(service: Service, work: Awaitable[_T]) -> _T:
    """Return what the work returns, or leave it when the engine is found to have stalled.

    Work that is left is cancelled, and ends in the background when the engine releases it. If
    this call is cancelled, it waits for the work.

    Raises:
        ApiError: The engine has stalled.
        Exception: Any error that the work raises.
    """
    task: asyncio.Future[_T] = asyncio.ensure_future(work)
    with service.health.alarm() as alarm:
        try:
            await _first(task, alarm)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
    if task.done():
        try:
            return task.result()
        finally:
            del task  # or an error would hold itself, and with it the request, until a collection
    task.cancel()
    leave(service, task)
    raise service.stalled()


def leave(service: Service, task: asyncio.Future[Any]) -> None:
    """Let work that is cancelled end in the background."""
    service.left.add(task)
    task.add_done_callback(lambda _: _forget(service, task))


async def _first(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


def _forget(service: Service, task: asyncio.Future[Any]) -> None:
    service.left.discard(task)
    if not task.cancelled():
        task.exception()  # its client has been told already
