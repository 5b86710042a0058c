"""Makes a response from a request's body: checked, and ready to begin."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

from starlette.datastructures import Headers

from sinkstream.conversations.node import new_id
from sinkstream.conversations.turns import TurnRequest
from sinkstream.host import ReplyOptions
from sinkstream.server.errors import from_exception, invalid
from sinkstream.server.identity import check_model
from sinkstream.server.requests import StreamSettings
from sinkstream.server.responses.asking import Asked, beginning
from sinkstream.server.responses.echo import echo_of, record_of
from sinkstream.server.responses.items import messages_of
from sinkstream.server.responses.live import Live
from sinkstream.server.responses.producing import begin
from sinkstream.server.responses.requests import (
    ENCRYPTED,
    ReadRequest,
    ResponseRequest,
    check_read,
    names_in,
    options_of,
    response_tools,
)
from sinkstream.server.responses.resource import Resources
from sinkstream.server.responses.state import ResponseState
from sinkstream.server.service import Service
from sinkstream.server.session_key import session_key
from sinkstream.server.thinking import thinking_of_response
from sinkstream.server.whole_replies import response_bytes

_MANY_ITEMS = 256  # more of them are read on the pool


async def create(
    service: Service, body: ResponseRequest, tenant: str, headers: Headers, *, forks: bool = False
) -> Live:
    """Return a response that has begun to wait for its turn.

    Args:
        service: The server.
        body: The request.
        tenant: The tenant that the response belongs to.
        headers: The headers of the request, or of the socket that it came through.
        forks: Whether a previous response that is not stored can be continued a second time, if
            there is memory for both.

    Raises:
        ApiError: The request is refused.
    """
    check_model(service, body.model)
    options = options_of(body, service.config.max_tokens)
    names = names_in(body)
    asked = await asked_of(service, body, tenant, headers)
    tools = asked.turn.tools
    await service.grammars.compile(service.host, options, names, tools)
    try:
        if tools is None:
            service.host.check_options(ReplyOptions(options))
    except Exception as error:
        raise from_exception(error, names) or error from None
    held_bytes = response_bytes(options)
    _check_previous(service, body, tenant)
    name = new_id("resp")
    echo = echo_of(service, body, name, store=asked.turn.store)
    record = record_of(echo, len(asked.turn.messages))
    turn = replace(asked.turn, options=options, node=name, record=record, forks=forks)
    asked = replace(asked, turn=turn, refuses_eviction=body.truncation == "disabled")
    settings = body.stream_options or StreamSettings()
    state = ResponseState(
        echo,
        tenant,
        tokens=None if "logprobs" not in options else [],
        encodes_thought=ENCRYPTED in (body.include or ()),
        tells_usage=bool(settings.continuous_usage_stats),
    )
    live = Live(Resources(state, service.texts.piece), asked.turn.messages)
    task = begin(service, live, beginning(asked), held_bytes)
    await asyncio.wait({task}, timeout=0)  # a server that is full says so now
    return live


async def asked_of(service: Service, body: ReadRequest, tenant: str, headers: Headers) -> Asked:
    """Return what a request reads.

    Raises:
        ApiError: It is refused.
    """
    check_read(body)
    read = partial(messages_of, body.input)
    is_long = not isinstance(body.input, str) and len(body.input) > _MANY_ITEMS
    find_tools = partial(response_tools, body)
    tools = await service.pool.run(find_tools) if body.tools else find_tools()
    turn = TurnRequest(
        tenant=tenant,
        messages=await service.pool.run(read) if is_long else read(),
        options={},
        previous=body.previous_response_id,
        session_key=session_key(headers, body.prompt_cache_key),
        cache_salt=body.cache_salt or "",
        tools=tools,
        store=body.store is not False and "x-sinkstream-ephemeral" not in headers,
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
