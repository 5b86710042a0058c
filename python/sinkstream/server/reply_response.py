"""Responds with replies, streamed or whole. Chats and completions differ in their `Dialect`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import orjson

from sinkstream.conversations.turns import Turn, TurnEnd, TurnFacts
from sinkstream.server.answer import send_json
from sinkstream.server.reply_pieces import Piece, pieces, whole
from sinkstream.server.request_bodies import ChatRequest, Generation, StreamSettings
from sinkstream.server.request_log import RequestLog
from sinkstream.server.running_replies import Reply, Start, Terms, running
from sinkstream.server.server_sent_events import EventWriter, Frames, Send
from sinkstream.server.service import Service
from sinkstream.server.usage import (
    cache_facts,
    counts,
    finish_reason,
    own_facts,
    prompt_progress,
    timings_of,
    usage_of,
)
from sinkstream.streams.kept_tokens import ScoredPrompt

_T = TypeVar("_T")


class Dialect(Protocol):
    """How one of OpenAI's APIs writes replies."""

    head: dict[str, Any]
    """Fields of a whole response."""
    chunk_head: dict[str, Any]
    """Fields of each chunk."""
    with_tokens: bool
    """Whether log-probabilities are requested."""
    is_long: bool
    """Whether a whole response, or what precedes a reply, takes long to write."""

    def first(self, index: int, prompt: ScoredPrompt) -> list[bytes]:
        """Return the choices to send before the text of a choice that has begun."""
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


@dataclass(frozen=True, slots=True)
class Form:
    """How a request wants its response: all of its body that is needed once a reply has begun."""

    is_stream: bool
    has_usage: bool
    """Whether the last chunk of a stream has the usage."""
    has_continuous_usage: bool
    """Whether each chunk has the usage so far."""
    has_progress: bool
    has_timings: bool
    has_prediction: bool
    """Whether the usage says how much of what was guessed was right."""


def form_of(body: Generation) -> Form:
    """Return the form that a request asks for."""
    settings = body.stream_options or StreamSettings()
    return Form(
        is_stream=bool(body.stream),
        has_usage=bool(settings.include_usage),
        has_continuous_usage=bool(settings.include_usage and settings.continuous_usage_stats),
        has_progress=bool(body.return_progress),
        has_timings=bool(body.timings_per_token),
        has_prediction=isinstance(body, ChatRequest) and body.prediction is not None,
    )


@dataclass(slots=True)
class Job:
    """A request that has been checked, and what its replies need."""

    service: Service
    log: RequestLog
    form: Form
    dialect: Dialect
    terms: Terms
    starts: Sequence[Start]
    """They hold the request, and each of them until its reply begins."""
    prompts: int = 1
    """The number of different prompts; the choices of each are consecutive."""
    names: dict[str, str] = field(default_factory=dict)
    """The request's fields by the arguments of `Model.stream`."""
    whole_bytes: int = 0
    """Memory that the replies may take if they are not streamed."""

    async def run(self, send: Send) -> None:
        """Generate and send the response."""
        self.log.choices = len(self.starts)
        with self.service.whole_replies.taken(self.whole_bytes, self.log.tenant):
            replies: Sequence[Reply] = ()
            try:
                starts = self._take_starts()
                asked_by = self.log.request_id
                begun = running(self.service, starts, self.terms, self.names, asked_by)
                async with begun as replies:
                    del starts
                    if self.form.is_stream:
                        await _stream(self, replies, send)
                    else:
                        await _whole(self, replies, send)
            finally:
                self.log.queued_s = max((reply.queued_s for reply in replies), default=0.0)
                if not self.log.finish:  # it was not counted to its end: the client may have left
                    _count(self, _ends_of(replies))

    def _take_starts(self) -> Sequence[Start]:
        starts, self.starts = self.starts, ()
        return starts


def _ends_of(replies: Sequence[Reply]) -> list[tuple[TurnFacts, TurnEnd]]:
    """Return how those that have begun have ended."""
    return [
        (reply.begun.facts, reply.ended)
        for reply in replies
        if reply.begun is not None and reply.ended is not None
    ]


def _count(job: Job, ends: Sequence[tuple[TurnFacts, TurnEnd]]) -> dict[str, Any]:
    if not ends:
        return {}
    usage = usage_of(
        ends,
        job.prompts,
        has_prediction=job.form.has_prediction,
        ignored=job.log.ignored,
    )
    job.log.prompt_tokens = usage["prompt_tokens"]
    job.log.generated_tokens = usage["completion_tokens"]
    job.log.note_window(ends)
    job.log.finish = ",".join(sorted({end.finish_reason for _, end in ends}))
    return usage


