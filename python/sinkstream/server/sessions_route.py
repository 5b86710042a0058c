"""`GET /v1/sessions` and `DELETE /v1/sessions/{id}`: the kept conversations of a key."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request

from sinkstream.server.errors import ApiError
from sinkstream.server.exchange import exchange_of
from sinkstream.server.service import ready_service
from sinkstream.server.turns import NotFound


async def list_sessions(request: Request) -> dict[str, Any]:
    """List the conversations, the latest first."""
    service = ready_service(request)
    tenant = exchange_of(request.scope).tenant
    found = await service.pool.run(partial(service.turns.conversations, tenant))
    titles = await service.pool.run(partial(service.turns.titles, tenant))
    data = [
        {
            "id": name,
            "object": "session",
            "last_used_at": int(used),
            "title": titles.get(name, ""),
        }
        for name, used in found
    ]
    return {"object": "list", "data": data}


async def delete_session(request: Request, name: str) -> dict[str, Any]:
    """Delete a conversation, or a turn with all that follow it."""
    service = ready_service(request)
    tenant = exchange_of(request.scope).tenant
    try:
        await service.pool.run(partial(service.turns.delete, tenant, name))
    except NotFound as error:
        raise ApiError(
            404, "invalid_request_error", "session_not_found", str(error), "session"
        ) from None
    return {"id": name, "object": "session.deleted", "deleted": True}
