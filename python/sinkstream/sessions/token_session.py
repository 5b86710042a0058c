"""A conversation of token ids that keeps its cache between turns: what lies below a `Session`.

It knows nothing about text, thoughts or tools. The server's conversations use it directly.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from sinkstream import _core
from sinkstream.errors import InvalidArgument, SessionBusy
from sinkstream.host import Host, ReplyOptions
from sinkstream.request.stream_request import StreamRequest
from sinkstream.sessions import saved
from sinkstream.sessions.file import write_session_file
from sinkstream.sessions.record import SessionRecord
from sinkstream.streams.stream import Stats, Stream
from sinkstream.streams.worker import Check
from sinkstream.text.thoughts.thought_reader import ThoughtReader

_S = TypeVar("_S", bound=Stream)


@dataclass(frozen=True, slots=True)
class ConversationState:
    """The state of a conversation between turns, which the next message continues."""

    after: str | None = None
    """The role of the last message; None before the first one, "system" after a system prompt."""
    reply_is_open: bool = False
    """Whether the last message is a reply without its closing."""


@dataclass(frozen=True, slots=True)
class SessionStats:
    """Counts of what a session holds and what it has forgotten."""

    turns: int
    """Replies, not counting those that were undone."""
    tokens: int
    """Tokens that have entered the cache since the conversation began."""
    live_tokens: int
    """Tokens in the cache: the part of the conversation that the model sees."""
    evicted_tokens: int
    """Tokens that have left the cache: the model no longer sees them."""
    cache_bytes: int
    """Memory of the session's pages. Pages shared with other sessions are counted in each."""


