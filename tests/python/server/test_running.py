"""Why a reply has not begun, as its client is told."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from sinkstream.conversations.errors import ReadingCancelled, ReadingTimedOut
from sinkstream.conversations.turns import Turn
from sinkstream.server.config import ServerConfig
from sinkstream.server.errors import ApiError
from sinkstream.server.running import Reply
from sinkstream.server.service import Service


@pytest.mark.parametrize(
    ("error", "is_draining", "code"),
    [
        (ReadingCancelled("no"), True, "draining"),
        (ReadingTimedOut(1), True, "timeout"),
        (ReadingTimedOut(1), False, "timeout"),
    ],
)
def test_a_reply_whose_conversation_is_not_read_to_its_end(
    error: Exception, is_draining: bool, code: str
) -> None:
    async def run() -> None:
        service = Service(ServerConfig())
        service.seats, service.is_draining = asyncio.Semaphore(1), is_draining

        def start() -> Turn:
            raise error

        with pytest.raises(ApiError) as refused:
            await Reply(0, start, service, {}).begin()
        assert (refused.value.status, refused.value.code) == (503, code)
        assert dict(refused.value.headers)[b"x-should-retry"] == b"true"
        assert not service.seats.locked()
        service.close()

    asyncio.run(run())
