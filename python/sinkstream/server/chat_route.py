"""`POST /v1/chat/completions`."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sinkstream.conversations.turns import TurnRequest
from sinkstream.request.options import StreamOptions
from sinkstream.request.template_variables import Thinking
from sinkstream.server import logprobs
from sinkstream.server import server_sent_events as events
from sinkstream.server.admission import whole_bytes
from sinkstream.server.answer import Answer
from sinkstream.server.body_options import (
    chat_options,
    continues_final,
    names_of,
    refuses_overflow,
    sinks_of,
    thinking_of_chat,
    tools_of,
    with_seed,
)
from sinkstream.server.errors import invalid
from sinkstream.server.parsing import parse, session_key
from sinkstream.server.reply_pieces import Piece, as_chunk
from sinkstream.server.reply_response import Job, form_of
from sinkstream.server.request_bodies import ChatRequest
from sinkstream.server.request_log import request_log_of
from sinkstream.server.running_replies import in_time, terms_of
from sinkstream.server.service import Service, ready_service
from sinkstream.streams.kept_tokens import ScoredPrompt


async def chat(request: Request) -> Response:
    """Reply to a conversation."""
    service = ready_service(request)
    log = request_log_of(request.scope)
    body = await parse(log, service.pool, ChatRequest)
    service.check_model(body.model)
    options, names, thinking = await service.pool.run_if(
        body.is_long, partial(_read, service, body)
    )
    n = _check_n(service, body.n)
    held = whole_bytes(body, options, n, names["max_tokens"])
    terms = terms_of(service, log, options)
    asked = body.tools, body.tool_choice, body.parallel_tool_calls, service.config.tools
    async with in_time(terms.arrived_at, terms.timeout_s):
        read_tools = partial(tools_of, *asked)
        tools = await service.pool.run_if(bool(body.tools), read_tools)
    is_open = continues_final(
        body.messages,
        body.continue_final_message,
        body.add_generation_prompt,
        by_default=service.config.continue_final_message,
    )
    shared = partial(
        TurnRequest,
        tenant=log.tenant,
        messages=body.messages,
        session_key=session_key(request.headers, body.prompt_cache_key),
        cache_salt=body.cache_salt or "",
        store=body.store is not False and "x-sinkstream-ephemeral" not in request.headers,
        continue_final=is_open,
        sinks=sinks_of(body),
        refuses_overflow=refuses_overflow(body, service.config),
        has_siblings=n > 1,
        thinking=thinking,
        tools=tools,
    )
    turns = [shared(options=with_seed(options, body.seed, i)) for i in range(n)]
    given = await service.pool.run_if(body.is_long, lambda: turns[0].given)
    async with in_time(terms.arrived_at, terms.timeout_s):
        await service.grammars.compile(service.host, options, names, tools, thinking, given)
    starts = [partial(service.turns.begin, turn) for turn in turns]
    dialect = ChatDialect(service, body)
    job = Job(service, log, form_of(body), dialect, terms, starts, names=names, whole_bytes=held)
    return Answer(job.run)


def _read(service: Service, body: ChatRequest) -> tuple[StreamOptions, dict[str, str], Thinking]:
    """Return the options of a request, its fields by the names of arguments, and `thinking`."""
    options = chat_options(body, service.config.max_tokens)
    thinking = thinking_of_chat(service.host, body.chat_template_kwargs, body.reasoning_effort)
    return options, _names(body), thinking


class ChatDialect:
    """Writes `chat.completion` and its chunks."""

    def __init__(self, service: Service, body: ChatRequest) -> None:
        self.head = service.head_of("chat.completion", "chatcmpl")
        self.chunk_head = {**self.head, "object": "chat.completion.chunk"}
        self._with_ids = bool(body.return_token_ids)
        self._with_logprobs = bool(body.logprobs)
        self.with_tokens = self.is_long = self._with_ids or self._with_logprobs
        self._texts = service.texts
        self._name = logprobs.as_id if body.return_tokens_as_token_ids else logprobs.as_text

    def first(self, index: int, prompt: ScoredPrompt) -> list[bytes]:
        """Return the delta with the role."""
        return [events.chat_role(index)]

    def piece(self, index: int, piece: Piece, offset: int) -> bytes:
        """Return a delta with text, or with a thought."""
        if piece.delta is not None:
            return events.chat_call(index, as_chunk(piece.delta))
        if piece.thought:
            choice = events.chat_thought(index, piece.thought)
        else:
            choice = events.chat_text(index, piece.text, self._logprobs(piece))
        return events.with_fields(choice, **self._ids(piece))

    def last(self, index: int, reason: str) -> bytes:
        """Return the empty delta with the finish reason."""
        return events.chat_finish(index, reason)

    def whole(self, index: int, piece: Piece, reason: str) -> dict[str, Any]:
        """Return a choice with its message."""
        message: dict[str, Any] = {"role": "assistant", "content": piece.text, "refusal": None}
        if piece.thought:
            message["reasoning_content"] = piece.thought
        if piece.calls:
            message["content"] = piece.text or None
            message["tool_calls"] = [call.as_message() for call in piece.calls]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(piece),
            "finish_reason": reason,
            **self._ids(piece),
        }

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        return logprobs.of_chat(piece.tokens, self._texts, self._name)

    def _ids(self, piece: Piece) -> dict[str, Any]:
        return {"token_ids": [token.id for token in piece.tokens]} if self._with_ids else {}


def _check_n(service: Service, n: int | None) -> int:
    limit = service.admission.limit
    if n is not None and n > limit:
        raise invalid(f"body: `n` must be at most {limit}, but is {n}.", "n")
    return n or 1


def _names(body: ChatRequest) -> dict[str, str]:
    limit = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    shared = {"prompt": "messages", "max_tokens": limit, "logprobs": "top_logprobs"}
    return {**shared, "thinking": "reasoning_effort", **names_of(body)}
