"""A conversation that keeps its cache between turns."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Unpack

from sinkstream import _core
from sinkstream.checkpoint.spec import DecoderSpec
from sinkstream.errors import CapacityError, InvalidArgument, SessionBusy, warn_caller
from sinkstream.observe.notebook import cache_bar, summary
from sinkstream.request.checks import as_ids
from sinkstream.request.options import REPLY_TOKENS, Sampling, StreamOptions
from sinkstream.request.signature import shows_options
from sinkstream.request.stream_request import make_request
from sinkstream.sessions import saved
from sinkstream.sessions.conversation_state import ConversationState
from sinkstream.sessions.file import write_session_file
from sinkstream.sessions.reply_format import ReplyFormat, reply_format
from sinkstream.sessions.thoughts import (
    STAYS,
    Asked,
    Thoughts,
    least_capacity,
    without_thoughts,
)
from sinkstream.sessions.tools import (
    NO_TOOLS,
    SessionTools,
    check_unread_calls,
)
from sinkstream.streams.closing import ClosesOnExit
from sinkstream.streams.stream import Result, Stats, Stream, check_keep
from sinkstream.streams.worker import Check, in_thread, wanted
from sinkstream.structured.grammars import Grammars
from sinkstream.text.messages import Message
from sinkstream.text.thoughts.thought_reader import ThoughtReader
from sinkstream.text.tools.tool_replies import ToolReplies
from sinkstream.text.turns.turn_arguments import check_content, check_results
from sinkstream.text.turns.turn_format import TurnFormat

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class Host:
    """What a session needs from its model."""

    model: object
    """Kept alive, together with everything below."""
    native: _core.Model
    tokenizer: Tokenizer | None
    """None if the checkpoint has none; then there is no text."""
    spec: DecoderSpec
    window: tuple[int, int]
    """S and W of sequences that set no `sinks`."""
    defaults: Sampling
    """Replace sampling options that are None."""
    continues_text: bool
    """Whether turns are plain text that replies continue, because there is no chat template."""
    control_tokens: Mapping[str, int]
    """Ids of the tokens that a stream never shows, by their text."""
    grammars: Grammars
    """Makes the grammars that replies follow."""
    tool_replies: ToolReplies
    """What replies with tools need."""


@dataclass(frozen=True, slots=True)
class SessionStats:
    """Counts of what a session holds and what it has forgotten."""

    turns: int
    """Replies, not counting those that were undone."""
    tokens: int
    """Tokens processed since the session was opened."""
    live_tokens: int
    """Tokens in the cache: the part of the conversation that the model sees."""
    evicted_tokens: int
    """Tokens that have left the cache: the model no longer sees them."""
    cache_bytes: int
    """Memory of the session's pages. Pages shared with other sessions are counted in each."""


