"""`/v1/sessions`: lists, shows, saves and deletes a key's conversations, and shows their turns."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from sinkstream.conversations.errors import ReadingCancelled
from sinkstream.conversations.transcript import StoredTurn, shown_messages
from sinkstream.conversations.turns import NotFound
from sinkstream.server.errors import ApiError
from sinkstream.server.request_log import request_log_of
from sinkstream.server.service import Service, ready_service

_T = TypeVar("_T")


async def list_sessions(request: Request) -> dict[str, Any]:
    """List the conversations, latest first."""
    service = ready_service(request)
    tenant = request_log_of(request.scope).tenant
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
    tenant = request_log_of(request.scope).tenant
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
        "sinks": _sinks_of(service, turns[0]),
        "tokens": max(turn.tokens for turn in turns),
        "heads": [turn.id for turn in turns if turn.id not in parents],
    }


async def get_file(request: Request, name: str) -> Response:
    """Return a session file for a conversation's last turn, or for a given turn."""
    service = ready_service(request)
    log = request_log_of(request.scope)
    save = partial(_save, service, log.tenant, name)
    service.admission.enter(1, log.tenant)
    try:
        await service.take_seat(log, log.tenant)
        try:
            path = await _found(service, save, Path.unlink)
        finally:
            service.seats.release(log.tenant)
    finally:
        service.admission.leave(1, log.tenant)
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
    tenant = request_log_of(request.scope).tenant
    await _found(service, partial(service.turns.delete, tenant, name))
    return {"id": name, "object": "session.deleted", "deleted": True}


async def _found(
    service: Service, call: Callable[[], _T], discard: Callable[[_T], object] = lambda _: None
) -> _T:
    """Return what a blocking call returns; if the request has ended meanwhile, discard it.

    If there is no such conversation or turn, respond with 404.
    """
    try:
        return await service.pool.run(call, discard)
    except ReadingCancelled:
        raise service.reason_of_cancel() from None
    except NotFound as error:
        raise ApiError(
            404, "invalid_request_error", "session_not_found", str(error), "session"
        ) from None


async def list_turns(request: Request, name: str) -> Response:
    """List the turns of a conversation, oldest first, or a single turn."""
    service = ready_service(request)
    tenant = request_log_of(request.scope).tenant
    body = await _found(service, partial(_turns, service, tenant, name))
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


def _sinks_of(service: Service, turn: StoredTurn) -> int:
    """Return S of a turn's conversation."""
    return service.model.capacity.sinks if turn.sinks is None else turn.sinks


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
        "pinned_tokens": min(live, _sinks_of(service, turn)),
        "total_evicted_tokens": read - live,
        "messages": [asdict(one) for one in shown_messages(turn, service.texts.table)],
    }
