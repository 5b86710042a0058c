"""Turns the fields of a request into arguments of `Model.stream`: options, thinking and tools.

What is not supported is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from sinkstream.errors import InvalidArgument
from sinkstream.host import Host
from sinkstream.request.options import SAME_AS, SAMPLING, StreamOptions
from sinkstream.request.template_variables import (
    EFFORT,
    KWARGS,
    OWN_FIELDS,
    SWITCHES,
    Thinking,
    check_thinking,
    reads_thinking,
    with_variables,
)
from sinkstream.request.tools import Tools, check_tools
from sinkstream.server.config import OVERFLOW, ServerConfig
from sinkstream.server.errors import from_exception, invalid, not_supported
from sinkstream.server.reply_rules import rule_of
from sinkstream.server.request_bodies import (
    ChatRequest,
    CompletionRequest,
    Generation,
    Prediction,
)
from sinkstream.sessions.pinned import Sinks, check_sinks
from sinkstream.text.messages import text_of_parts
from sinkstream.text.templates.chat_template import compile_template

_logger = logging.getLogger("sinkstream.server")
MAX_STOPS = 64
# A reply that is not streamed is held in memory as a whole.
MAX_WHOLE_TOKENS = 65536
# Of a wrong key in an error, and of wrong keys.
_SHOWN, _SHOWN_KEYS = 40, 8
COMPLETION_TOKENS = 16
"""OpenAI's default for completions."""

NO_LIMIT = -1
ANY_SEED = -1
"""Asks for a random one, as in llama.cpp and vLLM."""
_COPIED = (*SAMPLING, "speculation", "timeout_s")
_TOOL_FIELDS = ("tool_choice", "parallel_tool_calls", "tools")


def chat_options(body: ChatRequest, default_tokens: int) -> StreamOptions:
    """Return the options of a chat completion; refuse fields that are not supported."""
    _check_chat(body)
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    options = _common(body, name, or_default(getattr(body, name), default_tokens))
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("body: `top_logprobs` requires `logprobs` to be true.", "top_logprobs")
    if body.top_logprobs is not None:
        options["logprobs"] = body.top_logprobs
    if body.prediction is not None:
        options["prediction"] = _predicted(body.prediction)
    return options


def _predicted(prediction: Prediction) -> str:
    """Return the text of a prediction, which is encoded where the reply begins."""
    if prediction.type != "content":
        raise invalid(
            f'body: `prediction.type` must be "content", but is "{prediction.type[:_SHOWN]}".',
            "prediction",
        )
    content = prediction.content
    if isinstance(content, str):
        return content
    for i, part in enumerate(content):
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise invalid(
                f'body: `prediction.content.{i}` must have the `type` "text" and a string as '
                "`text`. Only text is supported.",
                "prediction",
            )
    return text_of_parts(content)


def completion_options(body: CompletionRequest, default_tokens: int) -> StreamOptions:
    """Return the options of a completion; refuse fields that are not supported."""
    if body.suffix:
        raise not_supported("text after the completion", "suffix")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise not_supported("a choice among more replies than `n`", "best_of")
    given = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    tokens = or_default(given, default_tokens)
    options = _common(body, "max_tokens", tokens)
    if body.logprobs is not None:
        options["logprobs"] = body.logprobs
    if (scored := _prompt_logprobs(body)) is not None:
        options["prompt_logprobs"] = scored
    return options


def _prompt_logprobs(body: CompletionRequest) -> int | None:
    """Return how many alternatives to give for each prompt token; None if it is not scored."""
    if body.prompt_logprobs is not None and body.stream:
        raise invalid(
            "body: `prompt_logprobs` requires `stream` to be false. Set `echo` and `logprobs` to "
            "stream the log-probabilities of the prompt.",
            "prompt_logprobs",
        )
    of_echo = body.logprobs if body.echo else None
    asked = [count for count in (of_echo, body.prompt_logprobs) if count is not None]
    if not asked:
        return None
    return min(asked) if min(asked) < 0 else max(asked)


def response_options(body: Generation, tokens: int, logprobs: int | None) -> StreamOptions:
    """Return the options of a response, whose text is always held in full."""
    options = _common(body, "max_output_tokens", tokens)
    _check_whole("max_output_tokens", tokens)
    if logprobs is not None:
        options["logprobs"] = logprobs
    return with_seed(options, body.seed, 0)


