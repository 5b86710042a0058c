"""A conversation that keeps its cache: each turn costs only its new tokens."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Unpack

from sinkstream import _core
from sinkstream.checkpoint.spec import DecoderSpec
from sinkstream.errors import InvalidArgument, SessionBusy, warn_caller
from sinkstream.request.checks import as_ids
from sinkstream.request.options import Sampling, StreamOptions
from sinkstream.request.signature import shows_options
from sinkstream.request.stream_request import make_request
from sinkstream.sessions import saved
from sinkstream.sessions.file import write_session_file
from sinkstream.streams.closing import ClosesOnExit
from sinkstream.streams.stream import Stats, Stream
from sinkstream.text.turns.turn_format import TurnFormat

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class Host:
    """What a session needs of its model."""

    model: object
    """Kept alive, and with it everything below."""
    native: _core.Model
    tokenizer: Tokenizer | None
    """Without one there is no text."""
    spec: DecoderSpec
    defaults: Sampling
    """Values of sampling options that are None."""
    continues_text: bool
    """Whether turns are plain text that replies continue, because there is no chat template."""


@dataclass(frozen=True, slots=True)
class SessionStats:
    """What a session holds, and what it has forgotten."""

    turns: int
    """Replies, but for those that were taken back."""
    tokens: int
    """That it has seen since it began."""
    live_tokens: int
    """In the cache: what the model sees of the conversation."""
    evicted_tokens: int
    """That have left the cache: the model no longer sees them."""
    cache_bytes: int
    """Of the pages that it holds; sinks may be shared with other sessions."""


@dataclass(frozen=True, slots=True)
class ConversationState:
    """How a conversation stands between turns: what the next message has to follow."""

    after: str | None = None
    """The role of the last message; None before the first one, "system" behind a system prompt."""
    reply_is_open: bool = False
    """Whether the last message is a reply that nothing has closed."""


class Session(ClosesOnExit):
    """A conversation whose cache lives between turns; made by `Model.session`.

    A turn reads only what is new. What the cache no longer holds is forgotten: `stats` counts it,
    and `transcript` is exactly what the model still sees.

    One turn at a time may run. A turn whose stream was left, closed or cancelled has ended for
    this purpose, and what it had produced stays.

    Example:
        >>> with model.session("You are brief.") as session:
        ...     for text in session.stream("Name a colour."):
        ...         print(text, end="", flush=True)
        ...     session.stream("Another one.").result().text
    """

    def __init__(
        self,
        native: _core.Session,
        host: Host,
        turns: TurnFormat,
        state: ConversationState,
        *,
        system_tokens: int = 0,
    ) -> None:
        """Go on with `native` of the model `host`, whose conversations have the format `turns`."""
        self._native = native
        self._host = host
        self._turns = turns
        self._state = state
        self._system_tokens = system_tokens
        # The state and the tokens before the last turn. If there are no more tokens now, the turn
        # has read nothing or was taken back, and `_conclude_last_turn` restores the state.
        self._before = (state, -1)
        self._latest: weakref.ref[Stream] | None = None
        self._caller = threading.Lock()

    def __repr__(self) -> str:
        state = "closed" if self._native.is_closed else f"{self.stats.live_tokens} live tokens"
        return f"<sinkstream.Session {self.stats.turns} turns, {state}>"

    # ---- turns -----------------------------------------------------------------------------------

    @shows_options
    def stream(self, content: str | Sequence[int], **options: Unpack[StreamOptions]) -> Stream:
        """Ask for a reply.

        Args:
            content: What the user says; for a checkpoint without chat template, text to go on
                from. Token ids are read as they are, with nothing put around them.
            **options: Those of `Model.stream`, but for `sinks`, which the session has already.

        Returns:
            The reply as it comes. Leaving it, or `cancel()`, keeps what it has produced;
            `cancel(keep="drop")` makes the session what it was before the turn.

        Raises:
            InvalidArgument: A value is out of range, or the session is closed.
            TypeError: A value has the wrong type.
            SessionBusy: A turn is running, or the session is being forked or saved.
            EngineDead: The model is closed, or its engine has failed.
        """
        with self._one_caller():
            ids = self._ids_of_turn(content, "user", replies=True)
            return self._start(ids, options, ConversationState("assistant", reply_is_open=True))

    def append(self, content: str | Sequence[int], role: str = "user") -> Stats:
        """Read a message without replying; return when it has been read.

        Args:
            content: The message; token ids are read as they are.
            role: Who says it: "user", "assistant" or "system", as far as the checkpoint's chat
                template allows it there.

        Raises:
            InvalidArgument: The template does not allow it, or the session is closed.
            CapacityError: As many streams as the model has room for are running, and nobody reads
                them.
            SessionBusy: A turn is running, or the session is being forked or saved.
            EngineDead: The model is closed, or its engine has failed.
        """
        with self._one_caller():
            ids = self._ids_of_turn(content, role, replies=False)
            return self._read(ids, ConversationState(role))

    async def aappend(self, content: str | Sequence[int], role: str = "user") -> Stats:
        """Read a message without replying, as `append` does; let other tasks run until then.

        A task that is cancelled meanwhile leaves in the session what had been read.

        Raises:
            OSError: The process may open no more files; an event loop needs one for its streams.
            Exception: What `append` raises.
        """
        with self._one_caller():
            ids = self._ids_of_turn(content, role, replies=False)
            async with self._start_reading(ids, ConversationState(role)) as stream:
                stats = (await stream.aresult()).stats
            self._state = ConversationState(role)
            return stats

    def cancel(self, keep: Literal["partial", "drop"] = "partial") -> None:
        """End the turn that is running, as its stream's `cancel` does, whoever holds the stream.

        Raises:
            InvalidArgument: `keep` is "drop", and the last turn cannot be taken back any more.
            SessionBusy: `keep` is "drop", and a message is being read by `append` or `aappend`.
        """
        stream = None if self._latest is None else self._latest()
        if stream is not None:
            stream.cancel(keep)
        elif keep != "partial":
            raise InvalidArgument(
                'cancel: `keep` must be "partial", because nobody has the last turn\'s stream any '
                f"more, but is {str(keep)[:40]!r}.",
                param="keep",
            )

    def _ids_of_turn(self, content: str | Sequence[int], role: str, *, replies: bool) -> list[int]:
        last = self._conclude_last_turn()
        if isinstance(content, str):
            ids = self._turns.closing(last) if self._state.reply_is_open else []
            after = self._state.after
            if replies:
                ids = ids + self._turns.user(content, after=after)
            else:
                ids = ids + self._turns.message(role, content, after=after)
        else:
            ids = as_ids("session", "content", content, self._host.spec.vocab_size)
        if not ids:
            raise InvalidArgument(
                "session: `content` must hold at least 1 token, but is empty.", param="content"
            )
        return ids

    def _conclude_last_turn(self) -> int | None:
        """Return the last token; forget a turn that left nothing.

        Raises:
            SessionBusy: The turn is still running.
        """
        last = self._host.native.last_token(self._native)
        before, tokens = self._before
        if self.stats.tokens == tokens:
            self._state = before
        return last

    def _start(self, ids: list[int], options: StreamOptions, state: ConversationState) -> Stream:
        request = make_request(
            ids,
            options,
            defaults=self._host.defaults,
            vocab_size=self._host.spec.vocab_size,
            continues_text=self._host.continues_text,
            where="session",
        )
        self._before = (self._state, self.stats.tokens)
        self._state = state  # first: an interrupt may come as soon as the turn has begun
        native = self._host.native.submit(request, self._native)

        def take_back() -> None:
            with self._one_caller():
                self._host.native.take_back(self._native, native)

        stream = Stream(
            native,
            request,
            self._host.model,
            has_text=self._host.tokenizer is not None,
            take_back=take_back,
        )
        self._latest = weakref.ref(stream)
        return stream

    def _read(self, ids: list[int], state: ConversationState) -> Stats:
        with self._start_reading(ids, state) as stream:
            stats = stream.result().stats
        self._state = state
        return stats

    def _start_reading(self, ids: list[int], state: ConversationState) -> Stream:
        """Read ids without a reply. What an interrupt leaves half read is closed like a reply."""
        return self._start(ids, {"max_tokens": 0}, replace(state, reply_is_open=True))

    @contextmanager
    def _one_caller(self) -> Iterator[None]:
        if not self._caller.acquire(blocking=False):
            raise SessionBusy(
                "session: one thread or task at a time may use it, but there is another."
            )
        try:
            yield
        finally:
            self._caller.release()

    # ---- whole conversations ---------------------------------------------------------------------

    def fork(self) -> Session:
        """Return a second session that goes on from here by itself.

        It takes its memory at once, and costs no time: the two share pages until they differ.

        Raises:
            CapacityError: There is no memory for one more session.
            InvalidArgument: The session is closed.
            SessionBusy: A turn is running.
            EngineDead: The model is closed, or its engine has failed.
        """
        with self._one_caller():
            self._conclude_last_turn()
            native = self._host.native.fork_session(self._native)
            return Session(
                native, self._host, self._turns, self._state, system_tokens=self._system_tokens
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the session to a file, from which `Model.load_session` goes on bit for bit.

        The file holds the keys and values of what the model still sees, and its token ids: the
        conversation can be read from it. Whatever happens meanwhile, `path` is the whole old file
        or the whole new one.

        Raises:
            OSError: The file cannot be written there.
            InvalidArgument: The session is closed.
            SessionBusy: A turn is running.
            EngineDead: The model is closed, or its engine has failed.
        """
        native = self._host.native
        native.fingerprint()  # reads all weights the first time, which need not hold anybody up
        with self._one_caller():
            self._conclude_last_turn()
            fields: dict[str, str | int] = {
                "after": self._state.after or "",
                "reply_is_open": int(self._state.reply_is_open),
            }
            record = saved.record_of(
                native, self._native, self._host.spec, self._system_tokens, fields
            )
        write_session_file(path, record)

    def close(self) -> None:
        """End the session and give its memory back. May be called more than once."""
        self._native.close()

    # ---- looking ---------------------------------------------------------------------------------

    @property
    def token_ids(self) -> list[int]:
        """Return the ids that the model sees of the conversation: sinks, then the window.

        The last token of a reply is among them, though it enters the cache with the next turn.

        Raises:
            InvalidArgument: The session is closed.
            EngineDead: The model is closed, or its engine has failed.
        """
        return self._host.native.ids_of(self._native)

    @property
    def transcript(self) -> str:
        """Return the text of `token_ids`, control tokens included.

        Where tokens have left the cache, their neighbours on both sides stand next to each other.

        Raises:
            InvalidArgument: The checkpoint has no tokenizer, or the session is closed.
            EngineDead: The model is closed, or its engine has failed.
        """
        if self._host.tokenizer is None:
            raise InvalidArgument(
                "session: the checkpoint must have a tokenizer for a transcript, but has none. "
                "Read `token_ids`."
            )
        return self._host.tokenizer.decode(self.token_ids, skip_special_tokens=False)

    @property
    def stats(self) -> SessionStats:
        """Return what it holds now; while a turn runs, as of the last step."""
        return SessionStats(**self._native.stats())

    @property
    def sinks(self) -> int:
        """Return S: the first tokens, which the session never forgets."""
        return self._native.sinks

    @property
    def window(self) -> int:
        """Return W: the last tokens, the current one included."""
        return self._native.window


