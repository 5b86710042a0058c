"""Anthropic's API: `/v1/messages` and `/v1/messages/count_tokens`.

A request becomes a chat completion, which is answered like any other: as the same conversation,
within the same limits. Only the form of what comes in and goes out is Anthropic's.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import orjson
from pydantic import ConfigDict
from starlette.requests import Request
from starlette.responses import Response

from sinkstream.conversations.turns import Turn, TurnEnd, TurnRequest
from sinkstream.server.answer import json_response
from sinkstream.server.body_options import thinking_of_chat, tools_of
from sinkstream.server.chat_route import reply_to
from sinkstream.server.errors import ApiError, invalid, not_supported, renamed
from sinkstream.server.parsing import parse
from sinkstream.server.reply_pieces import Piece, arguments_of
from sinkstream.server.reply_response import Ended
from sinkstream.server.request_bodies import Body, ChatRequest, Messages, Object, Objects, Strings
from sinkstream.server.request_log import RequestLog, request_log_of
from sinkstream.server.response_forms import ANTHROPIC, event
from sinkstream.server.responses.items import decode_thought, encode_thought
from sinkstream.server.service import Service, ready_service
from sinkstream.server.usage import cached_tokens, exact_reason, own_facts
from sinkstream.text.messages import ToolCall

_NAMES = {
    "prompt": "messages",
    "stop": "stop_sequences",
    "max_completion_tokens": "max_tokens",
    "parameters": "input_schema",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "reasoning_effort": "output_config.effort",
    **dict.fromkeys(("response_format", "schema"), "output_config.format"),
}
"""The request's fields by those of a chat completion and by the arguments of `Model.stream`."""
_ROLES = ("assistant", "system", "user")
_REASONS = {"stop": "end_turn", "stop_string": "stop_sequence", "tool_calls": "tool_use"}
_MEDIA = ("document", "image", "search_result")
# Clients of Anthropic's own service put its header into the prompt; it differs in each request.
_BILLING = "x-anthropic-billing-header:"
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


# ---- bodies --------------------------------------------------------------------------------------


class _Described(Body):
    """A body whose fields are described where they are declared."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class OutputConfig(_Described):
    """`output_config`."""

    effort: str | None = None
    """How much a reasoning model thinks, where its chat template has levels."""
    format: Object | None = None
    """What the reply must follow: the type `json_schema` with a `schema`."""


class ThinkingConfig(_Described):
    """`thinking`."""

    type: str
    """`disabled` asks a reasoning model not to think, any other word to do so."""
    display: str | None = None
    """If `omitted`, thoughts are returned only in a form that can be sent back."""


class ToolChoice(_Described):
    """`tool_choice`."""

    type: str
    """`auto`, `any`, `none`, or `tool`, which must be called."""
    name: str | None = None
    """The name of that tool."""
    disable_parallel_tool_use: bool | None = None
    """Whether a reply calls at most one tool."""


class CountRequest(_Described):
    """The body of `POST /v1/messages/count_tokens`."""

    messages: Messages
    """The conversation: objects with `role` and `content`, a string or blocks: `text`, `thinking`,
    `tool_use`, `tool_result`. If the last one is the assistant's, the reply continues it."""
    model: str | None = None
    """The model's name; any name is accepted unless the server was started with
    `--strict-model`."""
    system: str | Objects | None = None
    """The system prompt: a string, or text blocks."""
    tools: Objects | None = None
    """Tools that the model may call, with `name`, `description` and `input_schema`; at most
    128."""
    tool_choice: ToolChoice | None = None
    """Whether tools are called."""
    thinking: ThinkingConfig | None = None
    """Whether a reasoning model thinks, where its chat template has a switch."""
    output_config: OutputConfig | None = None
    """What the reply must follow, and how much a model thinks."""
    cache_control: Object | None = None
    """Accepted, but has no effect: what was read before is never read again."""