def with_seed(options: StreamOptions, seed: int | None, index: int) -> StreamOptions:
    """Return the options of one of several choices: with a seed, choice i uses seed + i."""
    return options if seed in (None, ANY_SEED) else {**options, "seed": (seed + index) % 2**64}


def names_of(body: Generation) -> dict[str, str]:
    """Map options to the request fields that they come from, where the names differ."""
    followed = rule_of(body)
    return {} if followed is None else {followed[1][0]: followed[0]}


def _common(body: Generation, tokens_name: str, max_tokens: int) -> StreamOptions:
    _check_common(body)
    if not body.stream:
        _check_whole(tokens_name, max_tokens, " without `stream`")
    options: Any = {name: _same(name, getattr(body, name)) for name in _COPIED}
    options["max_tokens"] = max_tokens
    options["priority"] = body.priority or 0
    options["stop"] = [body.stop] if isinstance(body.stop, str) else body.stop or []
    options["stop_token_ids"] = body.stop_token_ids or []
    options["ignore_eos"] = bool(body.ignore_eos)
    options["logit_bias"] = _bias(body.logit_bias)
    if (followed := rule_of(body)) is not None:
        option, value = followed[1]
        options[option] = value
    chosen: StreamOptions = options
    return chosen


def _same(name: str, value: float | None) -> float | None:
    """Return the value of an option that a field means, in the words of some engine."""
    return value if value is None else SAME_AS.get(name, {}).get(value, value)


def or_default(tokens: int | None, default: int) -> int:
    """Return a limit of tokens; -1 asks for none of its own, as in LM Studio and llama.cpp."""
    return default if tokens is None or tokens == NO_LIMIT else tokens


def _check_whole(name: str, tokens: int, when: str = "") -> None:
    if tokens > MAX_WHOLE_TOKENS:
        raise invalid(
            f"body: `{name}` must be at most {MAX_WHOLE_TOKENS}{when}, but is {tokens}.", name
        )


def _bias(bias: dict[str, float] | None) -> dict[int, float] | None:
    """Return a bias with ids instead of JSON's keys, which are strings."""
    if bias is None:
        return None
    wrong = [key for key in bias if not (key.isascii() and key.isdigit() and len(key) < 20)]
    if wrong:
        shown = ", ".join(f'"{key[:_SHOWN]}"' for key in wrong[:_SHOWN_KEYS])
        raise invalid(
            f"body: each key of `logit_bias` must be a token id, but these are not: {shown}.",
            "logit_bias",
        )
    return {int(key): value for key, value in bias.items()}


def _check_common(body: Generation) -> None:
    if body.stream_options is not None and not body.stream:
        raise invalid("body: `stream_options` requires `stream` to be true.", "stream_options")
    if isinstance(body.stop, list) and len(body.stop) > MAX_STOPS:
        raise invalid(
            f"body: `stop` must have at most {MAX_STOPS} strings, but has {len(body.stop)}.", "stop"
        )
    if body.seed is not None and not -(2**63) <= body.seed < 2**64:
        raise invalid("body: `seed` must be a 64-bit integer.", "seed")


def _check_chat(body: ChatRequest) -> None:
    if body.audio is not None:
        raise not_supported("sound", "audio")
    if any(kind != "text" for kind in body.modalities or ()):
        raise not_supported('a modality other than "text"', "modalities")
    if body.web_search_options is not None:
        raise not_supported("search", "web_search_options")
    if body.functions:
        raise not_supported("the old form of `tools`", "functions")
    if body.function_call not in (None, "none", "auto"):
        raise not_supported("a forced function call", "function_call")


def sinks_of(body: Generation) -> Sinks:
    """Return what a request pins; None for what the server pins."""
    try:
        return check_sinks(body.sinks, "body")
    except InvalidArgument as error:
        raise invalid(str(error), error.param) from None


def refuses_overflow(body: Generation, config: ServerConfig) -> bool:
    """Return whether a request is refused if the model cannot see all of its prompt."""
    if body.on_overflow is None:
        return config.refuses_overflow
    if body.on_overflow not in OVERFLOW:
        raise invalid(
            'body: `on_overflow` must be "evict" or "refuse", but is '
            f"{body.on_overflow[:_SHOWN]!r}.",
            "on_overflow",
        )
    return body.on_overflow == "refuse"


