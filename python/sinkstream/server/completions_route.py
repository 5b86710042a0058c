"""`POST /v1/completions`: plain text or token ids, continued."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sinkstream.conversations.turns import TextRequest, engine_salt
from sinkstream.request.options import StreamOptions
from sinkstream.server import logprobs
from sinkstream.server import server_sent_events as events
from sinkstream.server.admission import echo_bytes, prompt_bytes, whole_bytes
from sinkstream.server.answer import Answer
from sinkstream.server.body_options import (
    completion_options,
    names_of,
    refuses_overflow,
    sinks_of,
    with_seed,
)
from sinkstream.server.errors import invalid
from sinkstream.server.parsing import parse
from sinkstream.server.reply_pieces import Piece
from sinkstream.server.reply_response import Job, form_of
from sinkstream.server.request_bodies import CompletionRequest
from sinkstream.server.request_log import request_log_of
from sinkstream.server.running_replies import in_time, terms_of
from sinkstream.server.service import Service, ready_service
from sinkstream.streams.kept_tokens import ScoredPrompt


async def completions(request: Request) -> Response:
    """Continue one or more prompts."""
    service = ready_service(request)
    log = request_log_of(request.scope)
    body = await parse(log, service.pool, CompletionRequest)
    service.check_model(body.model)
    options, names = await service.pool.run_if(body.is_long, partial(_read, service, body))
    given = prompts = _prompts(body)
    n = body.n or 1
    if len(prompts) * n > service.admission.limit:
        name = "n" if len(prompts) == 1 else "prompt"
        raise invalid(
            f"body: `{name}` must ask for at most {service.admission.limit} replies, but asks for "
            f"{len(prompts) * n}.",
            name,
        )
    held = whole_bytes(body, options, len(prompts) * n, "max_tokens")
    terms = terms_of(service, log, options)
    scored = options.get("prompt_logprobs")
    if scored is not None and scored >= 0:  # less is refused where all callers' values are
        async with in_time(terms.arrived_at, terms.timeout_s):
            prompts = await service.pool.run(partial(_encoded, service, given))
        tokens = sum(map(len, prompts))
        name = "logprobs" if body.echo and body.logprobs is not None else "prompt_logprobs"
        held += prompt_bytes(tokens * n, scored, name)
    async with in_time(terms.arrived_at, terms.timeout_s):
        await service.grammars.compile(service.host, options, names)
    asked = partial(
        TextRequest,
        salt=engine_salt(log.tenant, body.cache_salt or ""),
        sinks=sinks_of(body),
        refuses_overflow=refuses_overflow(body, service.config),
    )
    starts = [
        partial(service.turns.begin_text, asked(prompt, with_seed(options, body.seed, i)))
        for prompt in prompts
        for i in range(n)
    ]
    echoes = await service.pool.run(partial(_echoes, service, given)) if body.echo else []
    held += echo_bytes(sum(map(len, echoes)) * n)
    dialect = CompletionDialect(service, body, [text for text in echoes for _ in range(n)])
    job = Job(service, log, form_of(body), dialect, terms, starts, len(prompts), names, held)
    return Answer(job.run)


def _read(service: Service, body: CompletionRequest) -> tuple[StreamOptions, dict[str, str]]:
    """Return the options of a request, and its fields by the names of arguments."""
    return completion_options(body, service.config.max_tokens), names_of(body)


class CompletionDialect:
    """Writes `text_completion`, whole and in chunks."""

    def __init__(self, service: Service, body: CompletionRequest, echoes: list[str]) -> None:
        self.head = service.head_of("text_completion", "cmpl")
        self.chunk_head = self.head
        self._with_ids = bool(body.return_token_ids)
        self._logprobs_of_each = body.logprobs
        self._prompt_logprobs = body.prompt_logprobs
        self.with_tokens = (
            self._with_ids or body.logprobs is not None or body.prompt_logprobs is not None
        )
        self._texts = service.texts
        by_id = body.return_tokens_as_token_ids
        self._name = logprobs.as_id if by_id else logprobs.as_text_or_bytes
        self._echoes = echoes
        self.is_long = self.with_tokens or bool(echoes)

    def first(self, index: int, prompt: ScoredPrompt) -> list[bytes]:
        """Return the prompt, if it is to be repeated."""
        if not self._echoes:
            return []
        scored = self._of_prompt(prompt)
        return [events.completion_text(index, self._echoes[index], scored)]

    def piece(self, index: int, piece: Piece, offset: int) -> bytes:
        """Return a choice with text."""
        offset += len(self._echo(index))
        choice = events.completion_text(index, piece.text, self._logprobs(piece, offset))
        return events.with_fields(choice, **self._ids(piece))

    def last(self, index: int, reason: str) -> bytes:
        """Return a choice with the finish reason and no text."""
        return events.completion_text(index, "", reason=reason)

    def whole(self, index: int, piece: Piece, reason: str) -> dict[str, Any]:
        """Return a choice with its text."""
        echo = self._echo(index)
        scored = self._logprobs(piece, len(echo))
        if scored is not None and self._echoes and (before := self._of_prompt(piece.prompt)):
            scored = {name: before[name] + scored[name] for name in scored}
        return {
            "text": echo + piece.text,
            "index": index,
            "logprobs": scored,
            "finish_reason": reason,
            **self._by_id(piece),
            **self._ids(piece),
        }

    def _logprobs(self, piece: Piece, offset: int) -> dict[str, Any] | None:
        if self._logprobs_of_each is None:
            return None
        return logprobs.of_completion(piece.tokens, self._texts.piece, offset, self._name)

    def _echo(self, index: int) -> str:
        return self._echoes[index] if self._echoes else ""

    def _of_prompt(self, prompt: ScoredPrompt) -> dict[str, Any] | None:
        """Return `logprobs` of a prompt that is repeated."""
        if self._logprobs_of_each is None:
            return None
        tokens = prompt.tokens
        offsets = self._texts.offsets(token.id for token in tokens)
        return logprobs.of_prompt(
            tokens, self._logprobs_of_each, offsets, self._texts.piece, self._name
        )

    def _by_id(self, piece: Piece) -> dict[str, Any]:
        if self._prompt_logprobs is None:
            return {}
        scored = logprobs.of_prompt_by_id(
            piece.prompt.tokens, self._prompt_logprobs, self._texts.piece
        )
        return {"prompt_logprobs": scored}

    def _ids(self, piece: Piece) -> dict[str, Any]:
        return {"token_ids": [token.id for token in piece.tokens]} if self._with_ids else {}


def _prompts(body: CompletionRequest) -> list[str | list[int]]:
    prompt: Any = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("body: `prompt` must not be empty.", "prompt")
    return list(prompt) if isinstance(prompt[0], str | list) else [prompt]


def _encoded(service: Service, prompts: Sequence[str | list[int]]) -> list[str | list[int]]:
    """Return prompts as token ids: each is encoded once, for all its replies."""
    return [
        service.texts.encode_prompt(prompt) if isinstance(prompt, str) else prompt
        for prompt in prompts
    ]


def _echoes(service: Service, prompts: Sequence[str | list[int]]) -> list[str]:
    return [
        prompt if isinstance(prompt, str) else service.texts.decode(prompt, "prompt")
        for prompt in prompts
    ]
