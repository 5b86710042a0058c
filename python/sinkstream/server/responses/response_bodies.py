"""The body of `POST /v1/responses`: what of it is refused, and what a response repeats of it."""

from __future__ import annotations

import time
from typing import Any

import orjson

from sinkstream.request.options import StreamOptions, has_grammar
from sinkstream.request.tools import Tools
from sinkstream.server.body_options import (
    as_chat_tools,
    names_of,
    or_default,
    refuses_overflow,
    response_options,
    sinks_of,
    tools_of,
)
from sinkstream.server.config import NO_STORE
from sinkstream.server.errors import invalid, not_supported
from sinkstream.server.reply_rules import Rule, rule_of_format
from sinkstream.server.request_bodies import Body, Generation, Objects, Salt, Strings
from sinkstream.server.service import Service

NAMES = {
    "prompt": "input",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "previous": "previous_response_id",
    "thinking": "reasoning",
    "on_overflow": "truncation",
}
"""The request's fields by the arguments of `Model.stream`, for errors."""
LOGPROBS = "message.output_text.logprobs"
"""In `include`: asks for log-probabilities."""
ENCRYPTED = "reasoning.encrypted_content"
"""In `include`: asks for thoughts in a form that is sent back."""
_MAX_PAIRS, _MAX_KEY, _MAX_VALUE = 16, 64, 512  # of `metadata`, as in OpenAI's API
_NAMES = ("user", "safety_identifier")
"""Strings that a response repeats, and that nothing reads: no model's window bounds them."""
_FUNCTION = {"type": "function", "name": "", "description": None, "parameters": None}


class ReadRequest(Body):
    """What is read before a reply; all of `POST /v1/responses/input_tokens`."""

    model: str | None = None
    input: str | Objects
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None
    prompt_cache_key: str | None = None
    reasoning: dict[str, Any] | None = None
    cache_salt: Salt | None = None
    continue_final_message: bool | None = None
    store: bool | None = None
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None


class ResponseRequest(Generation, ReadRequest):
    """The body of `POST /v1/responses`, and of `response.create` on a socket."""

    background: bool | None = None
    include: Strings | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    text: dict[str, Any] | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    user: str | None = None


def check_read(body: ReadRequest) -> None:
    """Refuse ways of naming a conversation that this server does not have, and an empty input."""
    if body.conversation is not None:
        raise not_supported("a stored conversation", "conversation")
    if body.prompt is not None:
        raise not_supported("a stored prompt", "prompt")
    if not body.input:
        raise invalid("body: `input` must not be empty.", "input")


def options_of(body: ResponseRequest, default_tokens: int) -> StreamOptions:
    """Return the options of a response; refuse fields that are not supported."""
    check_read(body)
    _check_names(body)
    _check_metadata(body.metadata)
    if body.truncation not in (None, "auto", "disabled"):
        raise invalid('body: `truncation` must be "auto" or "disabled".', "truncation")
    if body.background and body.store is False:
        raise invalid("body: `background` requires `store` to be true.", "background")
    tokens = or_default(body.max_output_tokens, default_tokens)
    options: Any = response_options(body, tokens, logprobs_of(body))
    if (rule := _rule_of(body)) is not None:
        if has_grammar(options):
            other = next(iter(names_of(body).values()))
            raise invalid(
                f"body: `text.format` and `{other}` may not be given together.", "text.format"
            )
        options[rule[0]] = rule[1]
    chosen: StreamOptions = options
    return chosen


def refuses_overflow_of(service: Service, body: ResponseRequest) -> bool:
    """Return whether a prompt that is longer than the window is an error."""
    if body.truncation is not None:
        return body.truncation == "disabled"
    return refuses_overflow(body, service.config)


def logprobs_of(body: ResponseRequest) -> int | None:
    """Return how many likely tokens are requested at each position; None if none are."""
    if body.top_logprobs:
        return body.top_logprobs
    return 0 if LOGPROBS in (body.include or ()) else None


def _check_names(body: ResponseRequest) -> None:
    for name in _NAMES:
        length = len(getattr(body, name) or "")
        if length > _MAX_VALUE:
            raise invalid(
                f"body: `{name}` must have at most {_MAX_VALUE} characters, but has {length}.", name
            )


def _check_metadata(metadata: dict[str, Any] | None) -> None:
    for key, value in (metadata or {}).items():
        if len(key) > _MAX_KEY or not isinstance(value, str) or len(value) > _MAX_VALUE:
            raise invalid(
                f"body: `metadata` must have keys of at most {_MAX_KEY} characters, and strings of "
                f"at most {_MAX_VALUE} as values.",
                "metadata",
            )
    if len(metadata or ()) > _MAX_PAIRS:
        raise invalid(f"body: `metadata` must have at most {_MAX_PAIRS} keys.", "metadata")


def format_of(body: ResponseRequest) -> dict[str, Any]:
    """Return `text.format` with its defaults, as a response repeats it."""
    form = (body.text or {}).get("format")
    if form is None:
        return {"type": "text"}
    if not isinstance(form, dict):
        raise invalid("body: `text.format` must be an object.", "text.format")
    if form.get("type") != "json_schema":
        return form
    return {"name": "", "description": None, "strict": False, **form}


def _rule_of(body: ResponseRequest) -> Rule | None:
    return rule_of_format(format_of(body), "text.format")


def names_in(body: ResponseRequest) -> dict[str, str]:
    """Map the arguments of `Model.stream` to the request's fields, for errors."""
    rule = _rule_of(body)
    return {**NAMES, **names_of(body), **({rule[0]: "text.format"} if rule else {})}


def response_tools(body: ReadRequest, way: str) -> Tools | None:
    """Return the tools of a request; refuse hosted ones, which this server does not have.

    `way` is the setting `tools`.
    """
    for tool in body.tools or ():
        if tool.get("type") != "function" and way != "ignore":
            raise not_supported("a tool that is not a function", "tools")
    return tools_of(as_chat_tools(body.tools), body.tool_choice, body.parallel_tool_calls, way)


def request_fields_of(
    service: Service, body: ResponseRequest, name: str, *, store: bool
) -> dict[str, Any]:
    """Return the fields of the response `name` that do not change. `store`: the client's wish."""
    defaults = service.host.defaults
    tools = () if service.config.tools == "ignore" else body.tools or ()
    return {
        "id": name,
        "object": "response",
        "created_at": int(time.time()),
        "background": bool(body.background),
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": service.config.model_name,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "presence_penalty": _or(body.presence_penalty, defaults.presence_penalty),
        "frequency_penalty": _or(body.frequency_penalty, defaults.frequency_penalty),
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": (body.reasoning or {}).get("effort"), "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": store and service.config.store != NO_STORE,
        "temperature": _or(body.temperature, defaults.temperature),
        "text": {"format": format_of(body)},
        "tool_choice": body.tool_choice or "auto",
        "tools": [{**_FUNCTION, "strict": None, **tool} for tool in tools],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": _or(body.top_p, defaults.top_p),
        # OpenAI's default is "disabled"; here, tokens leave the window unless that is asked for.
        "truncation": "disabled" if refuses_overflow_of(service, body) else "auto",
        "user": body.user,
        **({} if body.sinks is None else {"sinks": sinks_of(body)}),
    }


def _or(value: float | None, default: float) -> float:
    return float(default if value is None else value)


def record_of(fields: dict[str, Any], messages: int) -> str:
    """Return what is stored of a request in addition to its messages, whose number is given."""
    return orjson.dumps({"echo": fields, "messages": messages}).decode()