class TokenSession:
    """Reads ids, generates replies, and can return to where it was before the last turn.

    Attributes:
        native: The native session. A `Session` replaces it with a fork, and back.
        host: Its model.
        state: The state of the conversation.
        turn: The native stream of the last turn, to end or undo it.
        turns_read_again: Replies that were read again without their thoughts: the native session
            does not count them.
    """

    def __init__(
        self,
        native: _core.Session,
        host: Host,
        state: ConversationState,
        *,
        system_tokens: int = 0,
        fields: Mapping[str, str | int] | None = None,
    ) -> None:
        """Continue `native`.

        Args:
            native: A session of the model.
            host: The model.
            state: Where its conversation is.
            system_tokens: The length of its system prompt.
            fields: What its files have in addition to the state.
        """
        self.native = native
        self.host = host
        self.state = state
        self.turn: _core.TokenStream | None = None
        self.turns_read_again = 0
        self._system_tokens = system_tokens
        self._fields = fields or {}
        # The state and the token count before the last turn. If the count has not grown, the turn
        # processed nothing or was taken back, and `conclude_last_turn` restores the state.
        self._before = (state, -1)
        self._caller = threading.Lock()

    @contextmanager
    def one_caller(self) -> Iterator[None]:
        """Refuse all other callers meanwhile.

        Raises:
            SessionBusy: Another one is using the session.
        """
        if not self._caller.acquire(blocking=False):
            raise SessionBusy(
                "session: only one thread or task can use a session at a time, but another is "
                "using this session."
            )
        try:
            yield
        finally:
            self._caller.release()

    # ---- turns -----------------------------------------------------------------------------------

    def reply_to(self, kind: Callable[..., _S], ids: list[int], request: StreamRequest) -> _S:
        """Stream the reply to token ids.

        Args:
            kind: The class of the stream.
            ids: What is read first.
            request: The complete options.
        """
        with self.one_caller():
            self.conclude_last_turn()
            reader = self.host.reader(request)
            return self.start_reply(kind, replace(request, prompt=ids), reader)

    def start_reply(
        self,
        kind: Callable[..., _S],
        request: StreamRequest,
        reader: ThoughtReader | None,
        take_back: Callable[[_core.TokenStream], None] | None = None,
    ) -> _S:
        """Start a turn; see `reply_to`.

        Args:
            kind: The class of the stream.
            request: Ids and options.
            reader: Tells thoughts and calls from text; None if all is text.
            take_back: Undoes the turn, if not this object's method.
        """
        state = ConversationState("assistant", reply_is_open=True)
        return self._start(kind, request, state, reader, take_back)

    def _start(
        self,
        kind: Callable[..., _S],
        request: StreamRequest,
        state: ConversationState,
        reader: ThoughtReader | None = None,
        take_back: Callable[[_core.TokenStream], None] | None = None,
    ) -> _S:
        self._before = (self.state, self.stats.tokens)
        self.state = state  # set first: an interrupt may come at any time after the turn begins
        native = self.host.native.submit(request, self.native)
        self.turn = native
        stream = kind(
            native,
            request,
            self.host.model,
            has_text=self.host.text.tokenizer is not None,
            window=(self.native.sinks, self.native.window),
            take_back=take_back or self.take_back,
            reader=reader,
        )
        # The session keeps `native`, which would otherwise end the turn of a forgotten stream.
        weakref.finalize(stream, native.close).atexit = False
        return stream

    def read(self, ids: list[int], state: ConversationState) -> Stats:
        """Read ids without a reply; return when they have been processed."""
        with self.start_reading(ids, state) as stream:
            stats = stream.result().stats
        self.state = state
        return stats

    async def aread(self, ids: list[int], state: ConversationState) -> Stats:
        """Do the same without blocking the event loop."""
        async with self.start_reading(ids, state) as stream:
            stats = (await stream.aresult()).stats
        self.state = state
        return stats

    def start_reading(
        self, ids: list[int], state: ConversationState, timeout_s: float | None = None
    ) -> Stream:
        """Process ids without a reply. If interrupted, close the message like a reply."""
        wanted = ReplyOptions({"max_tokens": 0, "timeout_s": timeout_s})
        request = self.host.complete(wanted, ids, is_chat=False)
        return self._start(Stream, request, replace(state, reply_is_open=True))

    def conclude_last_turn(self) -> int | None:
        """Return the last token; forget a turn that left nothing.

        Raises:
            SessionBusy: The turn is still running.
        """
        last = self.host.native.last_token(self.native)
        before, tokens = self._before
        if self.stats.tokens == tokens:
            self.state = before
        return last

    def last_turn(self) -> _core.TokenStream:
        """Return what `take_back` undoes.

        Raises:
            InvalidArgument: There is no last turn.
        """
        if self.turn is None:
            raise InvalidArgument(
                'cancel: `keep` must be "partial", but is "drop": there is no last turn to undo.',
                param="keep",
            )
        return self.turn

    def take_back(self, turn: _core.TokenStream) -> None:
        """Undo a turn, which must be the last one.

        Raises:
            InvalidArgument: It is not, it has been undone, or tokens have left the window since.
            CapacityError: It began on shared pages, and no page is free for a copy.
        """
        with self.one_caller():
            self.host.native.take_back(self.native, turn)

    # ---- whole conversations ---------------------------------------------------------------------

    def fork(self) -> TokenSession:
        """Return a second, independent session with the same contents."""
        with self.one_caller():
            return self.forked()

    def forked(self) -> TokenSession:
        """Do the same as `fork` for the one caller."""
        self.conclude_last_turn()
        native = self.host.native.fork_session(self.native)
        fork = TokenSession(
            native,
            self.host,
            self.state,
            system_tokens=self._system_tokens,
            fields=self._fields,
        )
        fork.turns_read_again = self.turns_read_again
        return fork

    def save(
        self,
        path: str | os.PathLike[str],
        check: Check,
        labels: Mapping[str, str | int] | None = None,
        *,
        flush: bool = True,
    ) -> None:
        """Write the session to a file.

        Args:
            path: The file; an existing one is replaced as a whole.
            check: Called between long steps; may raise `Abandoned`.
            labels: Further fields of the file.
            flush: Whether the file survives a power cut.
        """
        self.host.native.fingerprint()  # reads all weights the first time: before the lock
        with self.one_caller():
            record = self.record(labels)
        write_session_file(path, record, check, flush=flush)

    def record(self, labels: Mapping[str, str | int] | None = None) -> SessionRecord:
        """Return what a file holds, for the one caller."""
        self.conclude_last_turn()
        fields: dict[str, str | int] = {
            "after": self.state.after or "",
            "reply_is_open": int(self.state.reply_is_open),
            **self._fields,
            **(labels or {}),
        }
        host = self.host
        held = saved.record_of(host.native, self.native, host.spec, self._system_tokens, fields)
        turns = held.state.turns + self.turns_read_again
        return replace(held, state=replace(held.state, turns=turns))

    def close(self) -> None:
        """End the session and release its memory. May be called more than once."""
        self.native.close()
        self.turn = None

    # ---- inspection ------------------------------------------------------------------------------

    @property
    def token_ids(self) -> list[int]:
        """Return the ids that the model sees, and the last one of a reply."""
        return self.host.native.ids_of(self.native)

    @property
    def stats(self) -> SessionStats:
        """Return the current counts; while a turn is running, as of the last step."""
        stats = SessionStats(**self.native.stats())
        return replace(stats, turns=stats.turns + self.turns_read_again)

    @property
    def length(self) -> int:
        """Return the number of tokens in the conversation, including the last one of a reply."""
        stats = self.stats
        return stats.tokens + len(self.token_ids) - stats.live_tokens
