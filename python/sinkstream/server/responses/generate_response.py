"""Generates a response: admits it, fills its state, and keeps how it ended."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

from sinkstream.conversations.turns import TurnEnd, TurnFacts
from sinkstream.errors import SinkstreamError
from sinkstream.server.errors import ApiError
from sinkstream.server.reply_pieces import pieces
from sinkstream.server.responses.live_responses import Live
from sinkstream.server.responses.response_bodies import NAMES
from sinkstream.server.responses.response_state import Outcome
from sinkstream.server.responses.stored_responses import as_text, note_of, opening_of_fields
from sinkstream.server.running_replies import Reply, Start, Terms, as_api_error, running
from sinkstream.server.service import Service
from sinkstream.server.usage import usage_of

logger = logging.getLogger("sinkstream.server")

_INCOMPLETE = ("length", "timeout")
# Strict clients know no other codes; the exact one is in `sinkstream.code`.
_ERRORS = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


def begin(
    service: Service, live: Live, start: Start, terms: Terms, held_bytes: int
) -> asyncio.Task[None]:
    """Begin to generate, with `start`. The task does not fail; errors are stored in `live`.

    The reply may take `held_bytes` of memory.
    """
    service.live.add(live)
    live.task = task = asyncio.create_task(_produce(service, live, start, terms, held_bytes))
    task.add_done_callback(lambda _: live.drop_task())
    return task


async def _produce(
    service: Service, live: Live, start: Start, terms: Terms, held_bytes: int
) -> None:
    state, reply = live.state, None
    try:
        async with AsyncExitStack() as stack:
            stack.enter_context(service.whole_replies.taken(held_bytes, terms.tenant))
            begun = running(service, [start], terms, NAMES, state.id)
            (reply,) = await stack.enter_async_context(begun)
            del start  # it holds the request
            await _promise(service, live)
            turn = live.turn = await reply.begin()
            assert turn is not None  # it was not to return earlier
            live.drop_messages()
            stream = turn.stream
            state.has_parts, state.input_tokens = stream.has_parts, turn.facts.prompt_tokens
            state.is_begun = True
            live.notify()
            read = pieces(
                stream,
                service.config.flush_s,
                with_tokens=state.tokens is not None,
            )
            async for piece in read:
                generated = stream.stats.generated_tokens
                if piece.thought:
                    state.thought.add(piece.thought, generated)
                elif piece.delta is not None:
                    state.add_call(piece.delta)
                else:
                    state.add(piece.text, piece.tokens, generated)
                live.notify()
            await reply.end()
    except asyncio.CancelledError:
        await _finish_whole(service, live, reply, is_cancelled=True)
        raise
    except Exception as error:
        live.failure = as_api_error(error)
        if live.failure.code == "internal":
            logger.exception("response %s: an internal error", state.id)
        await _finish_whole(service, live, reply)
    else:
        await _finish_whole(service, live, reply)


async def _promise(service: Service, live: Live) -> None:
    """Write the promise of a response that a client may come back for: it has been admitted."""
    promises = service.turns.promises
    if live.promise is not None and promises is not None:
        await service.pool.run(partial(promises.make, live.promise))
        live.is_promised = True
        live.promise = None  # it has the request's messages
        live.notify()


async def _finish_whole(
    service: Service, live: Live, reply: Reply | None, *, is_cancelled: bool = False
) -> None:
    """Store how a response ended, and announce it, even if the task is cancelled meanwhile."""
    finishing = asyncio.create_task(_finish(service, live, reply, is_cancelled=is_cancelled))
    is_interrupted = False
    while not finishing.done():
        try:
            await asyncio.wait({finishing})
        except asyncio.CancelledError:
            is_interrupted = True
    finishing.result()
    if is_interrupted:
        raise asyncio.CancelledError


async def _finish(
    service: Service, live: Live, reply: Reply | None, *, is_cancelled: bool = False
) -> None:
    """Store how a response ended, then announce it, even if it cannot be stored."""
    state = live.state
    facts = live.turn.facts if live.turn is not None else None
    end = live.end = reply.ended if reply is not None else None
    live.queued_s = reply.queued_s if reply is not None else 0.0
    outcome = _outcome(facts, end, live.failure, state.ignored, is_cancelled=is_cancelled)
    is_left = end is not None and end.node != ""
    is_stored = is_left and state.request_fields["store"]
    try:
        if is_stored:
            note = note_of(state, outcome)
            with suppress(SinkstreamError):  # the turn is kept; the store has logged the error
                await service.pool.submit(partial(service.turns.note, state.id, note))
        elif live.is_promised:
            with suppress(SinkstreamError):  # the store has logged it; it is broken, and found
                await service.pool.submit(partial(_end_promise, service, live, outcome))
        elif is_left:
            service.live.note_unstored(
                state.tenant, state.id, opening_of_fields(state.request_fields)
            )
    except Exception:
        logger.exception("response %s: its end could not be stored", state.id)
    finally:
        state.outcome, live.messages = outcome, None
        live.notify()
        is_kept = state.request_fields["store"] or state.is_background
        is_known = state.is_begun or live.is_announced  # or else its client was refused
        if is_stored or not (is_kept and is_known):
            service.live.forget(state.id)
        else:
            service.live.forget_later(state.id)


def _end_promise(service: Service, live: Live, outcome: Outcome) -> None:
    """Keep how a response ended that has left no turn, unless its client was refused."""
    promises = service.turns.promises
    assert promises is not None
    if live.is_announced:
        promises.end(live.state.id, as_text(outcome))
    else:
        promises.remove(live.state.id)


def _outcome(
    facts: TurnFacts | None,
    end: TurnEnd | None,
    failure: ApiError | None,
    ignored: Sequence[str],
    *,
    is_cancelled: bool,
) -> Outcome:
    usage, own = (None, {}) if facts is None or end is None else _usage(facts, end, ignored)
    if failure is not None:
        code = _ERRORS.get(failure.status, "server_error")
        error = {"code": code, "message": failure.message}
        return Outcome("failed", error=error, usage=usage, own={**own, "code": failure.code})
    if is_cancelled or end is None:
        return Outcome("cancelled", usage=usage, own=own)
    if end.finish_reason in _INCOMPLETE:
        return Outcome("incomplete", incomplete="max_output_tokens", usage=usage, own=own)
    return Outcome("completed", completed_at=int(time.time()), usage=usage, own=own)


def _usage(
    facts: TurnFacts, end: TurnEnd, ignored: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a reply's usage with this API's names, and sinkstream's own fields."""
    chat = usage_of([(facts, end)], ignored=ignored)
    read, cached = chat["prompt_tokens"], chat["prompt_tokens_details"]["cached_tokens"]
    usage = {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": read - cached},
        "output_tokens": chat["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": end.thought_tokens},
        "total_tokens": chat["total_tokens"],
    }
    return usage, chat["sinkstream"]
