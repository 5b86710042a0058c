"""Responds with replies, streamed or whole. Protocols differ in their `Dialect`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from sinkstream.conversations.turns import Turn, TurnEnd, TurnFacts
from sinkstream.server.answer import send_json
from sinkstream.server.reply_pieces import Piece, pieces, whole
from sinkstream.server.request_log import RequestLog
from sinkstream.server.response_forms import ResponseForm
from sinkstream.server.running_replies import Reply, Start, Terms, running
from sinkstream.server.service import Service
from sinkstream.server.stream_writer import Send, StreamWriter
from sinkstream.server.usage import prompt_progress, usage_of

_T = TypeVar("_T")
Ended = tuple[TurnFacts, TurnEnd]
"""What is known of a reply from its beginning, and how it ended."""


class Dialect(Protocol):
    """How a protocol writes the replies of one request. Those of one prompt are its choices."""

    form: ResponseForm
    is_stream: bool
    with_tokens: bool
    """Whether log-probabilities are requested."""
    is_long: bool
    """Whether a whole response, or what precedes a reply, takes long to write."""
    has_progress: bool
    """Whether a stream says how much of a prompt has been read."""
    has_prediction: bool
    """Whether the usage says how much of what was guessed was right."""

    def progress(self, progress: dict[str, Any]) -> bytes:
        """Return the part of a stream that says how much of a prompt has been read."""
        ...

    def first(self, index: int, turn: Turn) -> bytes:
        """Return what precedes the text of a choice that has begun."""
        ...

    def piece(self, index: int, turn: Turn, piece: Piece, offset: int) -> bytes:
        """Return what says a piece of a choice, `offset` characters after its beginning."""
        ...

    def last(self, index: int, turn: Turn, end: TurnEnd) -> bytes:
        """Return what ends a choice."""
        ...

    def finish(self, ended: Ended, usage: dict[str, Any]) -> bytes:
        """Return what follows all choices of a stream; `ended` is how the first one has."""
        ...

    def whole(self, replies: Sequence[tuple[Piece, Ended]], usage: dict[str, Any]) -> bytes:
        """Return a whole response as JSON."""
        ...


@dataclass(slots=True)
class Job:
    """A request that has been checked, and what its replies need."""

    service: Service
    log: RequestLog
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
                    if self.dialect.is_stream:
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


def _ends_of(replies: Sequence[Reply]) -> list[Ended]:
    """Return how those that have begun have ended."""
    return [
        (reply.begun.facts, reply.ended)
        for reply in replies
        if reply.begun is not None and reply.ended is not None
    ]


def _count(job: Job, ends: Sequence[Ended]) -> dict[str, Any]:
    if not ends:
        return {}
    usage = usage_of(
        ends,
        job.prompts,
        has_prediction=job.dialect.has_prediction,
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
    found = [(piece, (turn.facts, end)) for piece, turn, end in results]
    usage = _count(job, [ended for _, ended in found])
    evicted = str(usage["sinkstream"]["evicted_tokens"]).encode()
    write = partial(job.dialect.whole, found, usage)
    body = await job.service.pool.run_if(job.dialect.is_long, write)
    headers = (*headers_of(results[0][1]), (b"x-sinkstream-evicted", evicted))
    await send_json(send, body, headers)


async def _read(job: Job, reply: Reply) -> tuple[Piece, Turn, TurnEnd]:
    """Return one choice, the turn that it is from, and how it ended."""
    turn = await reply.begin()
    assert turn is not None  # it was not to return earlier
    piece = await whole(turn.stream, with_tokens=job.dialect.with_tokens)
    return piece, turn, await reply.end()


async def _stream(job: Job, replies: Sequence[Reply], send: Send) -> None:
    def progress() -> str:
        return progress_of([reply.begun for reply in replies])

    keepalive_s, form = job.service.config.keepalive_s, job.dialect.form
    # What is refused is known when a reply begins: the head waits for it, but not for a seat.
    first = await replies[0].begin(within_s=keepalive_s)
    async with StreamWriter(send, form, progress, keepalive_s, headers_of(first)) as writer:
        ends = await _all([_deliver(job, reply, writer) for reply in replies])
        await writer.finish(job.dialect.finish(ends[0], _count(job, ends)))


async def _deliver(job: Job, reply: Reply, writer: StreamWriter) -> Ended:
    """Write one choice, and return how it ended."""
    turn = await reply.begin()
    assert turn is not None  # it was not to return earlier
    dialect, index = job.dialect, reply.index
    if dialect.has_progress:
        async for progress in prompt_progress(turn):
            await writer.write(dialect.progress(progress))
    first, offset = partial(dialect.first, index, turn), 0
    is_begun = False
    flush_s = job.service.config.flush_s
    async for piece in pieces(turn.stream, flush_s, with_tokens=dialect.with_tokens):
        begun = b"" if is_begun else await job.service.pool.run_if(dialect.is_long, first)
        is_begun = True
        written = begun + dialect.piece(index, turn, piece, offset)
        offset += len(piece.text)
        if written:
            await writer.write(written)
    end = await reply.end()
    begun = b"" if is_begun else await job.service.pool.run_if(dialect.is_long, first)
    await writer.write(begun + dialect.last(index, turn, end))
    return turn.facts, end


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
