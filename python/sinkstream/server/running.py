"""Runs the replies of one request: admitted, begun, read and ended together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sinkstream.server.errors import ApiError, from_exception, internal
from sinkstream.server.service import Service
from sinkstream.server.turns import Turn, TurnEnd

Start = Callable[[], Turn]
"""Begins a reply; blocks."""


@dataclass(slots=True, eq=False)
class Reply:
    """One running reply of a request."""

    index: int
    turn: Turn
    _service: Service
    _ending: asyncio.Future[TurnEnd] | None = None

    async def end(self) -> TurnEnd:
        """Commit the turn, once, even if the waiting task is cancelled.

        Raises:
            ApiError: The reply was ended by the server, not by the model.
        """
        if self._ending is None:
            self._ending = self._service.pool.submit(self.turn.end)
        end = await asyncio.shield(self._ending)
        if end.finish_reason in ("cancelled", "error"):
            raise self._service.reason_of_cancel()
        return end

    async def finish(self) -> None:
        """End the turn, however far it has come."""
        self.turn.stream.close()
        if self._ending is None:
            self._ending = self._service.pool.submit(self.turn.end)
        await asyncio.wait([self._ending])


@asynccontextmanager
async def running(
    service: Service, starts: Sequence[Start], names: dict[str, str]
) -> AsyncIterator[list[Reply]]:
    """Start replies, and end them with the block.

    Args:
        service: The server.
        starts: Begins each of them.
        names: Fields of the request by the arguments of `Model.stream`, for errors.

    Raises:
        ApiError: There is no room, or a reply cannot begin.
    """
    service.admission.enter(len(starts))
    replies: list[Reply] = []
    try:
        for index, start in enumerate(starts):
            try:
                turn = await service.pool.run(start, discard=_drop)
            except Exception as error:
                raise from_exception(error, names) or error from None
            replies.append(Reply(index, turn, service))
            service.replies.add(turn.stream)
        yield replies
    finally:
        try:
            for reply in replies:
                reply.turn.stream.close()
            for reply in replies:
                await reply.finish()
        finally:
            service.replies.difference_update(reply.turn.stream for reply in replies)
            service.admission.leave(len(starts))


def _drop(turn: Turn) -> None:
    turn.stream.close()
    turn.end()


def as_api_error(error: BaseException) -> ApiError:
    """Return the answer for a failure while a reply is read."""
    while isinstance(error, BaseExceptionGroup):  # of several choices
        error = error.exceptions[0]
    return from_exception(error) or internal()