def headers_of(turn: Turn | None) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers on a conversation and its prompt; none before its turn begins."""
    if turn is None:
        return ()
    facts = turn.facts
    warning = ((b"x-sinkstream-warning", facts.warning.encode()),) if facts.warning else ()
    return (
        (b"x-sinkstream-state", facts.state.encode()),
        (b"x-sinkstream-session", facts.session.encode()),
        (b"x-sinkstream-node", facts.node.encode()),
        (b"x-sinkstream-pinned", str(facts.pinned_tokens).encode()),
        *warning,
    )


async def _all(works: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Return the results of work that runs concurrently; the first failure ends the rest.

    Unlike `asyncio.TaskGroup`, it leaves no reference cycles if it is cancelled.
    """
    if len(works) == 1:
        return [await works[0]]
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if (error := _failure(tasks)) is not None:
            try:
                raise error
            finally:
                del error  # it holds this frame
        return [task.result() for task in tasks]
    finally:
        await _end(tasks)
        tasks.clear()  # a cancellation holds this frame, and a task its error


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended, even if this is cancelled meanwhile."""
    is_cancelled = False
    for task in tasks:
        task.cancel()  # no effect if it has ended
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            is_cancelled = True
    _failure(tasks)  # is known: asyncio would log it
    if is_cancelled:
        raise asyncio.CancelledError


def _failure(tasks: Sequence[asyncio.Task[Any]]) -> BaseException | None:
    """Return the error of the first task that has failed."""
    ended = [task for task in tasks if task.done() and not task.cancelled()]
    errors = [error for task in ended if (error := task.exception()) is not None]
    return errors[0] if errors else None


async def _whole(job: Job, replies: Sequence[Reply], send: Send) -> None:
    results = await _all([_read(job, reply) for reply in replies])
    usage = _count(job, [(turn.facts, end) for _, turn, end in results])
    evicted = str(usage["sinkstream"]["evicted_tokens"]).encode()
    further = _further(job, results[0][1].facts, results[0][2])
    write = partial(
        _written, job.dialect, [(piece, end) for piece, _, end in results], usage=usage, **further
    )
    body = await job.service.pool.run_if(job.dialect.is_long, write)
    headers = (*headers_of(results[0][1]), (b"x-sinkstream-evicted", evicted))
    await send_json(send, body, headers)


def _written(dialect: Dialect, replies: Sequence[tuple[Piece, TurnEnd]], **further: Any) -> bytes:
    choices = [
        dialect.whole(index, piece, finish_reason(end))
        for index, (piece, end) in enumerate(replies)
    ]
    return orjson.dumps({**dialect.head, "choices": choices, **further})


async def _read(job: Job, reply: Reply) -> tuple[Piece, Turn, TurnEnd]:
    """Return one choice, the turn that it is from, and how it ended."""
    turn = await reply.begin()
    assert turn is not None  # it was not to return earlier
    piece = await whole(turn.stream, with_tokens=job.dialect.with_tokens)
    return piece, turn, await reply.end()


async def _stream(job: Job, replies: Sequence[Reply], send: Send) -> None:
    frames = Frames(job.dialect.chunk_head, includes_usage=job.form.has_usage)

    def progress() -> str:
        return progress_of([reply.begun for reply in replies])

    keepalive_s = job.service.config.keepalive_s
    # What is refused is known when a reply begins: the head waits for it, but not for a seat.
    first = await replies[0].begin(within_s=keepalive_s)
    async with EventWriter(send, progress, keepalive_s, headers_of(first)) as writer:
        ends = await _all([_deliver(job, reply, frames, writer) for reply in replies])
        usage = _count(job, ends)
        last = b""
        if job.form.has_usage:
            last = frames.without_choices(usage=usage, **_further(job, *ends[0]))
        await writer.finish(last)


async def _deliver(
    job: Job, reply: Reply, frames: Frames, writer: EventWriter
) -> tuple[TurnFacts, TurnEnd]:
    """Write one choice, and return how it ended."""
    turn = await reply.begin()
    assert turn is not None  # it was not to return earlier
    dialect, continuous = job.dialect, job.form.has_continuous_usage
    if job.form.has_progress:
        async for progress in prompt_progress(turn):
            await writer.write(frames.without_choices(prompt_progress=progress))
    offset, is_begun = 0, False
    flush_s = job.service.config.flush_s
    read = pieces(turn.stream, flush_s, with_tokens=dialect.with_tokens)
    async for piece in read:
        usage = _usage_now(turn) if continuous else None
        choices = [] if is_begun else await _first(job, reply, turn)
        choices.append(dialect.piece(reply.index, piece, offset))
        is_begun = True
        offset += len(piece.text)
        await writer.write(b"".join(frames.with_choice(choice, usage) for choice in choices))
    end = await reply.end()
    last = dialect.last(reply.index, finish_reason(end))
    own = own_facts(turn.facts, end, job.log.ignored)
    usage = _usage_now(turn) if continuous else None
    choices = [] if is_begun else await _first(job, reply, turn)
    begun = b"".join(frames.with_choice(choice, usage) for choice in choices)
    await writer.write(begun + frames.last_of_choice(last, own, usage))
    return turn.facts, end


async def _first(job: Job, reply: Reply, turn: Turn) -> list[bytes]:
    first = partial(job.dialect.first, reply.index, turn.stream.scored_prompt)
    return await job.service.pool.run_if(job.dialect.is_long, first)


def _further(job: Job, facts: TurnFacts, end: TurnEnd) -> dict[str, Any]:
    """Return the requested fields that go next to the usage, for the first choice."""
    return {"timings": timings_of(facts, end)} if job.form.has_timings else {}


def _usage_now(turn: Turn) -> bytes:
    facts, stats = turn.facts, turn.stream.stats
    usage = counts(facts.prompt_tokens, stats.generated_tokens)
    return orjson.dumps({**usage, "sinkstream": cache_facts(facts, stats)})


def progress_of(turns: Sequence[Turn | None]) -> str:
    """Return what a comment says about the reply with the least progress."""
    stats = [turn.stream.stats for turn in turns if turn is not None]
    if len(stats) < len(turns):
        return "queued"
    slowest = min(stats, key=lambda one: one.generated_tokens)
    if slowest.generated_tokens > 0:
        return "generating"
    read = min(slowest.live_tokens + slowest.evicted_tokens, slowest.prompt_tokens)
    return f"prefill {read}/{slowest.prompt_tokens}" if slowest.live_tokens else "queued"