class MessageRequest(CountRequest):
    """The body of `POST /v1/messages`."""

    max_tokens: int
    """Maximum number of tokens to generate. At most 65,536 without `stream`."""
    stream: bool | None = None
    """Whether the reply is sent as server-sent events while it is generated."""
    stop_sequences: Strings | None = None
    """Up to 64 strings that end the reply, and are not part of it."""
    temperature: float | None = None
    """Divides the logits; 0 takes the most probable token. Default: the checkpoint's."""
    top_k: int | None = None
    """Keeps this many of the most probable tokens; 0 keeps all."""
    top_p: float | None = None
    """Keeps the most probable tokens whose probabilities add up to this number."""
    metadata: Object | None = None
    """Accepted, but has no effect."""
    service_tier: str | None = None
    """Accepted, but has no effect."""


# ---- requests ------------------------------------------------------------------------------------


async def create_message(request: Request) -> Response:
    """Reply to a conversation, as Anthropic's API does."""
    service, log = ready_service(request), request_log_of(request.scope)
    body = await parse(log, service.pool, MessageRequest)
    chat = await service.pool.run_if(body.is_long, partial(_translated, log, body))
    dialect = partial(_Dialect, service, log, body)
    return await reply_to(service, log, request.headers, chat, dialect, _NAMES)


async def count_tokens(request: Request) -> Response:
    """Count the tokens that a message would read, those that are not read again included."""
    service, log = ready_service(request), request_log_of(request.scope)
    body = await parse(log, service.pool, CountRequest)
    service.check_model(body.model)

    def counted() -> dict[str, Any]:
        try:
            chat = _translated(log, body)
            turn = TurnRequest(
                log.tenant,
                chat.messages,
                {},
                continue_final=bool(chat.continue_final_message),
                thinking=thinking_of_chat(
                    service.host, chat.chat_template_kwargs, chat.reasoning_effort
                ),
                tools=tools_of(chat.tools, chat.tool_choice, None, service.config.tools),
            )
        except ApiError as error:
            raise renamed(error, _NAMES) from None
        return {"input_tokens": service.turns.prompt_tokens(turn)}

    return json_response(service, log, counted, _NAMES)


def _translated(log: RequestLog, body: CountRequest) -> ChatRequest:
    """Return a request as a chat completion."""
    messages, ignored = _messages(body)
    log.ignored = (*log.ignored, *ignored)
    choice = body.tool_choice
    fields: dict[str, Any] = {
        "messages": messages,
        "model": body.model,
        "tools": None if body.tools is None else [_tool(tool) for tool in body.tools],
        "tool_choice": None if choice is None else _choice(choice),
        "continue_final_message": (
            messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
        ),
    }
    if choice is not None and choice.disable_parallel_tool_use is not None:
        fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    if body.thinking is not None:
        is_on = body.thinking.type != "disabled"
        fields["chat_template_kwargs"] = {"enable_thinking": is_on}
    if body.output_config is not None:
        fields["reasoning_effort"] = body.output_config.effort
        fields["response_format"] = _format(body.output_config.format)
    if isinstance(body, MessageRequest):
        for name in ("max_tokens", "stream", "temperature", "top_k", "top_p"):
            fields[name] = getattr(body, name)
        fields["stop"] = body.stop_sequences
    return body.as_kind(ChatRequest, **fields)


