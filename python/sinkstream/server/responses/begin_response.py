"""Makes a response from a request's body: what it reads, checked, and ready to begin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson
from starlette.datastructures import Headers

from sinkstream.conversations.node import new_id
from sinkstream.conversations.promises import Promise
from sinkstream.conversations.turns import NotFound, Turn, TurnRequest
from sinkstream.host import ReplyOptions
from sinkstream.request.options import StreamOptions
from sinkstream.server.admission import response_bytes
from sinkstream.server.body_options import continues_final, sinks_of, thinking_of_response
from sinkstream.server.errors import ApiError, from_exception, invalid
from sinkstream.server.parsing import session_key
from sinkstream.server.request_bodies import StreamSettings
from sinkstream.server.request_log import RequestLog
from sinkstream.server.responses.generate_response import begin
from sinkstream.server.responses.items import messages_of
from sinkstream.server.responses.live_responses import Live
from sinkstream.server.responses.response_bodies import (
    ENCRYPTED,
    ReadRequest,
    ResponseRequest,
    check_read,
    names_in,
    options_of,
    record_of,
    refuses_overflow_of,
    request_fields_of,
    response_tools,
)
from sinkstream.server.responses.response_object import Resources
from sinkstream.server.responses.response_state import ResponseState
from sinkstream.server.responses.stored_responses import history_of, opening_of, opening_with
from sinkstream.server.running_replies import in_time, terms_of
from sinkstream.server.service import Service


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, with only its own messages."""

    service: Service
    turn: TurnRequest
    """Its `messages` are the input's."""
    instructions: str | None


def beginning(asked: Asked) -> Callable[[], Turn]:
    """Return a function that begins the turn; calling it blocks.

    It refuses a previous response that does not exist.
    """
    return lambda: _begin(asked)


def _begin(asked: Asked) -> Turn:
    try:
        return asked.service.turns.begin(turn_request(asked))
    except NotFound:
        raise not_found(asked.turn.previous) from None


def count(asked: Asked) -> int:
    """Return the tokens that a request would read, including earlier ones. Blocks."""
    try:
        return asked.service.turns.prompt_tokens(turn_request(asked))
    except NotFound:
        raise not_found(asked.turn.previous) from None


def turn_request(asked: Asked) -> TurnRequest:
    """Return the turn to begin. Blocks.

    Instructions and tools are not carried over: if they differ from the previous ones, or if other
    `sinks` are asked for, the conversation is read again with the new ones.

    Raises:
        ApiError: The previous response is not stored, and differs in one of them.
        NotFound: There is no such previous response.
    """
    turn, previous = asked.turn, asked.turn.previous
    opening = _opening(asked.instructions)
    if previous is None:
        return replace(turn, messages=opening + turn.messages)
    live, turns = asked.service.live, asked.service.turns
    is_unstored = live.is_unstored(turn.tenant, previous)
    before = (
        live.opening_of(turn.tenant, previous)
        if is_unstored
        else opening_of(turns, turn.tenant, previous)
    )
    name = opening_with(asked.instructions, turn.tools, turn.sinks).differs_in(before)
    if name is None:
        return turn
    if is_unstored:
        raise invalid(
            f"body: `{name}` must be the same as in the previous response, because that response "
            "was not stored.",
            name,
        )
    history = history_of(turns, turn.tenant, previous)
    return replace(turn, previous=None, messages=opening + history + turn.messages)


def _opening(instructions: str | None) -> list[dict[str, Any]]:
    return [] if instructions is None else [{"role": "system", "content": instructions}]


def not_found(previous: str | None) -> ApiError:
    """Return the error for a previous response that does not exist."""
    return invalid(
        "body: `previous_response_id` must name a response that is stored, or is in memory and has "
        f"not been continued, but is {(previous or '')[:80]!r}.",
        "previous_response_id",
        "previous_response_not_found",
    )


