"""`/v1/responses` over HTTP: create, get, follow, cancel and delete responses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response

from sinkstream.conversations.turns import NotFound
from sinkstream.server.answer import Answer, json_response, send_counted
from sinkstream.server.errors import ApiError, invalid
from sinkstream.server.parsing import number_in, parse
from sinkstream.server.reply_response import headers_of, progress_of
from sinkstream.server.request_log import RequestLog, request_log_of
from sinkstream.server.responses import stored_responses
from sinkstream.server.responses.begin_response import asked_of, count, create
from sinkstream.server.responses.items import items_of
from sinkstream.server.responses.live_responses import Live
from sinkstream.server.responses.response_bodies import NAMES, ReadRequest, ResponseRequest
from sinkstream.server.responses.response_events import as_sse
from sinkstream.server.responses.response_object import Resources
from sinkstream.server.running_replies import in_time
from sinkstream.server.server_sent_events import EventWriter, Send
from sinkstream.server.service import Service, ready_service

_T = TypeVar("_T")

_PAGE, _MOST = 20, 100  # items of a list


async def create_response(request: Request) -> Response:
    """Create a response; return it whole, as events, or (`background`) in its current state."""
    service = ready_service(request)
    log = request_log_of(request.scope)
    body = await parse(log, service.pool, ResponseRequest)

    async def work(send: Send) -> None:
        nonlocal body
        log.choices = 1
        must_wait = service.seats.must_wait(log.tenant)
        is_stream, is_background = bool(body.stream), bool(body.background)
        live = await create(service, body, log, request.headers)
        del body  # it may be long
        try:
            if is_stream:
                await live.admitted(service.config.keepalive_s)
                await _write(service, live, -1, send)
            elif is_background:
                # What is refused is known when the reply begins.
                await live.admitted(0.0 if must_wait else service.config.keepalive_s)
                await _send(service, log, live, send)
            else:
                await live.ended()
                await _send(service, log, live, send)
        finally:
            if not is_background:
                await live.cancel()
            live.note(log)

    return Answer(work)


async def _send(service: Service, log: RequestLog, live: Live, send: Send) -> None:
    if live.failure is not None:
        raise live.failure
    await send_counted(service, log, send, await _written(service, live), headers_of(live.turn))


def _shown(service: Service, log: RequestLog, live: Live) -> Answer:
    """Return a response as it is now."""

    async def work(send: Send) -> None:
        await send_counted(service, log, send, await _written(service, live))

    return Answer(work)


async def _written(service: Service, live: Live) -> bytes:
    """Return a response as it is now, as JSON."""
    return await service.pool.run_if(
        live.state.is_long, lambda: orjson.dumps(live.resources.response())
    )


async def _write(service: Service, live: Live, after: int, send: Send) -> None:
    """Send the events after a number. After a failure, the last event says so."""

    def progress() -> str:
        return progress_of([live.turn])

    keepalive_s = service.config.keepalive_s
    async with EventWriter(send, progress, keepalive_s, headers_of(live.turn)) as writer:
        async for events in live.follow(service.pool, as_sse, after):
            await writer.write(b"".join(events))
        await writer.finish()


async def get_response(request: Request, name: str) -> Response:
    """Return a response as it is now, or its events after a given number."""
    service = ready_service(request)
    log = request_log_of(request.scope)
    streams = _flag(request, "stream")
    after = number_in(request, "starting_after", -1, 0, 1 << 53)
    if after >= 0 and not streams:
        raise invalid("query: `starting_after` requires `stream` to be true.", "starting_after")
    live = service.live.find(log.tenant, name)
    if live is None:
        live = await _stored(service, log.tenant, name, numbered=after >= 0)
        if streams and live.state.outcome is None:
            raise _elsewhere(name, "followed")
    if not streams:
        return _shown(service, log, live)
    return Answer(partial(_write, service, live, after))


async def _stored(service: Service, tenant: str, name: str, *, numbered: bool = False) -> Live:
    """Return a response from the store; refuse `numbered` events that no longer have numbers."""

    def read() -> tuple[Live, bool]:
        state = stored_responses.stored_state(service.turns, tenant, name)
        has_numbers = stored_responses.is_numbered(service.turns, tenant, name)
        return Live(Resources(state, service.texts), []), has_numbers

    live, has_numbers = await _found(service, name, read)
    if numbered and not has_numbers:
        raise invalid(
            "query: `starting_after` must be left out, because the server was restarted while "
            f"{name} was in progress. Without it, the whole text is sent as one event.",
            "starting_after",
        )
    return live


async def _found(service: Service, name: str, read: Callable[[], _T]) -> _T:
    try:
        return await service.pool.run(read)
    except NotFound:
        raise not_found(name) from None


def not_found(name: str) -> ApiError:
    """Return the error for a response that does not exist."""
    message = f"server: there is no response {name[:80]!r}."
    return ApiError(404, "invalid_request_error", "response_not_found", message, "response_id")


async def delete_response(request: Request, name: str) -> dict[str, Any]:
    """Delete a response, and all responses that continue it."""
    service = ready_service(request)
    tenant = request_log_of(request.scope).tenant
    live = service.live.find(tenant, name)
    if live is not None and live.state.outcome is None:
        raise _busy(f"server: {name} must have ended before it is deleted. Cancel it first.")
    if live is None or live.state.is_begun or live.is_promised:
        delete = partial(stored_responses.delete, service.turns, tenant, name)
        if not await _found(service, name, delete):
            raise _elsewhere(name, "deleted")
    service.live.forget(name)
    return {"id": name, "object": "response", "deleted": True}


def _busy(message: str) -> ApiError:
    headers = ((b"x-should-retry", b"false"),)
    return ApiError(409, "conflict_error", "session_busy", message, headers=headers)


def _elsewhere(name: str, what: str) -> ApiError:
    """Return the error for a response that another server of the store has not ended."""
    return _busy(
        f"server: {name} must be {what} at the server that was asked for it, until it has ended. "
        "Each server of the store says how far it is."
    )


async def cancel_response(request: Request, name: str) -> Response:
    """End a response that is in progress, and return it."""
    service, log = ready_service(request), request_log_of(request.scope)
    live = service.live.find(log.tenant, name)
    if live is None:
        live = await _stored(service, log.tenant, name)
        if live.state.outcome is None:
            raise _elsewhere(name, "cancelled")
    if live.state.outcome is None:
        await live.cancel()
    elif not live.state.is_background:
        raise invalid(
            f"server: {name} cannot be cancelled: it has ended, and was not created with "
            "`background`.",
            "response_id",
        )
    return _shown(service, log, live)


async def input_items(request: Request, name: str) -> Response:
    """List the items of a response's input."""
    service, log = ready_service(request), request_log_of(request.scope)
    tenant = log.tenant
    limit = number_in(request, "limit", _PAGE, 1, _MOST)
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid('query: `order` must be "asc" or "desc".', "order")
    live = service.live.find(tenant, name)
    messages = live.messages if live is not None else None
    if messages is None:
        messages = await _found(
            service, name, partial(stored_responses.input_of, service.turns, tenant, name)
        )
    after = request.query_params.get("after")
    page = partial(_page, messages, name.rpartition("_")[2], order, after, limit)
    return json_response(service, log, page)


def _page(
    messages: list[dict[str, Any]], name: str, order: str, after: str | None, limit: int
) -> dict[str, Any]:
    """Return a part of the items of some messages."""
    items = list(items_of(messages, name))
    if order == "desc":
        items.reverse()
    if after is not None:
        ids = [item["id"] for item in items]
        if after not in ids:
            raise invalid("query: `after` must be the id of an item.", "after")
        items = items[ids.index(after) + 1 :]
    page = items[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(items) > len(page),
    }


async def input_tokens(request: Request) -> Response:
    """Count the tokens that a response would read."""
    service = ready_service(request)
    log = request_log_of(request.scope)
    body = await parse(log, service.pool, ReadRequest)
    service.check_model(body.model)
    async with in_time(log.arrived_at, log.timeout_s):
        asked = await asked_of(service, body, log.tenant, request.headers)

    def counted() -> dict[str, Any]:
        return {"object": "response.input_tokens", "input_tokens": count(asked)}

    return json_response(service, log, counted, NAMES)


def _flag(request: Request, name: str) -> bool:
    value = request.query_params.get(name, "false").lower()
    if value not in ("true", "false"):
        raise invalid(f"query: `{name}` must be true or false.", name)
    return value == "true"