def continues_final(
    messages: Sequence[Mapping[str, Any]] | None,
    said: bool | None,
    prompted: bool | None = None,
    *,
    by_default: bool,
) -> bool:
    """Return whether a conversation's last message is the beginning of the reply.

    Args:
        messages: The conversation.
        said: The request's `continue_final_message`, which comes first.
        prompted: Its `add_generation_prompt`.
        by_default: The server's setting, for conversations that end with the assistant's text.

    Raises:
        ApiError: The request asks for another message as well.
    """
    if said and prompted:
        raise invalid(
            "body: `add_generation_prompt` must not be true with `continue_final_message`.",
            "add_generation_prompt",
        )
    if said is not None or prompted is not None or not by_default:
        return bool(said)
    last = messages[-1] if messages else {}
    return last.get("role") == "assistant" and not last.get("tool_calls")


def thinking_of_chat(
    host: Host, kwargs: dict[str, Any] | None, effort: str | None = None
) -> Thinking:
    """Return what a request says, with further variables of the model's chat template.

    What the template does not read is ignored, like fields that the server does not know.
    """
    kwargs = kwargs or {}
    effort = kwargs.get(EFFORT, effort)
    switch = next((kwargs[name] for name in SWITCHES if name in kwargs), None)
    _check_type(effort, str, EFFORT, KWARGS)
    _check_type(switch, bool, "enable_thinking", KWARGS)
    thinking, read = _as_the_template_reads(host, effort, switch, EFFORT)
    own = (*SWITCHES, EFFORT, *OWN_FIELDS)
    named = {k: v for k, v in kwargs.items() if k in OWN_FIELDS or k in read - {*own}}
    try:
        return with_variables(thinking, named, "body")
    except InvalidArgument as error:
        raise invalid(str(error), error.param) from None


def thinking_of_response(host: Host, reasoning: dict[str, Any] | None) -> Thinking:
    """Return what the `reasoning` of a response says, in the same way."""
    effort = (reasoning or {}).get("effort")
    _check_type(effort, str, "effort", "reasoning")
    return _as_the_template_reads(host, effort, None, "reasoning")[0]


def _as_the_template_reads(
    host: Host, effort: str | None, switch: bool | None, field: str
) -> tuple[bool | str | None, frozenset[str]]:
    """Return `thinking` if the model's chat template reads it; and the variables that it reads."""
    try:
        check_thinking(effort, "body")
    except InvalidArgument as error:
        raise from_exception(error, {"thinking": field}) or error from None
    source = host.text.chat_template
    names = frozenset[str]() if source is None else compile_template(source).variables
    if effort == "none" or switch is False:
        return False if reads_thinking(names, False) else None, names
    if effort is not None and reads_thinking(names, effort):
        return effort, names
    return switch if reads_thinking(names, switch) else None, names


def _check_type(value: Any, kind: type, name: str, param: str) -> None:
    if value is not None and not isinstance(value, kind):
        word = "a string" if kind is str else "true or false"
        raise invalid(f"body: `{name}` in `{param}` must be {word}.", param)


def tools_of(
    tools: Any, tool_choice: Any, parallel_tool_calls: bool | None, way: str
) -> Tools | None:
    """Return the tools of a request, in the form of chat completions; None if it has none.

    `way` is the setting `tools`.
    """
    if tools and way == "refuse":
        raise invalid("body: `tools` must be empty: this server does not use tools.", "tools")
    if tools and way == "ignore":
        _log_ignored()
        return None
    try:
        found = check_tools(tools, tool_choice, parallel_tool_calls, call="body")
    except InvalidArgument as error:
        raise invalid(str(error), error.param) from None
    except TypeError as error:
        param = next(name for name in _TOOL_FIELDS if f"`{name}`" in str(error))
        raise invalid(str(error), param) from None
    return found and replace(found, is_generic=way == "generic")


@cache
def _log_ignored() -> None:
    _logger.warning("tools: requests have tools, which are ignored, as --tools says")


def as_chat_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Return the functions of the Responses API in the form of chat completions."""
    return [
        {
            "type": tool.get("type"),
            "function": {name: value for name, value in tool.items() if name != "type"},
        }
        for tool in tools or ()
    ]