async def create(
    service: Service,
    body: ResponseRequest,
    log: RequestLog,
    headers: Headers,
    *,
    waited: tuple[float, int] | None = None,
    forks: bool = False,
) -> Live:
    """Return a response that has begun to wait for its turn, or refuse the request.

    It arrived with the request of `log`; or at a time, with a size, in `waited`. With `forks`, a
    previous response that is not stored can be continued a second time, if memory suffices.
    """
    service.check_model(body.model)
    options, names = await service.pool.run_if(body.is_long, partial(_options, service, body))
    tenant = log.tenant
    terms = terms_of(service, log, options, priority=int(bool(body.background)))
    if waited is not None:
        terms = replace(terms, arrived_at=waited[0], size=waited[1])
    async with in_time(terms.arrived_at, terms.timeout_s):
        asked = await asked_of(service, body, tenant, headers)
        tools, thinking = asked.turn.tools, asked.turn.thinking
        given = asked.turn.given
        await service.grammars.compile(service.host, options, names, tools, thinking, given)
    if tools is None:  # after their grammar, which is compiled elsewhere
        check = partial(_check_options, service, options, names)
        await service.pool.run_if(body.is_long, check)
    held_bytes = response_bytes(options)
    _check_previous(service, body, tenant)
    name = new_id("resp")
    describe = partial(_described, service, body, asked, name)
    fields, record = await service.pool.run_if(body.is_long, describe)
    turn = replace(
        asked.turn,
        options=options,
        node=name,
        record=record,
        forks=forks,
        sinks=sinks_of(body),
        refuses_overflow=refuses_overflow_of(service, body),
    )
    asked = replace(asked, turn=turn)
    settings = body.stream_options or StreamSettings()
    state = ResponseState(
        fields,
        tenant,
        len(record),
        tokens=None if "logprobs" not in options else [],
        encodes_thought=ENCRYPTED in (body.include or ()),
        tells_usage=bool(settings.continuous_usage_stats),
        ignored=body.ignored,
    )
    live = Live(Resources(state, service.texts), asked.turn.messages)
    if live.state.is_background and fields["store"]:
        messages = orjson.dumps(asked.turn.messages).decode()
        live.promise = Promise(name, tenant, record, messages)
    task = begin(service, live, beginning(asked), terms, held_bytes)
    await asyncio.wait({task}, timeout=0)  # a server that is full says so now
    if live.promise is not None:
        await live.promised()
    return live


def _options(service: Service, body: ResponseRequest) -> tuple[StreamOptions, dict[str, str]]:
    """Return the options of a response, and its fields by the names of arguments."""
    return options_of(body, service.config.max_tokens), names_in(body)


def _check_options(service: Service, options: StreamOptions, names: dict[str, str]) -> None:
    try:
        service.host.check_options(ReplyOptions(options))
    except Exception as error:
        raise from_exception(error, names) or error from None


def _described(
    service: Service, body: ResponseRequest, asked: Asked, name: str
) -> tuple[dict[str, Any], str]:
    """Return the fields of a response that repeat its request, and what is stored of them."""
    turn = asked.turn
    fields = request_fields_of(service, body, name, store=turn.store)
    is_dropped = turn.given == ""  # an empty message that the reply continues
    return fields, record_of(fields, len(turn.messages) - is_dropped)


async def asked_of(service: Service, body: ReadRequest, tenant: str, headers: Headers) -> Asked:
    """Return what a request reads, or refuse it."""
    check_read(body)
    read = partial(messages_of, body.input)
    find_tools = partial(response_tools, body, service.config.tools)
    tools = await service.pool.run(find_tools) if body.tools else find_tools()
    messages = await service.pool.run_if(body.is_long, read)
    turn = TurnRequest(
        tenant=tenant,
        messages=messages,
        options={},
        previous=body.previous_response_id,
        session_key=session_key(headers, body.prompt_cache_key),
        cache_salt=body.cache_salt or "",
        tools=tools,
        store=body.store is not False and "x-sinkstream-ephemeral" not in headers,
        continue_final=continues_final(
            messages,
            body.continue_final_message,
            by_default=service.config.continue_final_message,
        ),
        thinking=thinking_of_response(service.host, body.reasoning),
    )
    return Asked(service, turn, body.instructions)


def _check_previous(service: Service, body: ResponseRequest, tenant: str) -> None:
    previous = body.previous_response_id
    live = previous and service.live.find(tenant, previous)
    if live and live.state.outcome is None:
        raise invalid(
            "body: `previous_response_id` must name a response that has ended, but it is in "
            "progress.",
            "previous_response_id",
        )
