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
from sinkstream.errors import CapacityError, InvalidArgument, SessionBusy
from sinkstream.host import Host, ReplyOptions
from sinkstream.request.stream_request import StreamRequest
from sinkstream.sessions import saved
from sinkstream.sessions.file import write_session_file
from sinkstream.sessions.record import SessionRecord
from sinkstream.streams.stream import Stats, Stream
from sinkstream.streams.worker import Check
from sinkstream.text.thought_reader import ThoughtReader

_S = TypeVar("_S", bound=Stream)


@dataclass(frozen=True, slots=True)
class ConversationState:
    """The state of a conversation between turns, which the next message continues."""

    after: str | None = None
    """The role of the last message; None before the first one, "system" after a system prompt."""
    reply_is_open: bool = False
    """Whether the last message is a reply without its closing."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a session is between two turns, and to where it can go back."""

    position: tuple[int, int | None, int]
    """Of the native session: its tokens without the pending one, that one, and its turns."""
    state: ConversationState
    turns_read_again: int = 0

    @property
    def length(self) -> int:
        """Return the number of tokens in the conversation, including the pending one."""
        tokens, pending, _ = self.position
        return tokens + (pending is not None)


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
    unread_tokens: int = 0
    """Tokens that the next turn reads again before its own, because a turn was undone after tokens
    had left the window."""


class TokenSession:
    """Reads ids, generates replies, and can return to where it was before any turn.

    Note: [Going back]
    A native session goes back at once while nothing has left the window. Afterwards, the next turn
    reads again what the cache no longer has: Note [Tokens to read again] of engine/session.h. A
    caller that has memory for a second sequence saves that time: `keep_start` makes the next turn
    run in a fork, and the session itself waits where it was.

    Attributes:
        native: The native session; `keep_start` replaces it with a fork.
        host: Its model.
        state: The state of the conversation.
        turn: The native stream of the last turn, to end or undo it.
        before: Where the session was before that turn; None if it has been undone.
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
        self.before: Mark | None = None
        self.turns_read_again = 0
        self._start_kept: tuple[Mark, _core.Session] | None = None
        self._system_tokens = system_tokens
        self._fields = fields or {}
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
        self.before = self.mark()
        self.state = state  # set first: an interrupt may come at any time after the turn begins
        native = self.host.native.submit(request, self.native)
        self.turn = native
        return self._stream(kind, native, request, reader, take_back)

    def _stream(
        self,
        kind: Callable[..., _S],
        native: _core.TokenStream,
        request: StreamRequest,
        reader: ThoughtReader | None = None,
        take_back: Callable[[_core.TokenStream], None] | None = None,
    ) -> _S:
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
        before = self.before
        if before is not None and self.host.native.position_of(self.native) == before.position:
            self.state = before.state
        return last

    def catch_up(self) -> None:
        """Read what the next turn would read again; see Note [Going back].

        If interrupted, the next turn reads the rest.
        """
        if self.stats.unread_tokens == 0:
            return
        request = self.host.complete(ReplyOptions({"max_tokens": 0}), is_chat=False)
        native = self.host.native.submit(request, self.native)
        with self._stream(Stream, native, request) as stream:
            stream.result()

    # ---- going back ------------------------------------------------------------------------------

    def mark(self) -> Mark:
        """Return where the session is.

        Raises:
            SessionBusy: A turn is running.
        """
        self.conclude_last_turn()
        position = self.host.native.position_of(self.native)
        return Mark(position, self.state, self.turns_read_again)

    def keep_start(self) -> None:
        """Make the next turn run in a fork, if there is memory for one; see Note [Going back]."""
        self.release_start()
        mark = self.mark()
        try:
            fork = self.host.native.fork_session(self.native)
        except CapacityError:
            return
        self._start_kept, self.native = (mark, self.native), fork

    def keeps_start(self, mark: Mark) -> bool:
        """Return whether a session waits at a mark."""
        return self._start_kept is not None and self._start_kept[0] == mark

    def release_start(self) -> None:
        """Release the second sequence that `keep_start` may have left."""
        kept, self._start_kept = self._start_kept, None
        if kept is not None:
            kept[1].close()

    def go_back(self, to: Mark, *, reads_again: bool) -> bool:
        """Return to an earlier mark of the session, for the one caller; end a running turn.

        Args:
            to: The mark.
            reads_again: Whether the next turn may read tokens again.

        Returns:
            Whether the session is there. If not, it is as it was.

        Raises:
            CapacityError: It shares its sinks with another one, and no page is free for a copy.
        """
        if self.turn is not None:
            self.turn.cancel()
        if self._start_kept is not None and self.keeps_start(to):
            fork, (_, self.native) = self.native, self._start_kept
            self._start_kept = None
            fork.close()
        elif not self.host.native.go_back(self.native, to.position, reads_again):
            return False
        if self._start_kept is not None and self._start_kept[0].length > to.length:
            self.release_start()  # it is not in the past any more
        self.state, self.turns_read_again, self.before = to.state, to.turns_read_again, None
        return True

    def take_back(self, turn: _core.TokenStream) -> None:
        """Undo a turn, which must be the last one.

        Raises:
            InvalidArgument: It is not, or it has been undone.
            CapacityError: See `go_back`.
        """
        with self.one_caller():
            if turn is not self.turn:
                raise turn_is_not_last()
            if self.before is None:
                raise turn_is_undone()
            if not self.go_back(self.before, reads_again=True):
                raise ids_are_gone("cancel", self.stats.tokens)

    def try_undo(self) -> bool:
        """Undo the last turn if that is possible without reading anything again."""
        with self.one_caller():
            return self.before is not None and self.go_back(self.before, reads_again=False)

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
        self.catch_up()
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
        self.release_start()
        self.native.close()
        self.turn = self.before = None

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


_DROP = 'cancel: `keep` must be "partial", but is "drop": '


def no_turn() -> InvalidArgument:
    """Return the error for undoing a turn of a session that has had none."""
    return InvalidArgument(f"{_DROP}there is no last turn to undo.", param="keep")


def turn_is_not_last() -> InvalidArgument:
    """Return the error for undoing a turn that others have followed."""
    return InvalidArgument(
        f"{_DROP}the session has continued since. The reply stays. Use `Session.undo`.",
        param="keep",
    )


def turn_is_undone() -> InvalidArgument:
    """Return the error for undoing a turn twice."""
    return InvalidArgument(
        f"{_DROP}the turn has already been undone. Use `Session.undo` to undo the one before.",
        param="keep",
    )


def ids_are_gone(where: str, tokens: int) -> InvalidArgument:
    """Return the error for going back further than the ids that a session keeps."""
    return InvalidArgument(
        f"{where}: the session must still have the ids of the tokens before the turn, to read them "
        f"again, but it has {tokens:,} tokens, and keeps the ids of only the last "
        f"{_core.UNDONE_TOKENS:,}, or of those since it was loaded. The turn stays."
    )
