"""`/v1/sessions`: lists, shows, renames, saves and deletes a key's conversations."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from sinkstream.conversations.errors import ReadingCancelled, folder_error
from sinkstream.conversations.transcript import StoredTurn, TurnOutline, shown_messages
from sinkstream.conversations.turns import NotFound
from sinkstream.server.answer import Answer, json_response
from sinkstream.server.errors import ApiError, invalid
from sinkstream.server.parsing import number_in, parse
from sinkstream.server.request_bodies import TitleRequest
from sinkstream.server.request_log import RequestLog, request_log_of
from sinkstream.server.running_replies import Terms, in_origin, in_time
from sinkstream.server.server_sent_events import Send
from sinkstream.server.service import Service, ready_service

_T = TypeVar("_T")
_SESSIONS, _MOST_SESSIONS = 100, 1000  # of a page, if the client names no number, and at most
_TURNS, _MOST_TURNS = 100, 100
_PAGE_BYTES = 4 << 20  # of the ids of a page's turns, unless the first one has more
_MOST_OF_TITLE = 200  # characters
_DOWNLOAD = "sinkstream-file-of-a-session-to-be-sent-"  # 40 characters


async def list_sessions(request: Request) -> Response:
    """List the conversations, latest first."""
    service = ready_service(request)
    limit, after = _page_of(request, _SESSIONS, _MOST_SESSIONS)
    log = request_log_of(request.scope)
    return json_response(service, log, partial(_sessions, service, log.tenant, limit, after))


def _page_of(request: Request, default: int, most: int) -> tuple[int, str | None]:
    """Return how many items are asked for at most, and the id of the one before them."""
    return number_in(request, "limit", default, 1, most), request.query_params.get("after")


def _sessions(service: Service, tenant: str, limit: int, after: str | None) -> dict[str, Any]:
    try:
        found = service.turns.conversations(tenant, limit + 1, after)
    except NotFound:
        found = None
    if found is None:
        raise _not_listed("conversation")
    data = [
        {
            "id": one.id,
            "object": "session",
            "last_used_at": int(one.used),
            "title": one.title,
            "session_key": one.session_key,
        }
        for one in found[:limit]
    ]
    return _listed(data, has_more=len(found) > limit)


def _not_listed(kind: str) -> ApiError:
    return invalid(f"query: `after` must be the id of a {kind} in this list.", "after")


def _begin_of(ids: Sequence[str], after: str | None) -> int:
    """Return the index of the first turn of a page, which follows the turn `after`."""
    if after is None:
        return 0
    if after not in ids:
        raise _not_listed("turn")
    return ids.index(after) + 1


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
    service, log = ready_service(request), request_log_of(request.scope)
    return json_response(service, log, _if_found(partial(_described, service, log.tenant, name)))


def _described(service: Service, tenant: str, name: str) -> dict[str, Any]:
    turns = service.turns.outline(tenant, name)
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

    async def work(send: Send) -> None:
        with service.downloads.counted(log.tenant), await _saved(service, log, name) as file:
            path, kind = f"/proc/self/fd/{file.fileno()}", "application/octet-stream"
            response = FileResponse(path, media_type=kind, filename=f"{name}.session")
            await response(request.scope, request.receive, send)

    return Answer(work)


async def _saved(service: Service, log: RequestLog, name: str) -> BinaryIO:
    """Return a file with the state at the end of a turn: making it needs a seat, as a reply."""
    save = partial(_save, service, log.tenant, name)
    save_as_key = partial(in_origin, save, service, Terms(log.tenant, log.arrived_at))
    service.admission.enter(1, log.tenant)
    try:
        async with in_time(log.arrived_at, log.timeout_s):
            await service.take_seat(log, log.tenant)
            try:
                return await service.pool.run(_if_found(save_as_key), BinaryIO.close)
            except ReadingCancelled:
                raise service.reason_of_cancel() from None
            finally:
                service.seats.release(log.tenant)
    finally:
        service.admission.leave(1, log.tenant)


def _save(service: Service, tenant: str, name: str) -> BinaryIO:
    """Return a session file that has no name any more: it is gone when the process ends.

    While it is written, it is locked. One that a killed process has left is not, and the next save
    deletes it: see `files.NewFile`, which compares the first 40 characters of names.
    """
    path = Path(tempfile.gettempdir()) / f"{_DOWNLOAD}{secrets.token_hex(16)}"
    try:
        service.turns.save(tenant, name, path)
        return path.open("rb")
    except OSError as error:
        raise folder_error(path.parent, error) from error
    finally:
        path.unlink(missing_ok=True)


async def rename_session(request: Request, name: str) -> dict[str, Any]:
    """Give a conversation another title."""
    service = ready_service(request)
    log = request_log_of(request.scope)
    title = (await parse(log, service.pool, TitleRequest)).title.strip()
    if not 1 <= len(title) <= _MOST_OF_TITLE:
        raise invalid(
            f"body: `title` must have 1 to {_MOST_OF_TITLE} characters, but has {len(title)}.",
            "title",
        )
    await service.pool.run(_if_found(partial(service.turns.rename, log.tenant, name, title)))
    return {"id": name, "object": "session", "title": title}


async def delete_session(request: Request, name: str) -> dict[str, Any]:
    """Delete a conversation, or a turn with all turns that follow it."""
    service = ready_service(request)
    tenant = request_log_of(request.scope).tenant
    await service.pool.run(_if_found(partial(service.turns.delete, tenant, name)))
    return {"id": name, "object": "session.deleted", "deleted": True}


def _if_found(call: Callable[[], _T]) -> Callable[[], _T]:
    """Return a call whose error is a 404 if there is no such conversation or turn."""

    def found() -> _T:
        try:
            return call()
        except NotFound as error:
            message = str(error)
        raise ApiError(404, "invalid_request_error", "session_not_found", message, "session")

    return found


async def list_turns(request: Request, name: str) -> Response:
    """List the turns of a conversation, oldest first, or a single turn."""
    service = ready_service(request)
    limit, after = _page_of(request, _TURNS, _MOST_TURNS)
    log = request_log_of(request.scope)
    read = partial(_turns, service, log.tenant, name, limit, after)
    return json_response(service, log, _if_found(read))


def _turns(
    service: Service, tenant: str, name: str, limit: int, after: str | None
) -> dict[str, Any]:
    turns = service.turns.outline(tenant, name)
    if turns[0].conversation != name:
        turns = [turn for turn in turns if turn.id == name]
    begin = _begin_of([turn.id for turn in turns], after)
    sizes = accumulate(turn.bytes for turn in turns[begin : begin + limit])
    count = max(1, sum(size <= _PAGE_BYTES for size in sizes))
    shown = [
        turn
        for one in turns[begin : begin + count]
        for turn in service.turns.transcript(tenant, one.id)
    ]
    return _listed(
        [_turn(service, turn) for turn in shown],
        has_more=begin + count < len(turns),
        session=turns[0].conversation,
        session_key=shown[0].session_key if shown else None,
    )


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
