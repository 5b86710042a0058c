"""`GET /v1/sessions/{id}/turns`: a kept conversation as it is shown."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from sinkstream.conversations.transcript import StoredTurn, shown_messages
from sinkstream.conversations.turns import NotFound
from sinkstream.server.errors import ApiError
from sinkstream.server.exchange import exchange_of
from sinkstream.server.service import Service, ready_service


async def list_turns(request: Request, name: str) -> Response:
    """List the turns of a conversation, oldest first, or a single turn."""
    service = ready_service(request)
    tenant = exchange_of(request.scope).tenant
    try:
        body = await service.pool.run(partial(_turns, service, tenant, name))
    except NotFound as error:
        raise ApiError(
            404, "invalid_request_error", "session_not_found", str(error), "session"
        ) from None
    return Response(body, media_type="application/json")


def _turns(service: Service, tenant: str, name: str) -> bytes:
    turns = service.turns.transcript(tenant, name)
    found = {
        "object": "list",
        "session": turns[0].conversation,
        "session_key": turns[0].session_key,
        "data": [_turn(service, turn) for turn in turns],
    }
    return orjson.dumps(found)


def _turn(service: Service, turn: StoredTurn) -> dict[str, Any]:
    read = turn.tokens - 1  # the last token is read with the next turn
    live = min(read, service.model.capacity.tokens)
    return {
        "id": turn.id,
        "object": "session.turn",
        "parent": turn.parent,
        "created_at": turn.created,
        "finish_reason": turn.finish_reason,
        "tokens": turn.tokens,
        "live_tokens": live,
        "total_evicted_tokens": read - live,
        "messages": [asdict(one) for one in shown_messages(turn, service.texts.table)],
    }
