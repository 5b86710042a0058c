"""Ollama's API: `/api/chat` and `/api/generate`, and what its clients ask about models.

A request becomes a chat completion, which is answered like any other: as the same conversation,
within the same limits. Only the form of what comes in and goes out is Ollama's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
from pydantic import ConfigDict
from starlette.requests import Request
from starlette.responses import Response

from sinkstream import _build
from sinkstream.checkpoint.describe import describe
from sinkstream.conversations.turns import NotFound, Turn, TurnEnd, TurnFacts, TurnRequest
from sinkstream.server import logprobs
from sinkstream.server.answer import Answer, json_response, send_json
from sinkstream.server.chat_route import reply_to
from sinkstream.server.completions_route import complete
from sinkstream.server.errors import ApiError, invalid, not_supported
from sinkstream.server.parsing import parse
from sinkstream.server.reply_pieces import CallDelta, Piece, arguments_of
from sinkstream.server.reply_response import Ended
from sinkstream.server.request_bodies import (
    Body,
    ChatRequest,
    CompletionRequest,
    Ids,
    Object,
    Objects,
    Strings,
)
from sinkstream.server.request_log import RequestLog, request_log_of
from sinkstream.server.response_forms import OLLAMA
from sinkstream.server.service import Service, ready_service
from sinkstream.server.usage import cached_tokens, finish_reason, own_facts, timings_of
from sinkstream.structured.schemas import closed
from sinkstream.text.messages import ToolCall, numbered_id

API_VERSION = "0.12.6"
"""The version of Ollama whose API this is: clients look whether it has what they need."""
REFUSED = (
    "/api/blobs/{name:path}", "/api/copy", "/api/create", "/api/delete", "/api/embed",
    "/api/embeddings", "/api/pull", "/api/push",
)  # fmt: skip
"""Paths of what this server does not do."""
_TAG = ":latest"
_NEVER = "9999-12-31T23:59:59Z"
_SAME = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty",
         "seed", "stop")  # fmt: skip
_OPTIONS = {
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    **dict(zip(_SAME, _SAME, strict=True)),
}
"""The fields of a chat completion by Ollama's options."""
_NAMES = {
    **{field: f"options.{option}" for option, field in _OPTIONS.items()},
    **dict.fromkeys(("response_format", "schema"), "format"),
    **dict.fromkeys(("reasoning_effort", "thinking"), "think"),
    "logprobs": "top_logprobs",
    "on_overflow": "truncate",
}
"""The request's fields by those of a chat completion and by the arguments of `Model.stream`."""


# ---- bodies --------------------------------------------------------------------------------------


class _Described(Body):
    """A body whose fields are described where they are declared."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class OllamaOptions(_Described):
    """`options`. Those that are not here have no effect, and the response names them."""

    temperature: float | None = None
    """Divides the logits; 0 takes the most probable token."""
    top_k: int | None = None
    """Keeps this many of the most probable tokens; 0 keeps all."""
    top_p: float | None = None
    """Keeps the most probable tokens whose probabilities add up to this number."""
    min_p: float | None = None
    """Drops tokens less probable than this share of the most probable one."""
    seed: int | None = None
    """Makes the reply reproducible; -1: random."""
    num_predict: int | None = None
    """Maximum number of tokens to generate. Default, and if negative: the server's
    `--max-tokens`."""
    num_ctx: int | None = None
    """Has no effect: the server's window is fixed. The response names it if it asks for more."""
    stop: str | Strings | None = None
    """A string, or a list of up to 64, that ends the reply and is not part of it."""
    repeat_penalty: float | None = None
    """For tokens in the cache: divides positive logits by this number, and multiplies others."""
    presence_penalty: float | None = None
    """Subtracted from the logit of each token in the cache."""
    frequency_penalty: float | None = None
    """Subtracted from a token's logit for each of its occurrences in the cache."""


class _Request(_Described):
    """What chats and completions have in common."""

    model: str | None = None
    """The model's name, with or without `:latest`; any name is accepted unless the server was
    started with `--strict-model`."""
    stream: bool | None = None
    """Whether the reply is sent as lines of JSON while it is generated. Default: true."""
    format: str | Object | None = None
    """What the reply must follow: `json`, for any JSON object, or a JSON schema."""
    options: OllamaOptions | None = None
    """How to generate."""
    think: bool | str | None = None
    """Whether a reasoning model thinks, or how much, where its chat template has a switch."""
    keep_alive: float | str | None = None
    """Accepted, but has no effect: the model stays loaded."""
    truncate: bool | None = None
    """If false, a prompt that is longer than sinks and window together is refused."""
    logprobs: bool | None = None
    """Whether each token comes with its log-probability."""
    top_logprobs: int | None = None
    """How many of the most probable tokens to return for each token; needs `logprobs`."""


