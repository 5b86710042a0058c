"""`/v1/sessions`: lists, shows, saves and deletes a key's conversations."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from sinkstream.conversations.errors import ReadingCancelled
from sinkstream.conversations.turns import NotFound
from sinkstream.server.errors import ApiError
from sinkstream.server.exchange import exchange_of
from sinkstream.server.service import Service, ready_service

_T = TypeVar("_T")


async def list_sessions(request: Request) -> dict[str, Any]:
    """List the conversations, latest first."""
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


async def get_session(request: Request, name: str) -> dict[str, Any]:
    """Describe a conversation, or the one that a turn belongs to."""
    service = ready_service(request)
    tenant = exchange_of(request.scope).tenant
    turns = await _found(service, partial(service.turns.transcript, tenant, name))
    if turns[0].conversation != name:  # a turn
        call = partial(service.turns.transcript, tenant, turns[0].conversation)
        turns = await _found(service, call)
    parents = {turn.parent for turn in turns}
    return {
        "id": turns[0].conversation,
        "object": "session",
        "created_at": int(turns[0].created),
        "turns": len(turns),
        "tokens": max(turn.tokens for turn in turns),
        "heads": [turn.id for turn in turns if turn.id not in parents],
    }


async def get_file(request: Request, name: str) -> Response:
    """Return a session file for a conversation's last turn, or for a given turn."""
    service = ready_service(request)
    exchange = exchange_of(request.scope)
    save = partial(_save, service, exchange.tenant, name)
    service.admission.enter(1)
    try:
        await service.take_seat(exchange)
        try:
            path = await _found(service, save, Path.unlink)
        finally:
            service.seats.release()
    finally:
        service.admission.leave(1)
    kind = "application/octet-stream"
    return _TemporaryFile(path, media_type=kind, filename=f"{name}.session")


class _TemporaryFile(FileResponse):
    """Sends a file, and deletes it even if its client leaves."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            Path(self.path).unlink()


def _save(service: Service, tenant: str, name: str) -> Path:
    with tempfile.NamedTemporaryFile(suffix=".session", delete=False) as file:
        path = Path(file.name)
    try:
        service.turns.save(tenant, name, path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


async def delete_session(request: Request, name: str) -> dict[str, Any]:
    """Delete a conversation, or a turn with all turns that follow it."""
    service = ready_service(request)
    tenant = exchange_of(request.scope).tenant
    await _found(service, partial(service.turns.delete, tenant, name))
    return {"id": name, "object": "session.deleted", "deleted": True}


async def _found(
    service: Service, call: Callable[[], _T], discard: Callable[[_T], object] = lambda _: None
) -> _T:
    """Return what a blocking call returns; if the request has ended meanwhile, discard it.

    Raises:
        ApiError: There is no such conversation or turn.
    """
    try:
        return await service.pool.run(call, discard)
    except ReadingCancelled:
        raise service.reason_of_cancel() from None
    except NotFound as error:
        raise ApiError(
            404, "invalid_request_error", "session_not_found", str(error), "session"
        ) from None