class Session(ClosesOnExit):
    """A conversation that keeps its cache between turns; created by `Model.session`.

    Apart from dropped thoughts, a turn processes only its new tokens. Tokens that have left the
    cache are forgotten: `stats` counts them. `transcript` is exactly the text of the tokens that
    are still there, and of the last token of a reply, which enters the cache with the next turn.

    A session with a reasoning model may drop the thoughts of a reply. When the next turn or
    `append` begins, or when the session is forked or saved, it reads the message and the reply once
    more, without the thoughts. Until then, it still contains the thoughts. Some chat
    templates show the thoughts before a tool call until the next user message. With these, the
    session keeps those thoughts until then.

    Only one turn can run at a time. A turn also ends early, when its stream is closed or cancelled,
    or when its loop is left and nothing else refers to the stream; the part of the reply generated
    by then stays.

    Example:
        >>> with model.session("You are brief.") as session:
        ...     for text in session.stream("Name a colour."):
        ...         print(text, end="", flush=True)
        ...     session.stream("Another one.").result().text
    """

    _instead = "Use `save` or `fork`."

    def __init__(
        self,
        native: _core.Session,
        host: Host,
        turns: TurnFormat,
        state: ConversationState,
        *,
        system_tokens: int = 0,
        thoughts: Thoughts = Thoughts(),  # noqa: B008  # immutable
        tools: SessionTools = NO_TOOLS,
    ) -> None:
        """Continue `native`, a session of the model `host`, in the conversation format `turns`."""
        self._native = native
        self._host = host
        self._turns = turns
        self._state = state
        self._system_tokens = system_tokens
        # The state and the token count before the last turn. If the count has not grown, the turn
        # processed nothing or was taken back, and `_conclude_last_turn` restores the state.
        self._before = (state, -1)
        self._turn: _core.TokenStream | None = None  # the last one, to end or undo it
        self._thoughts = thoughts
        self._tools = tools
        self._asked: Asked | None = None  # the last turn, until its thoughts have been dropped
        # The last turn, and the same without its thoughts, once these have been dropped.
        self._read_again: tuple[_core.TokenStream | None, _core.TokenStream | None] = None, None
        self._replies_read_again = 0  # in the last turn
        self._turns_read_again = 0  # replies that the native session does not count
        self._has_warned = False
        self._caller = threading.Lock()

    def __repr__(self) -> str:
        state = "closed" if self._native.is_closed else f"{self.stats.live_tokens} live tokens"
        return f"<sinkstream.Session {self.stats.turns} turns, {state}>"

    def _repr_html_(self) -> str:
        stats = self.stats
        facts = [f"{stats.turns} turns", f"{stats.tokens:,} tokens"]
        if self._native.is_closed:
            return summary("Session", [*facts, "closed"])
        bar = cache_bar(self.sinks, self.window, stats.live_tokens, stats.evicted_tokens)
        return summary("Session", facts, bar)

    # ---- turns -----------------------------------------------------------------------------------

    @shows_options()
    def stream(
        self,
        content: str | Sequence[int] | Sequence[Mapping[str, Any]],
        *,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        **options: Unpack[StreamOptions],
    ) -> Stream:
        """Send a message and stream the reply.

        The options are those of `Model.stream`, except `sinks`, `thinking` and `tools`, which are
        given when the session is opened, and `prompt_logprobs`, which must be None.

        Args:
            content: The user's message; for a checkpoint without a chat template, text to
                continue. Or the results of all calls of the last reply: a list of messages with the
                role "tool", as `Model.stream` takes them. With token ids, nothing is added around
                them, and tool calls in the reply are not recognized.
            tool_choice: As for `Model.stream`; this reply only.
            parallel_tool_calls: As for `Model.stream`; this reply only.
            **options: How to generate; `request/options.py` declares them.

        Returns:
            The reply as it is generated. Leaving the loop, or `cancel()`, keeps the part generated
            so far; `cancel(keep="drop")` restores the session to its state before the turn.

        Raises:
            InvalidArgument: A value is out of range, or the session is closed.
            TypeError: A value has the wrong type.
            SessionBusy: A turn is running, or the session is being forked or saved.
            EngineDead: The model is closed, or its engine has failed.
        """
        tools = self._tools.of_turn(tool_choice, parallel_tool_calls)
        results = None if self._tools.tools is None else check_results(content)
        with self._one_caller():
            loop = None if results is None else self._loop()
            if loop is None:
                self._drop_thoughts(before="user" if results is None else "tool")
            if results is None and not isinstance(content, str):
                check_unread_calls(tools)
                ids = self._ids_of_turn(content, "user", replies=True)
                return self._start_reply(ids, options, None)
            reply = reply_format(self._host.tool_replies, self._thoughts, tools, options)
            if results is not None:
                ids = self._ids_of_results(results)
            else:
                ids = self._ids_of_turn(content, "user", replies=True)
            if not self._thoughts.drops:
                return self._start_reply(ids, reply.options, reply.reader)
            if loop is not None and results is not None:
                return self._continue_loop(loop, results, ids, reply)
            said = results or [{"role": "user", "content": content}]
            return self._start_to_drop(said, ids, reply)

    def _stream_ids(self, ids: list[int], reader: ThoughtReader | None, **options: Any) -> Stream:
        """Stream the reply to token ids; tell thoughts from text with `reader`."""
        with self._one_caller():
            ids = self._ids_of_turn(ids, "user", replies=True)
            return self._start_reply(ids, options, reader)  # type: ignore[arg-type]

    @shows_options(max_tokens=REPLY_TOKENS)
    def generate(
        self,
        content: str | Sequence[int] | Sequence[Mapping[str, Any]],
        *,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        **options: Unpack[StreamOptions],
    ) -> Result:
        """Send a message and return the whole reply.

        The default of `max_tokens` is 256, as for `Model.generate`; with None, there is no limit:
        many models never end their text, so give stop strings or `timeout_s`.

        Args:
            content: As for `stream`.
            tool_choice: As for `stream`.
            parallel_tool_calls: As for `stream`.
            **options: How to generate; `request/options.py` declares them.

        Raises:
            InvalidArgument: A value is out of range, or the session is closed.
            TypeError: A value has the wrong type.
            CapacityError: Timed out waiting for cache memory held by idle sessions or by streams
                that are not being read.
            NonFiniteLogits: The model returned NaN or infinity.
            SessionBusy: A turn is running, or the session is being forked or saved.
            EngineDead: The model is closed, or its engine has failed.
        """
        options.setdefault("max_tokens", REPLY_TOKENS)
        choice: Any = {"tool_choice": tool_choice, "parallel_tool_calls": parallel_tool_calls}
        with self.stream(content, **choice, **options) as stream:
            return stream.result()

    def append(self, content: str | Sequence[int], role: str = "user") -> Stats:
        """Add a message without generating a reply; return when it has been processed.

        Args:
            content: The message; token ids are used unchanged.
            role: Its author: "assistant", "developer", "system", "tool" or "user", if the
                checkpoint's chat template allows that role here.

        Raises:
            InvalidArgument: The template does not allow the role, or the session is closed.
            CapacityError: Timed out waiting for cache memory held by idle sessions or by streams
                that are not being read.
            SessionBusy: A turn is running, or the session is being forked or saved.
            EngineDead: The model is closed, or its engine has failed.
        """
        with self._one_caller():
            self._drop_thoughts(before=_as_next(role))
            ids = self._ids_of_turn(content, role, replies=False)
            return self._read(ids, ConversationState(role))

    async def aappend(self, content: str | Sequence[int], role: str = "user") -> Stats:
        """Add a message as `append` does, without blocking the event loop.

        If the task is cancelled, the tokens processed by then stay in the session.

        Raises:
            OSError: The process cannot open another file descriptor; each event loop needs one.
            Exception: Any error that `append` raises.
        """
        with self._one_caller():
            if self._asked is not None:
                before = _as_next(role)
                await in_thread(lambda _: self._drop_thoughts(before=before), lambda _: None)
            ids = self._ids_of_turn(content, role, replies=False)
            return await self._aread(ids, ConversationState(role))

    def cancel(self, keep: Literal["partial", "drop"] = "partial") -> None:
        """End the running turn, like `Stream.cancel`.

        Args:
            keep: "partial" keeps the part of the reply generated so far. "drop" restores the
                session to its state before the last turn, running or ended, or before the last
                `append`, once it has ended. A session that has just been opened, forked or loaded
                has no last turn.

        Raises:
            InvalidArgument: `keep` is "drop", and one of these holds: there is no last turn, the
                last turn has already been undone, or tokens have left the window since it began.
            CapacityError: The turn began on shared pages, and no page is free for a copy.
            SessionBusy: `keep` is "drop", and `append` or `aappend` is running.
            EngineDead: The model is closed, or its engine has failed.
        """
        if check_keep(keep) == "partial":
            if self._turn is not None:
                self._turn.cancel()
        elif self._turn is not None:
            self._take_back(self._turn)
        else:
            raise InvalidArgument(
                'cancel: `keep` is "drop", but must be "partial": no turn has begun since the '
                "session was opened, forked or loaded.",
                param="keep",
            )

    def _take_back(self, turn: _core.TokenStream) -> None:
        with self._one_caller():
            asked = self._asked
            if asked is not None and asked.source is not None and turn is asked.stream:
                if not asked.has_results:
                    self._conclude_last_turn_at(asked.source, asked.state)
                else:
                    self._host.native.take_back(self._native, turn)
                    self._asked = asked.before
                return
            is_read_again = self._turn is self._read_again[1] and turn in self._read_again
            last = self._turn if is_read_again and self._turn is not None else turn
            self._host.native.take_back(self._native, last)
            self._asked = None
            if is_read_again:
                self._read_again = None, None
                self._turns_read_again -= self._replies_read_again

    def _ids_of_turn(
        self, content: str | Sequence[int] | Sequence[Message], role: str, *, replies: bool
    ) -> list[int]:
        last = self._conclude_last_turn()
        if isinstance(content, str):
            ids = self._closing(last)
            after = self._state.after
            if replies:
                ids = ids + self._turns.user(content, after=after)
            else:
                ids = ids + self._turns.message(role, content, after=after)
        else:
            check_content(content)
            ids = as_ids("session", "content", content, self._host.spec.vocab_size)
        if not ids:
            raise InvalidArgument(
                "session: `content` must hold at least 1 token, but is empty.", param="content"
            )
        return ids

    def _ids_of_results(self, results: Sequence[Message]) -> list[int]:
        last = self._conclude_last_turn()
        return self._closing(last) + self._turns.request(*results, after=self._state.after)

    def _closing(self, last: int | None) -> list[int]:
        return self._turns.closing(last) if self._state.reply_is_open else []

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

    # ---- thoughts; see Note: [Dropped thoughts] --------------------------------------------------

    def _start_to_drop(self, said: Sequence[Message], ids: list[int], reply: ReplyFormat) -> Stream:
        """Start a turn after which the session can return to its earlier state."""
        last = self._conclude_last_turn()
        before, end = self._native, self._length() + len(ids)
        fork = None
        limit = reply.options.get("max_tokens")
        capacity = least_capacity(self._host.spec, self.sinks, self.window)
        if limit is None or end + limit > capacity or self._tools.keeps_thoughts:
            fork = self._fork_or_none()
        tags = self._thoughts.tags
        assert reply.split is not None
        assert reply.reader is not None
        assert tags is not None
        asked = Asked(
            split=reply.split,
            calls=reply.reader.calls,
            said=tuple(said),
            has_thoughts=tags.form.is_prompted,
            state=self._state,
            closing=self._closing(last),
            end=end,
            source=before if fork else None,
        )
        try:
            self._native = fork or before
            stream = self._start_reply(ids, reply.options, reply.reader)
        except BaseException:
            self._native = before
            if fork is not None:
                fork.close()
            raise
        self._asked = replace(asked, stream=self._turn)
        return stream

    def _loop(self) -> Asked | None:
        """Return the last turn with its reply, if its thoughts stay until the results are read."""
        asked = self._asked
        if asked is None or asked.source is None or not self._tools.keeps_thoughts:
            return None
        self._conclude_last_turn()
        reply, is_whole = self._last_reply(asked)
        try:
            return asked.with_reply(reply, is_whole=is_whole)
        except InvalidArgument:  # dropping the thoughts says why
            return None

    def _continue_loop(
        self, loop: Asked, results: Sequence[Message], ids: list[int], reply: ReplyFormat
    ) -> Stream:
        """Start the reply to results in the fork in which the calls were made."""
        assert reply.split is not None
        assert reply.reader is not None
        assert self._asked is not None  # `loop` is this turn, with its reply
        asked = replace(
            loop,
            has_results=True,
            split=reply.split,
            calls=reply.reader.calls,
            said=(*loop.said, *results),
            end=self._length() + len(ids),
            before=replace(self._asked, before=None),
        )
        stream = self._start_reply(ids, reply.options, reply.reader)
        self._asked = replace(asked, stream=self._turn)
        return stream

    def _length(self) -> int:
        """Return the number of tokens in the conversation, including the last one of a reply."""
        stats = self.stats
        return stats.tokens + len(self.token_ids) - stats.live_tokens

    def _last_reply(self, asked: Asked) -> tuple[list[int], bool]:
        """Return the ids of the last reply that the model still sees, and whether these are all."""
        ids, count = self.token_ids, self._length() - asked.end
        seen = len(ids) - (self.sinks if self.stats.evicted_tokens else 0)
        return ids[len(ids) - min(count, seen) :], count <= seen

    def _fork_or_none(self) -> _core.Session | None:
        try:
            return self._host.native.fork_session(self._native)
        except CapacityError:
            return None

    def _release_second(self) -> None:
        """Release the second sequence that the last turn may hold, by dropping its thoughts."""
        with self._one_caller():
            self._drop_thoughts()

    def _drop_thoughts(self, before: str | None = None) -> None:
        """Read the last turn again without its thoughts, if the session drops them and it has any.

        Args:
            before: The role of the message that follows; None if unknown.

        Raises:
            SessionBusy: The turn is still running.
        """
        asked = self._asked
        if asked is None:
            return
        self._conclude_last_turn()
        reply, is_whole = self._last_reply(asked)
        self._asked = None
        exchange = None
        if reply or asked.has_results:
            try:
                exchange = without_thoughts(
                    asked, reply, self._turns, is_whole=is_whole, before=before
                )
            except InvalidArgument as error:
                self._warn_once(str(error))
        turn = self._turn
        if exchange is None or not self._go_back(asked):
            if asked.source is not None:
                asked.source.close()
            return
        self._read(exchange, ConversationState("assistant"))
        self._read_again = turn, self._turn
        self._replies_read_again = asked.replies
        self._turns_read_again += asked.replies

    def _go_back(self, asked: Asked) -> bool:
        """Return to the state before the last turn, if that is possible."""
        if asked.source is not None:
            self._conclude_last_turn_at(asked.source, asked.state)
            return True
        assert self._turn is not None  # the turn that was asked for
        try:
            self._host.native.take_back(self._native, self._turn)
        except (CapacityError, InvalidArgument):
            self._warn_once(STAYS)
            return False
        self._state = asked.state
        return True

    def _conclude_last_turn_at(self, source: _core.Session, state: ConversationState) -> None:
        """Continue the session that was forked for the last turn, instead of the fork."""
        fork, self._native = self._native, source
        fork.close()
        self._state, self._asked, self._turn = state, None, None

    def _warn_once(self, sentence: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn_caller(sentence)

    # ---- turns, inside ---------------------------------------------------------------------------

    def _start_reply(
        self, ids: list[int], options: StreamOptions, reader: ThoughtReader | None
    ) -> Stream:
        state = ConversationState("assistant", reply_is_open=True)
        return self._start(ids, options, state, reader)

    def _start(
        self,
        ids: list[int],
        options: StreamOptions,
        state: ConversationState,
        reader: ThoughtReader | None = None,
    ) -> Stream:
        request = make_request(
            ids,
            options,
            defaults=self._host.defaults,
            vocab_size=self._host.spec.vocab_size,
            continues_text=self._host.continues_text,
            control_tokens=self._host.control_tokens,
            grammar_name="tools" if reader is not None and reader.follows_grammar else "grammar",
            grammars=self._host.grammars,
        )
        self._before = (self._state, self.stats.tokens)
        self._state = state  # set first: an interrupt may come at any time after the turn begins
        native = self._host.native.submit(request, self._native)
        self._turn = native
        has_rule = request.grammar is not None
        stream = Stream(
            native,
            request,
            self._host.model,
            has_text=self._host.tokenizer is not None,
            window=(self.sinks, self.window),
            take_back=self._take_back,
            reader=reader if reader is None or reader.follows_grammar == has_rule else None,
        )
        # The session keeps `native`, which would otherwise end the turn of a forgotten stream.
        weakref.finalize(stream, native.close).atexit = False
        return stream

    def _read(self, ids: list[int], state: ConversationState) -> Stats:
        with self._start_reading(ids, state) as stream:
            stats = stream.result().stats
        self._state = state
        return stats

    async def _aread(self, ids: list[int], state: ConversationState) -> Stats:
        async with self._start_reading(ids, state) as stream:
            stats = (await stream.aresult()).stats
        self._state = state
        return stats

    def _start_reading(self, ids: list[int], state: ConversationState) -> Stream:
        """Process ids without a reply. If interrupted, close the message like a reply."""
        return self._start(ids, {"max_tokens": 0}, replace(state, reply_is_open=True))

    @contextmanager
    def _one_caller(self) -> Iterator[None]:
        if not self._caller.acquire(blocking=False):
            raise SessionBusy(
                "session: only one thread or task can use a session at a time, but another is "
                "using this session."
            )
        try:
            yield
        finally:
            self._caller.release()

    # ---- whole conversations ---------------------------------------------------------------------

    def fork(self) -> Session:
        """Return a second, independent session with the same contents.

        Its memory is reserved immediately. Forking copies nothing: the two sessions share pages
        until they diverge (copy-on-write).

        Raises:
            CapacityError: There is no memory for another session.
            InvalidArgument: The session is closed.
            SessionBusy: A turn is running.
            EngineDead: The model is closed, or its engine has failed.
        """
        with self._one_caller():
            self._drop_thoughts()
            self._conclude_last_turn()
            native = self._host.native.fork_session(self._native)
            fork = Session(
                native,
                self._host,
                self._turns,
                self._state,
                system_tokens=self._system_tokens,
                thoughts=self._thoughts,
                tools=self._tools,
            )
            fork._turns_read_again = self._turns_read_again
            return fork

    async def afork(self) -> Session:
        """Return a second session as `fork` does, without blocking the event loop.

        Raises:
            Exception: Any error that `fork` raises.
        """
        return await in_thread(lambda _: self.fork(), Session.close)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file from which `Model.load_session` continues the session bit for bit.

        The file holds the keys, values and ids of the live tokens, so anyone who has it can read
        the conversation. `path` is always either the complete old file or the complete new one. A
        leading `~` is expanded; a symbolic link is kept, and its target is replaced.

        Raises:
            OSError: The file cannot be written there.
            InvalidArgument: The session is closed.
            SessionBusy: A turn is running.
            EngineDead: The model is closed, or its engine has failed.
        """
        self._save(path, wanted)

    async def asave(self, path: str | os.PathLike[str]) -> None:
        """Write the session to a file as `save` does, without blocking the event loop.

        If the task is cancelled, `path` is either the complete old file or the complete new one,
        and nothing more is written.

        Raises:
            Exception: Any error that `save` raises.
        """
        await asyncio.to_thread(self._host.native.fingerprint)
        await in_thread(lambda check: self._save(path, check), lambda _: None)

    def _save(
        self,
        path: str | os.PathLike[str],
        check: Check,
        labels: Mapping[str, str | int] | None = None,
        *,
        flush: bool = True,
    ) -> None:
        native = self._host.native
        native.fingerprint()  # reads all weights the first time: before the session is locked
        with self._one_caller():
            self._drop_thoughts()
            self._conclude_last_turn()
            fields: dict[str, str | int] = {
                "after": self._state.after or "",
                "reply_is_open": int(self._state.reply_is_open),
                **self._thoughts.fields,
                **self._tools.fields,
                **(labels or {}),
            }
            record = saved.record_of(
                native, self._native, self._host.spec, self._system_tokens, fields
            )
            turns = record.state.turns + self._turns_read_again
            record = replace(record, state=replace(record.state, turns=turns))
        write_session_file(path, record, check, flush=flush)

    def close(self) -> None:
        """End the session and release its memory. May be called more than once."""
        asked, self._asked = self._asked, None
        if asked is not None and asked.source is not None:
            asked.source.close()
        self._native.close()
        self._turn = None

    # ---- inspection ------------------------------------------------------------------------------

    @property
    def token_ids(self) -> list[int]:
        """Return the ids of the conversation that the model sees: sinks, then the window.

        They include the last token of a reply, which enters the cache with the next turn.

        Raises:
            InvalidArgument: The session is closed.
            EngineDead: The model is closed, or its engine has failed.
        """
        return self._host.native.ids_of(self._native)

    @property
    def transcript(self) -> str:
        """Return the text of `token_ids`, including control tokens.

        Evicted tokens leave no mark: the text before and after them is joined.

        Raises:
            InvalidArgument: The checkpoint has no tokenizer, or the session is closed.
            EngineDead: The model is closed, or its engine has failed.
        """
        if self._host.tokenizer is None:
            raise InvalidArgument(
                "session: the checkpoint must have a tokenizer for a transcript, but has none. "
                "Use `token_ids`."
            )
        return self._host.tokenizer.decode(self.token_ids, skip_special_tokens=False)

    @property
    def stats(self) -> SessionStats:
        """Return the current counts; while a turn is running, as of the last step."""
        stats = SessionStats(**self._native.stats())
        if self._turns_read_again == 0:
            return stats
        return replace(stats, turns=stats.turns + self._turns_read_again)

    @property
    def sinks(self) -> int:
        """Return S, the number of tokens at the start of the text that always stay."""
        return self._native.sinks

    @property
    def window(self) -> int:
        """Return W: how many of the most recent tokens stay in the cache, with the current one."""
        return self._native.window


def _as_next(role: str) -> str:
    """Return how a template treats what comes before a message of a role."""
    return "tool" if role == "tool" else "user"
