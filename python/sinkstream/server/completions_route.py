"""`POST /v1/completions`: plain text or token ids, continued."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sinkstream.server import frames, logprobs
from sinkstream.server.answer import Answer
from sinkstream.server.errors import invalid
from sinkstream.server.exchange import exchange_of
from sinkstream.server.generating import Job
from sinkstream.server.identity import check_model, head_of
from sinkstream.server.options import completion_options, names_of, with_seed
from sinkstream.server.parsing import parse
from sinkstream.server.reading import Piece
from sinkstream.server.requests import CompletionRequest
from sinkstream.server.service import Service, ready_service
from sinkstream.server.turns import engine_salt
from sinkstream.server.whole_replies import whole_bytes


async def completions(request: Request) -> Response:
    """Continue one or more prompts."""
    service = ready_service(request)
    exchange = exchange_of(request.scope)
    body = await parse(exchange, service.pool, CompletionRequest)
    check_model(service, body.model)
    options = completion_options(body)
    prompts = _prompts(body)
    n = body.n or 1
    if len(prompts) * n > service.admission.limit:
        name = "n" if len(prompts) == 1 else "prompt"
        raise invalid(
            f"body: `{name}` must ask for at most {service.admission.limit} replies, but asks for "
            f"{len(prompts) * n}.",
            name,
        )
    held = whole_bytes(body, options, len(prompts) * n, "max_tokens")
    names = names_of(body)
    await service.grammars.compile(service.model, options, names)
    salt = engine_salt(exchange.tenant, body.cache_salt or "")
    starts = [
        partial(service.turns.begin_text, prompt, with_seed(options, body.seed, i), salt)
        for prompt in prompts
        for i in range(n)
    ]
    echoes = await service.pool.run(partial(_echoes, service, prompts)) if body.echo else []
    dialect = CompletionDialect(service, body, [text for text in echoes for _ in range(n)])
    job = Job(service, exchange, body, dialect, starts, len(prompts), names, held)
    return Answer(job.run)


class CompletionDialect:
    """Writes `text_completion`, whole and in chunks."""

    def __init__(self, service: Service, body: CompletionRequest, echoes: list[str]) -> None:
        self.head = head_of(service, "text_completion", "cmpl")
        self.chunk_head = self.head
        self._with_ids = bool(body.return_token_ids)
        self._with_logprobs = body.logprobs is not None
        self.with_tokens = self._with_ids or self._with_logprobs
        self._bytes = service.texts.piece
        self._name = logprobs.as_id if body.return_tokens_as_token_ids else logprobs.as_text
        self._echoes = echoes

    def first(self, index: int) -> list[bytes]:
        """Return the prompt, if it is to be repeated."""
        return [frames.completion_text(index, self._echoes[index])] if self._echoes else []

    def piece(self, index: int, piece: Piece, offset: int) -> bytes:
        """Return a choice with text."""
        choice = frames.completion_text(index, piece.text, self._logprobs(piece, offset))
        return frames.with_fields(choice, **self._ids(piece))

    def last(self, index: int, reason: str) -> bytes:
        """Return a choice without text that has the finish reason."""
        return frames.completion_text(index, "", reason=reason)

    def whole(self, index: int, piece: Piece, reason: str) -> dict[str, Any]:
        """Return a choice with its text."""
        return {
            "text": (self._echoes[index] if self._echoes else "") + piece.text,
            "index": index,
            "logprobs": self._logprobs(piece, 0),
            "finish_reason": reason,
            **self._ids(piece),
        }

    def _logprobs(self, piece: Piece, offset: int) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        return logprobs.of_completion(piece.tokens, self._bytes, offset, self._name)

    def _ids(self, piece: Piece) -> dict[str, Any]:
        return {"token_ids": [token.id for token in piece.tokens]} if self._with_ids else {}


def _prompts(body: CompletionRequest) -> list[str | list[int]]:
    prompt: Any = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("body: `prompt` must not be empty.", "prompt")
    return list(prompt) if isinstance(prompt[0], str | list) else [prompt]


def _echoes(service: Service, prompts: list[str | list[int]]) -> list[str]:
    return [
        prompt if isinstance(prompt, str) else service.texts.decode(prompt) for prompt in prompts
    ]
