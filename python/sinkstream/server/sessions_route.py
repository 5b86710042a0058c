"""`/v1/sessions`: lists, shows, saves and deletes a key's conversations, and shows their turns."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import Receive, Scope, Send

from sinkstream.conversations.errors import ReadingCancelled
from sinkstream.conversations.transcript import StoredTurn, TurnOutline, shown_messages
from sinkstream.conversations.turns import NotFound
from sinkstream.server.answer import json_response
from sinkstream.server.errors import ApiError, invalid
from sinkstream.server.parsing import number_in
from sinkstream.server.request_log import request_log_of
from sinkstream.server.service import Service, ready_service

_T = TypeVar("_T")
_SESSIONS, _MOST_SESSIONS = 100, 1000  # of a page, if the client names no number, and at most
_TURNS, _MOST_TURNS = 100, 100
_PAGE_BYTES = 4 << 20  # of the ids of a page's turns, unless the first one has more
_DOWNLOAD = "sinkstream-file-of-a-session-to-be-sent-"  # 40 characters


async def list_sessions(request: Request) -> Response:
    """List the conversations, latest first."""
    service = ready_service(request)
    limit, after = _page_of(request, _SESSIONS, _MOST_SESSIONS)
    log = request_log_of(request.scope)
    return json_response(service.pool, log, partial(_sessions, service, log.tenant, limit, after))


def _page_of(request: Request, default: int, most: int) -> tuple[int, str | None]:
    """Return how many items are asked for at most, and the id of the one before them."""
    return number_in(request, "limit", default, 1, most), request.query_params.get("after")


def _sessions(service: Service, tenant: str, limit: int, after: str | None) -> dict[str, Any]:
    found = service.turns.conversations(tenant)
    titles, keys = service.turns.titles(tenant), service.turns.session_keys(tenant)
    begin = _begin_of([name for name, _ in found], after, "conversation")
    data = [
        {
            "id": name,
            "object": "session",
            "last_used_at": int(used),
            "title": titles.get(name, ""),
            "session_key": keys.get(name),
        }
        for name, used in found[begin : begin + limit]
    ]
    return _listed(data, has_more=begin + limit < len(found))


def _begin_of(ids: Sequence[str], after: str | None, kind: str) -> int:
    """Return the index of the first item of a page, which follows the item `after`."""
    if after is None:
        return 0
    try:
        return ids.index(after) + 1
    except ValueError:
        raise invalid(f"query: `after` must be the id of a {kind} in this list.", "after") from None


def _listed(data: Sequence[dict[str, Any]], *, has_more: bool, **further: Any) -> dict[str, Any]:
    return {
        "object": "list",
        **further,
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }


async def get_session(request: Request, name: str) -> Response:
    """Describe a conversation, or the one that a turn belongs to."""
    service = ready_service(request)
    tenant = request_log_of(request.scope).tenant
    found = await _found(service, partial(_described, service, tenant, name))
    return Response(found, media_type="application/json")


def _described(service: Service, tenant: str, name: str) -> bytes:
    turns = service.turns.outline(tenant, name)
    parents = {turn.parent for turn in turns}
    found = {
        "id": turns[0].conversation,
        "object": "session",
        "created_at": int(turns[0].created),
        "turns": len(turns),
        "sinks": _sinks_of(service, turns[0]),
        "tokens": max(turn.tokens for turn in turns),
        "heads": [turn.id for turn in turns if turn.id not in parents],
    }
    return orjson.dumps(found)


async def get_file(request: Request, name: str) -> Response:
    """Return a session file for a conversation's last turn, or for a given turn."""
    service = ready_service(request)
    log = request_log_of(request.scope)
    save = partial(_save, service, log.tenant, name)
    service.downloads.enter(log.tenant)
    try:
        service.admission.enter(1, log.tenant)
        try:
            await service.take_seat(log, log.tenant)
            try:
                file = await _found(service, save, BinaryIO.close)
            finally:
                service.seats.release(log.tenant)
        finally:
            service.admission.leave(1, log.tenant)
    except BaseException:
        service.downloads.leave(log.tenant)
        raise
    return _Download(file, partial(service.downloads.leave, log.tenant), f"{name}.session")


class _Download(FileResponse):
    """Sends a file without a name, and closes it even if its client leaves."""

    def __init__(self, file: BinaryIO, on_end: Callable[[], None], name: str) -> None:
        kind = "application/octet-stream"
        super().__init__(f"/proc/self/fd/{file.fileno()}", media_type=kind, filename=name)
        self._file = file
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.close()
            self._on_end()


def _save(service: Service, tenant: str, name: str) -> BinaryIO:
    """Return a session file that has no name any more: it is gone when the process ends.

    While it is written, it is locked. One that a killed process has left is not, and the next save
    deletes it: see `files.NewFile`, which compares the first 40 characters of names.
    """
    path = Path(tempfile.gettempdir()) / f"{_DOWNLOAD}{secrets.token_hex(16)}"
    try:
        service.turns.save(tenant, name, path)
        return path.open("rb")
    finally:
        path.unlink(missing_ok=True)


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
    limit, after = _page_of(request, _TURNS, _MOST_TURNS)
    tenant = request_log_of(request.scope).tenant
    body = await _found(service, partial(_turns, service, tenant, name, limit, after))
    return Response(body, media_type="application/json")


def _turns(service: Service, tenant: str, name: str, limit: int, after: str | None) -> bytes:
    turns = service.turns.outline(tenant, name)
    if turns[0].conversation != name:
        turns = [turn for turn in turns if turn.id == name]
    begin = _begin_of([turn.id for turn in turns], after, "turn")
    sizes = accumulate(turn.bytes for turn in turns[begin : begin + limit])
    count = max(1, sum(size <= _PAGE_BYTES for size in sizes))
    shown = [
        turn
        for one in turns[begin : begin + count]
        for turn in service.turns.transcript(tenant, one.id)
    ]
    found = _listed(
        [_turn(service, turn) for turn in shown],
        has_more=begin + count < len(turns),
        session=turns[0].conversation,
        session_key=shown[0].session_key if shown else None,
    )
    return orjson.dumps(found)


def _sinks_of(service: Service, turn: StoredTurn | TurnOutline) -> int:
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
