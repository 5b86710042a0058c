"""The body of `POST /v1/responses`, and which parts of it are refused."""

from __future__ import annotations

from typing import Any

from sinkstream.request.options import StreamOptions, has_grammar
from sinkstream.request.tools import Tools
from sinkstream.server.errors import invalid, not_supported
from sinkstream.server.options import names_of, response_options
from sinkstream.server.requests import Body, Generation, Objects, Strings
from sinkstream.server.responses.asking import NAMES
from sinkstream.server.structured import Rule, rule_of_format
from sinkstream.server.tools import as_chat_tools, tools_of

LOGPROBS = "message.output_text.logprobs"
"""In `include`: asks for log-probabilities."""
ENCRYPTED = "reasoning.encrypted_content"
"""In `include`: asks for thoughts in a form that is sent back."""
_MAX_PAIRS, _MAX_KEY, _MAX_VALUE = 16, 64, 512  # of `metadata`, as OpenAI has them


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
    cache_salt: str | None = None
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
    """Refuse ways of naming a conversation that this server does not have.

    Raises:
        ApiError: The body has such a field, or nothing to read.
    """
    if body.conversation is not None:
        raise not_supported("a stored conversation", "conversation")
    if body.prompt is not None:
        raise not_supported("a stored prompt", "prompt")
    if not body.input:
        raise invalid("body: `input` must not be empty.", "input")


def options_of(body: ResponseRequest, default_tokens: int) -> StreamOptions:
    """Return the options of a response.

    Raises:
        ApiError: A field has a value that is not allowed or not supported.
    """
    check_read(body)
    _check_metadata(body.metadata)
    if body.truncation not in (None, "auto", "disabled"):
        raise invalid('body: `truncation` must be "auto" or "disabled".', "truncation")
    if body.background and body.store is False:
        raise invalid("body: `background` requires `store` to be true.", "background")
    tokens = default_tokens if body.max_output_tokens is None else body.max_output_tokens
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


def logprobs_of(body: ResponseRequest) -> int | None:
    """Return how many likely tokens are requested at each position; None if none are."""
    if body.top_logprobs:
        return body.top_logprobs
    return 0 if LOGPROBS in (body.include or ()) else None


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
    """Return `text.format` with its defaults, as a response repeats it.

    Raises:
        ApiError: It is not an object.
    """
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


def response_tools(body: ReadRequest) -> Tools | None:
    """Return the tools of a request.

    Raises:
        ApiError: They are malformed, or hosted ones, which this server does not have.
    """
    for tool in body.tools or ():
        if tool.get("type") != "function":
            raise not_supported("a tool that is not a function", "tools")
    return tools_of(as_chat_tools(body.tools), body.tool_choice, body.parallel_tool_calls)