def open_session(
    host: Host, turns: TurnFormat, system: str | None, sinks: int | str | None
) -> Session:
    """Open a session and read its system prompt.

    Args:
        host: The model.
        turns: How its conversations are written.
        system: The system prompt; None takes the template's own, if it has one.
        sinks: S, or "system" for the whole opening, or None for the model's.
    """
    opening = turns.opening(system)
    if not turns.is_exact:
        warn_caller(turns.difference)
    count = _count_sinks(sinks, len(opening))
    native = host.native.open_session(count, opening)
    state = ConversationState(None if system is None else "system")
    system_tokens = 0 if system is None else len(opening)
    session = Session(native, host, turns, state, system_tokens=system_tokens)
    try:
        if unread := opening[native.stats()["tokens"] :]:
            session._read(unread, state)
    except BaseException:
        session.close()
        raise
    return session


def load_session(
    host: Host, turns: TurnFormat, path: str | os.PathLike[str], capacity: int
) -> Session:
    """Open a session that `Session.save` has written."""
    native, record = saved.load(path, host.native, host.spec, capacity)
    fields = record.fields
    state = ConversationState(
        str(fields.get("after", "")) or None, bool(fields.get("reply_is_open", 0))
    )
    return Session(native, host, turns, state, system_tokens=record.state.system_tokens)


def _count_sinks(sinks: int | str | None, opening: int) -> int | None:
    if isinstance(sinks, str):
        if sinks != "system":
            raise InvalidArgument(
                f'session: `sinks` must be an int or "system", but is {sinks[:40]!r}.',
                param="sinks",
            )
        if opening == 0:
            raise InvalidArgument(
                "session: `sinks` must be an int, because there is no system prompt, but is "
                '"system".',
                param="sinks",
            )
        return opening
    return sinks
