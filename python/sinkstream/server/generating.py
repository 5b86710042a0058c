"""Answers a request with replies, streamed or whole. Chats and completions differ in `Dialect`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from sinkstream.server.answer import send_json
from sinkstream.server.exchange import Exchange
from sinkstream.server.frames import Frames
from sinkstream.server.reading import Piece, pieces, whole
from sinkstream.server.requests import Generation, StreamSettings
from sinkstream.server.running import Reply, Start, running
from sinkstream.server.service import Service
from sinkstream.server.turns import TurnEnd, TurnFacts
from sinkstream.server.usage import finish_reason, own_facts, usage_of
from sinkstream.server.writer import EventWriter, Send


class Dialect(Protocol):
    """How one of OpenAI's APIs writes replies."""

    head: dict[str, Any]
    """Fields of a whole response."""
    chunk_head: dict[str, Any]
    """Fields of each chunk."""
    with_tokens: bool
    """Whether log-probabilities are asked for."""

    def first(self, index: int) -> list[bytes]:
        """Return the choices that come before the text of a choice."""
        ...

    def piece(self, index: int, piece: Piece, offset: int) -> bytes:
        """Return a choice with text, `offset` characters after its beginning."""
        ...

    def last(self, index: int, reason: str) -> bytes:
        """Return the choice that ends a choice."""
        ...

    def whole(self, index: int, piece: Piece, reason: str) -> dict[str, Any]:
        """Return a choice of a whole response."""
        ...


@dataclass(slots=True)
class Job:
    """A request that has been checked, and what its replies need."""

    service: Service
    exchange: Exchange
    body: Generation
    dialect: Dialect
    starts: Sequence[Start]
    prompts: int = 1
    """Different prompts; the choices of each follow each other."""
    names: dict[str, str] = field(default_factory=dict)
    """Fields of the request by the arguments of `Model.stream`."""

    async def run(self, send: Send) -> None:
        """Generate and send the response."""
        self.exchange.choices = len(self.starts)
        async with running(self.service, self.starts, self.names) as replies:
            if self.body.stream:
                await _stream(self, replies, send)
            else:
                await _whole(self, replies, send)


def _count(job: Job, ends: Sequence[tuple[TurnFacts, TurnEnd]]) -> dict[str, Any]:
    usage = usage_of(ends, job.prompts)
    job.exchange.prompt_tokens = usage["prompt_tokens"]
    job.exchange.generated_tokens = usage["completion_tokens"]
    job.exchange.finish = ",".join(sorted({end.finish_reason for _, end in ends}))
    return usage


def _headers(replies: Sequence[Reply]) -> tuple[tuple[bytes, bytes], ...]:
    facts = replies[0].turn.facts
    return (
        (b"x-sinkstream-state", facts.state.encode()),
        (b"x-sinkstream-session", facts.session.encode()),
    )


async def _whole(job: Job, replies: Sequence[Reply], send: Send) -> None:
    choices, ends = [], []
    for reply in replies:  # all of them are being generated; the native side keeps what is unread
        piece = await whole(reply.turn.stream, with_tokens=job.dialect.with_tokens)
        end = await reply.end()
        choices.append(job.dialect.whole(reply.index, piece, finish_reason(end.finish_reason)))
        ends.append((reply.turn.facts, end))
    usage = _count(job, ends)
    usage["sinkstream"]["finish_reason"] = ends[0][1].finish_reason
    evicted = str(usage["sinkstream"]["evicted_tokens"]).encode()
    body = orjson.dumps({**job.dialect.head, "choices": choices, "usage": usage})
    await send_json(send, body, (*_headers(replies), (b"x-sinkstream-evicted", evicted)))


async def _stream(job: Job, replies: Sequence[Reply], send: Send) -> None:
    settings = job.body.stream_options or StreamSettings()
    frames = Frames(job.dialect.chunk_head, includes_usage=bool(settings.include_usage))

    def progress() -> str:
        return _progress(replies)

    keepalive_s = job.service.config.keepalive_s
    async with EventWriter(send, progress, keepalive_s, _headers(replies)) as writer:
        tasks = [_deliver(job, reply, frames, writer) for reply in replies]
        if len(tasks) == 1:
            ends = [await tasks[0]]
        else:
            async with asyncio.TaskGroup() as group:
                running_tasks = [group.create_task(task) for task in tasks]
            ends = [task.result() for task in running_tasks]
        usage = _count(job, ends)
        await writer.finish(frames.usage(usage) if settings.include_usage else b"")


async def _deliver(
    job: Job, reply: Reply, frames: Frames, writer: EventWriter
) -> tuple[TurnFacts, TurnEnd]:
    """Write one choice, and return how it ended."""
    dialect, stream = job.dialect, reply.turn.stream
    continuous = (job.body.stream_options or StreamSettings()).continuous_usage_stats
    begun = [frames.with_choice(choice) for choice in dialect.first(reply.index)]
    offset = 0
    flush_s = job.service.config.flush_s
    async for piece in pieces(stream, flush_s, with_tokens=dialect.with_tokens):
        usage = _usage_now(reply) if continuous else None
        choice = dialect.piece(reply.index, piece, offset)
        offset += len(piece.text)
        await writer.write(b"".join(begun) + frames.with_choice(choice, usage))
        begun.clear()
    end = await reply.end()
    last = dialect.last(reply.index, finish_reason(end.finish_reason))
    own = {"finish_reason": end.finish_reason, **own_facts(reply.turn.facts, end)}
    await writer.write(b"".join(begun) + frames.last_of_choice(last, own))
    return reply.turn.facts, end


def _usage_now(reply: Reply) -> bytes:
    stats, prompt = reply.turn.stream.stats, reply.turn.facts.prompt_tokens
    generated = stats.generated_tokens
    return orjson.dumps(
        {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
        }
    )


def _progress(replies: Sequence[Reply]) -> str:
    """Return what a comment says of the reply that is the furthest behind."""
    stats = [reply.turn.stream.stats for reply in replies]
    slowest = min(stats, key=lambda one: one.generated_tokens)
    if slowest.generated_tokens > 0:
        return "generating"
    read = min(slowest.live_tokens + slowest.evicted_tokens, slowest.prompt_tokens)
    return f"prefill {read}/{slowest.prompt_tokens}" if slowest.live_tokens else "queued"