class OllamaChat(_Request):
    """The body of `POST /api/chat`."""

    messages: Objects | None = None
    """The conversation: objects with `role`, `content`, `thinking`, `tool_calls`, and `tool_name`.
    Images are refused. Without messages, the response says that the model is loaded."""
    tools: Objects | None = None
    """Functions that the model may call; at most 128."""


class OllamaGenerate(_Request):
    """The body of `POST /api/generate`."""

    prompt: str | None = None
    """A user's message; with `raw`, text to continue. Without it, the response says that the model
    is loaded."""
    system: str | None = None
    """A system message. With `context`, the conversation keeps the one that it began with."""
    context: Ids | None = None
    """What an earlier response returned as `context`: the prompt continues that conversation."""
    raw: bool | None = None
    """Whether the prompt is continued as it is, without a chat template."""
    images: Strings | None = None
    """Refused: only text is supported."""
    suffix: str | None = None
    """Refused: text after the reply is not supported."""


class OllamaShow(_Described):
    """The body of `POST /api/show`."""

    model: str | None = None
    """The model's name."""
    name: str | None = None
    """The same, under its earlier name."""
    verbose: bool | None = None
    """Accepted, but has no effect."""


# ---- replies -------------------------------------------------------------------------------------


async def chat(request: Request) -> Response:
    """Reply to a conversation, as Ollama does."""
    service, log = ready_service(request), request_log_of(request.scope)
    body = await parse(log, service.pool, OllamaChat)
    _check_model(service, body.model)
    if not body.messages:
        return _loaded(service, body, {"message": {"role": "assistant", "content": ""}})
    translate = partial(_messages, body.messages)
    messages, calls = await service.pool.run_if(body.is_long, translate)
    dialect = partial(_Dialect, service, log, body, _as_message)
    chat = _translated(service, log, body, messages=messages, tools=body.tools)
    begin = partial(_begin, service, first_call=calls)
    names = {"prompt": "messages", **_NAMES}
    return await reply_to(service, log, request.headers, chat, dialect, names, begin=begin)


async def generate(request: Request) -> Response:
    """Reply to a prompt, or continue text, as Ollama does."""
    service, log = ready_service(request), request_log_of(request.scope)
    body = await parse(log, service.pool, OllamaGenerate)
    _check_model(service, body.model)
    if body.images:
        raise not_supported("an image", "images")
    if body.suffix:
        raise not_supported("text after the reply", "suffix")
    if not body.prompt:
        return _loaded(service, body, {"response": ""})
    dialect = partial(_Dialect, service, log, body, _as_response)
    if body.raw:
        return await _continue_text(service, log, body, dialect)
    messages = [{"role": "user", "content": body.prompt}]
    if body.system and not body.context:
        messages.insert(0, {"role": "system", "content": body.system})
    elif body.system:
        log.ignored = (*log.ignored, "system")
    names = {**_NAMES, "messages": "prompt", "previous": "context"}
    chat = _translated(service, log, body, messages=messages)
    previous = _turn_of(body.context) if body.context else None
    begin = partial(_begin, service)
    return await reply_to(
        service, log, request.headers, chat, dialect, names, previous=previous, begin=begin
    )


async def _continue_text(
    service: Service, log: RequestLog, body: OllamaGenerate, dialect: Callable[[], _Dialect]
) -> Answer:
    if body.system or body.context:
        raise invalid("body: `raw` must be false with `system` or `context`.", "raw")
    completion = _translated(service, log, body, CompletionRequest, prompt=body.prompt)
    return await complete(service, log, completion, lambda echoes: dialect(), _NAMES)


def _translated(
    service: Service,
    log: RequestLog,
    body: _Request,
    kind: type[Any] = ChatRequest,
    **given: Any,
) -> Any:
    """Return a request as a chat completion, or as a completion of text."""
    options = body.options or OllamaOptions()
    if options.num_ctx is not None and options.num_ctx > service.model.capacity.tokens:
        log.ignored = (*log.ignored, "options.num_ctx")
    fields = {field: getattr(options, option) for option, field in _OPTIONS.items()}
    if options.num_predict is not None and options.num_predict < 0:
        fields["max_tokens"] = None
    if fields["max_tokens"] is None:
        fields["max_tokens"] = service.config.max_tokens
    if body.truncate is False:
        fields["on_overflow"] = "refuse"
    if kind is ChatRequest:
        last = given["messages"][-1]
        fields |= {
            "logprobs": body.logprobs,
            "top_logprobs": body.top_logprobs if body.logprobs else None,
            "continue_final_message": last.get("role") == "assistant" and "tool_calls" not in last,
            "reasoning_effort": body.think if isinstance(body.think, str) else None,
        }
        if isinstance(body.think, bool):
            fields["chat_template_kwargs"] = {"enable_thinking": body.think}
    elif body.logprobs:
        fields["logprobs"] = body.top_logprobs or 0
    return body.as_kind(
        kind, stream=body.stream is not False, response_format=_format(body), **fields, **given
    )