def _format(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if given is None:
        return None
    if given.get("type") != "json_schema" or not isinstance(given.get("schema"), dict):
        raise invalid(
            'body: `output_config.format` must have the type "json_schema" and a `schema`.',
            "output_config.format",
        )
    return {"type": "json_schema", "json_schema": {"schema": given["schema"]}}


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool in OpenAI's form; refuse those that are not described by a schema."""
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise not_supported(f"a tool of the type {str(kind)[:40]!r}", "tools")
    names = {"name": "name", "description": "description", "input_schema": "parameters",
             "strict": "strict"}  # fmt: skip
    found = {ours: tool[theirs] for theirs, ours in names.items() if theirs in tool}
    return {"type": "function", "function": found}


def _choice(choice: ToolChoice) -> str | dict[str, Any]:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    if choice.type not in _CHOICES:
        raise invalid(
            'body: `tool_choice.type` must be "any", "auto", "none" or "tool", but is '
            f'"{choice.type[:40]}".',
            "tool_choice",
        )
    return _CHOICES[choice.type]


# ---- messages ------------------------------------------------------------------------------------


def _messages(body: CountRequest) -> tuple[list[dict[str, Any]], list[str]]:
    """Return messages in OpenAI's form, and the names of what of them has no effect.

    Messages of the user or of the assistant that follow each other are one, as Anthropic says.
    """
    messages: list[dict[str, Any]] = []
    if body.system:
        system = [
            part
            for part in _blocks(body.system, "system")
            if not _text(part, "system").startswith(_BILLING)
        ]
        if system:
            messages.append({"role": "system", "content": _parts(system, "system")})
    reader = _Reader(messages)
    for index, message in enumerate(body.messages):
        reader.read(message, f"messages.{index}")
    return messages, sorted(reader.ignored)


class _Reader:
    """Adds messages to a list of those in OpenAI's form."""

    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self._messages = messages
        self.ignored: set[str] = set()

    def read(self, message: Mapping[str, Any], where: str) -> None:
        """Add a message."""
        role = message.get("role")
        if role not in _ROLES:
            raise invalid(
                f"body: `{where}.role` must be one of {', '.join(_ROLES)}, but is "
                f"{repr(role)[:40]}.",
                f"{where}.role",
            )
        blocks = _blocks(message.get("content"), f"{where}.content")
        if role == "assistant":
            self._read_reply(blocks, f"{where}.content")
        else:
            self._read_asked(role, blocks, f"{where}.content")

    def _read_asked(self, role: str, blocks: Sequence[Mapping[str, Any]], where: str) -> None:
        texts: list[Mapping[str, Any]] = []
        for index, block in enumerate(blocks):
            if block.get("type") == "tool_result" and role == "user":
                if texts:
                    self._add_text(role, texts, where)
                texts = []
                self._read_result(block, f"{where}.{index}")
            else:
                texts.append(block)
        if texts or not blocks:
            self._add_text(role, texts, where)

    def _add_text(self, role: str, blocks: Sequence[Mapping[str, Any]], where: str) -> None:
        last = self._messages[-1] if self._messages else {}
        parts = _parts(blocks, where)
        if role == "user" and last.get("role") == "user":
            last["content"] = _as_list(last["content"]) + _as_list(parts)
        else:
            self._messages.append({"role": role, "content": parts})

    def _read_result(self, block: Mapping[str, Any], where: str) -> None:
        content = block.get("content")
        parts = "" if content is None else _parts(_blocks(content, where), f"{where}.content")
        if block.get("is_error"):
            self.ignored.add("messages.content.is_error")
        call_id = _string(block, "tool_use_id", where)
        self._messages.append({"role": "tool", "tool_call_id": call_id, "content": parts})

    def _read_reply(self, blocks: Sequence[Mapping[str, Any]], where: str) -> None:
        text, thought, calls = "", "", list[dict[str, Any]]()
        for index, block in enumerate(blocks):
            at, kind = f"{where}.{index}", block.get("type")
            if kind == "thinking":
                thought += _thought(block, at)
            elif kind == "tool_use":
                calls.append(_call(block, at))
            elif kind != "redacted_thinking":  # not from here: nothing can read it
                text += _text(block, at)
        last = self._messages[-1] if self._messages else {}
        if last.get("role") != "assistant":
            last = {"role": "assistant", "content": ""}
            self._messages.append(last)
        last["content"] += text
        if thought:
            last["reasoning_content"] = last.get("reasoning_content", "") + thought
        if calls:
            last.setdefault("tool_calls", []).extend(calls)


def _blocks(content: Any, where: str) -> list[Mapping[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(block, Mapping) for block in content):
        raise invalid(f"body: `{where}` must be a string or an array of blocks.", where)
    return content


def _parts(blocks: Sequence[Mapping[str, Any]], where: str) -> str | list[dict[str, Any]]:
    """Return the text of blocks: one string, or parts with a line each."""
    texts = [_text(block, f"{where}.{index}") for index, block in enumerate(blocks)]
    if len(texts) <= 1:
        return "".join(texts)
    return [{"type": "text", "text": text} for text in texts]


def _as_list(parts: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": parts}] if isinstance(parts, str) else parts


def _text(block: Mapping[str, Any], where: str) -> str:
    kind = block.get("type")
    if kind in _MEDIA:
        raise not_supported(f'"{kind}"', where)
    if kind != "text":
        raise invalid(
            f"body: `{where}.type` must be one that this server supports there, but is "
            f"{repr(kind)[:40]}.",
            where,
            "unsupported",
        )
    return _string(block, "text", where)


def _thought(block: Mapping[str, Any], where: str) -> str:
    """Return the thought of a block: shown, or only in its signature."""
    thought = _string(block, "thinking", where)
    signature = block.get("signature")
    if thought or not isinstance(signature, str):
        return thought
    return decode_thought(signature) or ""


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise invalid(f"body: `{where}.input` must be an object.", f"{where}.input")
    text = orjson.dumps(arguments).decode()
    name, call_id = _string(block, "name", where), _string(block, "id", where)
    return ToolCall(call_id, name, text).as_message()


def _string(block: Mapping[str, Any], name: str, where: str) -> str:
    found = block.get(name)
    if not isinstance(found, str):
        raise invalid(f"body: `{where}.{name}` must be a string.", f"{where}.{name}")
    return found


# ---- responses -----------------------------------------------------------------------------------


class _Dialect:
    """Writes a reply as Anthropic's API does: in blocks of one kind, one after another."""

    form = ANTHROPIC
    has_progress = has_prediction = is_long = False

    def __init__(self, service: Service, log: RequestLog, body: MessageRequest) -> None:
        self.is_stream = bool(body.stream)
        self._stops = body.stop_sequences or []
        # Which one has ended the reply is found by its last tokens, if it is one of several.
        self.with_tokens = len(self._stops) > 1
        longest = max((len(stop.encode()) for stop in self._stops), default=0)
        self._last_ids: deque[int] = deque(maxlen=longest + 1)
        self._hides_thoughts = body.thinking is not None and body.thinking.display == "omitted"
        self._texts = service.texts
        self._log = log
        self._head = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": service.config.model_name,
        }
        self._count = 0
        """Blocks that have begun."""
        self._kind = ""
        """That of the block that is open; "" if none is."""
        self._thought = ""
        """What has been thought in the open block, if it is hidden."""

    def progress(self, progress: dict[str, Any]) -> bytes:
        """Return nothing: there is no such event."""
        return b""

    def first(self, index: int, turn: Turn) -> bytes:
        """Return the event with the message that begins."""
        facts, stats = turn.facts, turn.stream.stats
        cached = min(cached_tokens(facts, stats), facts.prompt_tokens)
        message: dict[str, Any] = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(facts.prompt_tokens, cached, 1),
        }
        return _event("message_start", message=message)

    def piece(self, index: int, turn: Turn, piece: Piece, offset: int) -> bytes:
        """Return the events for a piece."""
        self._last_ids.extend(token.id for token in piece.tokens)
        if (call := piece.delta) is not None:
            if call.begun is not None:
                return self._begin("tool_use", id=call.begun.id, name=call.begun.name, input={})
            return self._delta("input_json_delta", partial_json=call.arguments)
        if piece.thought:
            begun = b""
            if self._kind != "thinking":
                begun = self._begin("thinking", thinking="", signature="")
            if self._hides_thoughts:
                self._thought += piece.thought
                return begun
            return begun + self._delta("thinking_delta", thinking=piece.thought)
        if not piece.text:
            return b""
        begun = b"" if self._kind == "text" else self._begin("text", text="")
        return begun + self._delta("text_delta", text=piece.text)

    def last(self, index: int, turn: Turn, end: TurnEnd) -> bytes:
        """Return the end of the last block."""
        return self._end_block()

    def finish(self, ended: Ended, usage: dict[str, Any]) -> bytes:
        """Return the events that end the message."""
        delta = self._stop(ended[1])
        whole = _event("message_delta", delta=delta, usage=self._usage(ended, usage))
        return whole + _event("message_stop")

    def whole(self, replies: Sequence[tuple[Piece, Ended]], usage: dict[str, Any]) -> bytes:
        """Return the message."""
        ((piece, ended),) = replies
        self._last_ids.extend(token.id for token in piece.tokens)
        return orjson.dumps(
            {
                **self._head,
                "content": list(self._content(piece)),
                **self._stop(ended[1]),
                "usage": self._usage(ended, usage),
            }
        )

    def _content(self, piece: Piece) -> Iterator[dict[str, Any]]:
        if piece.thought:
            hidden = self._hides_thoughts
            yield {
                "type": "thinking",
                "thinking": "" if hidden else piece.thought,
                "signature": encode_thought(piece.thought if hidden else ""),
            }
        if piece.text:
            yield {"type": "text", "text": piece.text}
        for call in piece.calls:
            yield {
                "type": "tool_use", "id": call.id, "name": call.name, "input": arguments_of(call)
            }  # fmt: skip

    def _begin(self, kind: str, **fields: Any) -> bytes:
        before = self._end_block()
        self._kind, self._count = kind, self._count + 1
        block = {"type": kind, **fields}
        return before + self._event("content_block_start", content_block=block)

    def _delta(self, kind: str, **fields: Any) -> bytes:
        return self._event("content_block_delta", delta={"type": kind, **fields})

    def _end_block(self) -> bytes:
        if not self._kind:
            return b""
        signed = b""
        if self._kind == "thinking":
            thought, self._thought = self._thought, ""
            signed = self._delta("signature_delta", signature=encode_thought(thought))
        self._kind = ""
        return signed + self._event("content_block_stop")

    def _event(self, kind: str, **fields: Any) -> bytes:
        return _event(kind, index=self._count - 1, **fields)

    def _stop(self, end: TurnEnd) -> dict[str, Any]:
        reason = exact_reason(end)
        found = self._found_stop() if reason == "stop_string" else None
        return {"stop_reason": _REASONS.get(reason, "max_tokens"), "stop_sequence": found}

    def _found_stop(self) -> str | None:
        """Return the stop sequence that has ended the reply."""
        if len(self._stops) <= 1:
            return next(iter(self._stops), None)
        said = b"".join(map(self._texts.piece, self._last_ids))
        ends = {
            stop: at + len(stop.encode())
            for stop in self._stops
            if (at := said.find(stop.encode())) >= 0
        }
        return min(ends, key=lambda stop: (ends[stop], -len(stop)), default=None)

    def _usage(self, ended: Ended, usage: Mapping[str, Any]) -> dict[str, Any]:
        facts, end = ended
        thoughts = {"thinking_tokens": end.thought_tokens}
        details = {"output_tokens_details": thoughts} if end.thought_tokens else {}
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            **_usage(facts.prompt_tokens, cached, usage["completion_tokens"]),
            **details,
            "sinkstream": own_facts(facts, end, self._log.ignored),
        }


def _usage(prompt: int, cached: int, generated: int) -> dict[str, Any]:
    """Return the counts of tokens; `prompt` includes those that were `cached`."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": generated,
    }


def _event(kind: str, **fields: Any) -> bytes:
    return event(orjson.dumps({"type": kind, **fields}), kind.encode())