def _format(body: _Request) -> dict[str, Any] | None:
    """Return what a reply must follow, in OpenAI's form."""
    if isinstance(body.format, dict):
        return {"type": "json_schema", "json_schema": {"schema": closed(body.format)}}
    if body.format == "json":
        return {"type": "json_object"}
    if not body.format:
        return None
    raise invalid('body: `format` must be "json" or a JSON schema.', "format")


def _check_model(service: Service, name: str | None) -> None:
    service.check_model(None if name is None else name.removesuffix(_TAG))


def _begin(service: Service, request: TurnRequest, first_call: int = 0) -> Turn:
    """Begin a turn whose calls have numbers: clients need not send ids back."""
    try:
        turn = service.turns.begin(request)
    except NotFound:
        raise _no_context() from None
    turn.stream.first_call = first_call
    return turn


def _turn_of(context: Sequence[int]) -> str:
    """Return the turn that a `context` names."""
    try:
        return bytes(context).decode("ascii")
    except ValueError:
        raise _no_context() from None


def _no_context() -> ApiError:
    return invalid(
        "body: `context` must be what this server returned, for a conversation that it still has. "
        "Leave it out to begin a new one.",
        "context",
    )


def _messages(given: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Return messages in OpenAI's form, and how many calls they have.

    Calls without an id have their number as one. A result without an id is that of the first call
    with its name, or else of the first one, that has no result yet.
    """
    messages: list[dict[str, Any]] = []
    count, open_calls = 0, list[ToolCall]()
    for i, message in enumerate(given):
        where = f"messages.{i}"
        if message.get("images"):
            raise not_supported("an image", f"{where}.images")
        for name in ("content", "thinking"):
            if not isinstance(message.get(name) or "", str):
                raise invalid(f"body: `{where}.{name}` must be a string.", f"{where}.{name}")
        said: dict[str, Any] = {
            "role": message.get("role"),
            "content": message.get("content") or "",
        }
        if message.get("thinking"):
            said["reasoning_content"] = message["thinking"]
        if calls := message.get("tool_calls"):
            open_calls = _calls(calls, count, f"{where}.tool_calls")
            count += len(open_calls)
            said["tool_calls"] = [call.as_message() for call in open_calls]
        if said["role"] == "tool":
            said |= _answered(message, open_calls)
        messages.append(said)
    return messages, count


def _calls(given: Any, first: int, where: str) -> list[ToolCall]:
    if not isinstance(given, list):
        raise invalid(f"body: `{where}` must be an array.", where)
    calls = []
    for number, call in enumerate(given, first):
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if function is None or not isinstance(name, str):
            raise invalid(f"body: `{where}` must have functions with a `name`.", where)
        arguments = function.get("arguments") or {}
        if not isinstance(arguments, str):
            arguments = orjson.dumps(arguments).decode()
        call_id = call.get("id")
        is_named = isinstance(call_id, str) and call_id != ""
        calls.append(ToolCall(call_id if is_named else numbered_id(number), name, arguments))
    return calls


def _answered(message: Mapping[str, Any], open_calls: list[ToolCall]) -> dict[str, Any]:
    """Return which call a message has the result of; it is no longer open then."""
    name, call_id = message.get("tool_name") or message.get("name"), message.get("tool_call_id")
    found = next(
        (call for call in open_calls if call.id == call_id),
        next(
            (call for call in open_calls if not call_id and call.name == name),
            open_calls[0] if open_calls and not call_id else None,
        ),
    )
    if found is not None:
        open_calls.remove(found)
        call_id = found.id
    return {"tool_call_id": call_id or numbered_id(0), **({"name": name} if name else {})}


# ---- responses -----------------------------------------------------------------------------------


def _as_message(text: str, thought: str = "", calls: Iterable[dict[str, Any]] = ()) -> Any:
    """Return what a reply says, in the form of `/api/chat`."""
    said = {"role": "assistant", "content": text, **({"thinking": thought} if thought else {})}
    found = list(calls)
    return {"message": {**said, **({"tool_calls": found} if found else {})}}


def _as_response(text: str, thought: str = "", calls: Iterable[dict[str, Any]] = ()) -> Any:
    """Return what a reply says, in the form of `/api/generate`, which has no tools."""
    return {"response": text, **({"thinking": thought} if thought else {})}


class _Dialect:
    """Writes replies as Ollama does. A call is sent when it is complete."""

    form = OLLAMA
    has_progress = has_prediction = False

    def __init__(
        self, service: Service, log: RequestLog, body: _Request, said: Callable[..., Any]
    ) -> None:
        self.is_stream = body.stream is not False
        self.with_tokens = self.is_long = bool(body.logprobs)
        self._texts = service.texts
        self._model = _name(service)
        self._log = log
        self._said = said
        self._open: ToolCall | None = None
        """The call that is being generated."""
        self._index = -1
        """Its index."""

    def progress(self, progress: dict[str, Any]) -> bytes:
        """Return nothing: Ollama has no such line."""
        return b""

    def first(self, index: int, turn: Turn) -> bytes:
        """Return nothing: the first line has text."""
        return b""

    def piece(self, index: int, turn: Turn, piece: Piece, offset: int) -> bytes:
        """Return a line with text, with a thought, or with the call before one that has begun."""
        if piece.delta is not None:
            return self._follow(piece.delta)
        return self._line(self._said(piece.text, piece.thought), self._logprobs(piece))

    def last(self, index: int, turn: Turn, end: TurnEnd) -> bytes:
        """Return the final record."""
        return self._called() + self._line(self._said(""), self._end((turn.facts, end)))

    def finish(self, ended: Ended, usage: dict[str, Any]) -> bytes:
        """Return nothing: the final record has the counts."""
        return b""

    def whole(self, replies: Sequence[tuple[Piece, Ended]], usage: dict[str, Any]) -> bytes:
        """Return the reply and the final record in one."""
        ((piece, ended),) = replies
        calls = (_as_call(call, i) for i, call in enumerate(piece.calls))
        said = self._said(piece.text, piece.thought, calls)
        return self._line(said, {**self._logprobs(piece), **self._end(ended)})

    def _follow(self, delta: CallDelta) -> bytes:
        if delta.begun is None:
            assert self._open is not None
            self._open.arguments += delta.arguments
            return b""
        before = self._called()
        self._open, self._index = delta.begun, delta.index
        return before

    def _called(self) -> bytes:
        """Return a line with the call that has been generated, if there is one."""
        call, self._open = self._open, None
        return (
            b"" if call is None else self._line(self._said("", "", [_as_call(call, self._index)]))
        )

    def _line(self, said: Mapping[str, Any], further: Mapping[str, Any] | None = None) -> bytes:
        head = {"model": self._model, "created_at": _now()}
        return orjson.dumps({**head, **said, "done": False, **(further or {})}) + b"\n"

    def _logprobs(self, piece: Piece) -> dict[str, Any]:
        if not self.with_tokens or not piece.tokens:
            return {}
        return {"logprobs": logprobs.of_response(piece.tokens, self._texts)}

    def _end(self, ended: Ended) -> dict[str, Any]:
        facts, end = ended
        times = timings_of(facts, end)
        total, prompt, reply = (
            int(seconds * 1e9)
            for seconds in (
                time.monotonic() - self._log.arrived_at,
                times["prompt_ms"] / 1000,
                times["predicted_ms"] / 1000,
            )
        )
        context = {"context": list(end.node.encode())} if self._said is _as_response else {}
        return {
            "done": True,
            "done_reason": "length" if finish_reason(end) == "length" else "stop",
            **(context if end.node else {}),
            "total_duration": total,
            "load_duration": max(0, total - prompt - reply),
            "prompt_eval_count": facts.prompt_tokens,
            "prompt_eval_duration": prompt,
            "eval_count": end.stats.generated_tokens,
            "eval_duration": reply,
            "sinkstream": self._own(facts, end),
        }

    def _own(self, facts: TurnFacts, end: TurnEnd) -> dict[str, Any]:
        cached = min(cached_tokens(facts, end.stats), facts.prompt_tokens)
        return {"cached_tokens": cached, **own_facts(facts, end, self._log.ignored)}


def _as_call(call: ToolCall, index: int) -> dict[str, Any]:
    """Return a call in Ollama's form."""
    function = {"index": index, "name": call.name, "arguments": arguments_of(call)}
    return {"id": call.id, "function": function}


def _loaded(service: Service, body: _Request, said: Mapping[str, Any]) -> Answer:
    """Return the response to a request that only loads the model, or unloads it."""
    is_unloaded = body.keep_alive in (0, "0", "0s")
    line = {
        "model": _name(service),
        "created_at": _now(),
        **said,
        "done": True,
        "done_reason": "unload" if is_unloaded else "load",
    }
    return Answer(lambda send: send_json(send, orjson.dumps(line)))


# ---- models --------------------------------------------------------------------------------------


async def tags(request: Request) -> Response:
    """List the model that is served, as Ollama lists those that it has."""
    service, log = ready_service(request), request_log_of(request.scope)
    return json_response(service, log, lambda: {"models": [_entry(service)]})


async def ps(request: Request) -> Response:
    """List the model that is served, as Ollama lists those in memory."""
    service, log = ready_service(request), request_log_of(request.scope)
    return json_response(service, log, lambda: {"models": [_running(service)]})


async def show(request: Request) -> Response:
    """Describe the model that is served, as Ollama does."""
    service, log = ready_service(request), request_log_of(request.scope)
    body = await parse(log, service.pool, OllamaShow)
    _check_model(service, body.model or body.name)
    return json_response(service, log, partial(_shown, service))


async def version(request: Request) -> dict[str, str]:
    """Return the version of Ollama whose API this is, and the version of the package."""
    return {"version": API_VERSION, "sinkstream": _build.version()}


async def refuse(request: Request) -> Response:
    """Refuse what changes models, and embeddings: the server has one model, which writes text."""
    path = request.url.path
    is_embedding = path.startswith("/api/embed")
    what = "embedding text" if is_embedding else "changing a server's models"
    raise ApiError(
        400,
        "invalid_request_error",
        "unsupported",
        f"server: {what} is not supported, so there is no {path}. "
        "The server has the one model that it was started with, which generates text.",
    )


def _name(service: Service) -> str:
    """Return the model's name with a tag, as Ollama's have one."""
    name = service.config.model_name
    return name if ":" in name else name + _TAG


def _entry(service: Service) -> dict[str, Any]:
    path = Path(service.model.path)
    return {
        "name": _name(service),
        "model": _name(service),
        "modified_at": datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(),
        "size": describe(path).file_bytes,
        "digest": sha256(service.fingerprint.encode()).hexdigest(),
        "details": _details(service),
        "capabilities": _capabilities(service),
    }


def _running(service: Service) -> dict[str, Any]:
    capacity = service.model.capacity
    size = capacity.weight_bytes + capacity.cache_bytes + capacity.scratch_bytes
    entry = {name: value for name, value in _entry(service).items() if name != "modified_at"}
    return {
        **entry,
        "size": size,
        "size_vram": size if service.model.runtime["device"] == "cuda" else 0,
        "expires_at": _NEVER,
        "context_length": capacity.tokens,
    }


def _details(service: Service) -> dict[str, Any]:
    path, family = Path(service.model.path), service.model.spec.family
    found = describe(path)
    return {
        "parent_model": "",
        "format": "safetensors" if path.is_dir() else "gguf",
        "family": family,
        "families": [family],
        "parameter_size": _human(found.parameters),
        "quantization_level": found.quantization or "",
    }


def _shown(service: Service) -> dict[str, Any]:
    spec, found = service.model.spec, describe(Path(service.model.path))
    sampling = asdict(service.host.defaults)
    names = {field: option for option, field in _OPTIONS.items()}
    family = spec.family
    return {
        "modelfile": "",
        "parameters": "\n".join(f"{names[name]} {value:g}" for name, value in sampling.items()),
        "template": service.texts.template or "",
        "details": _details(service),
        "model_info": {
            "general.architecture": family,
            "general.basename": service.config.model_name,
            "general.parameter_count": found.parameters,
            f"{family}.block_count": spec.layers,
            f"{family}.context_length": service.max_model_len,
            f"{family}.embedding_length": spec.hidden_size,
        },
        "capabilities": _capabilities(service),
        "modified_at": _entry(service)["modified_at"],
    }


def _capabilities(service: Service) -> list[str]:
    has_thoughts = service.host.formats.tags(None) is not None
    has_tools = service.texts.template is not None and service.config.tools in ("native", "generic")
    return ["completion", *["tools"] * has_tools, *["thinking"] * has_thoughts]


def _human(count: int) -> str:
    for unit, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= unit:
            return f"{count / unit:.4g}{letter}"
    return str(count)


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
