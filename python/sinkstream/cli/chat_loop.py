"""Runs the lines of a chat in its sessions: sends a message to the model, or runs a command."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from rich.console import Console
from rich.text import Text

from sinkstream.checkpoint.quoting import quoted
from sinkstream.cli.chat_commands import (
    Command,
    Message,
    Settings,
    help_text,
    parse,
    split_ending,
)
from sinkstream.cli.generate import write_text
from sinkstream.cli.standard_streams import OutputError
from sinkstream.cli.terminal import fold, printable, width_of
from sinkstream.errors import InvalidArgument, SinkstreamError
from sinkstream.files import expand_home
from sinkstream.model import Model
from sinkstream.request.options import Sampling, StreamOptions
from sinkstream.sessions.session import (
    Session,
    keep_starts,
    messages_in_view,
    release_second,
)
from sinkstream.streams.stream import Stream

Sinks = int | Literal["system"] | None

MOST = 3
"""Sessions at once: the current conversation, the kept copy, and a third one. That is where the
current conversation was before its last turn, so that /undo and /retry take no time, or a
replacement: a session is closed only after that exists, so that an error loses nothing."""


@dataclass
class Conversation:
    """A session, and what the chat knows about it."""

    session: Session
    system: str | None
    """The system prompt it started with; None for the template's own."""
    last: Stream | None = None
    """The last turn, if it took place in this chat."""
    tries: int = 0
    """How often the last reply has been replaced."""
    has_reported_eviction: bool = False


class Conversations:
    """The current conversation, and the kept copy.

    A method that raises leaves both unchanged.
    """

    def __init__(
        self, model: Model, sinks: Sinks, system: str | None = None, path: Path | None = None
    ) -> None:
        """Start a conversation, or continue one saved in `path`, which has its own system prompt.

        The model must have `max_sequences` of at least `MOST`.
        """
        self._model = model
        self._sinks = sinks
        self._kept: Conversation | None = None
        self.current = self._new(system) if path is None else self._saved(path)

    def start(self, system: str | None) -> None:
        """Start a new conversation."""
        release_second(self.current.session)
        self._continue(self._new(system))

    def load(self, path: Path) -> None:
        """Continue a saved conversation."""
        release_second(self.current.session)
        self._continue(self._saved(path))

    def fork(self) -> None:
        """Keep a copy, replacing any earlier one."""
        release_second(self.current.session)
        kept, self._kept = self._kept, self._copy_of(self.current)
        if kept is not None:
            kept.session.close()

    def back(self) -> None:
        """Continue from the copy, which is kept."""
        if self._kept is None:
            raise InvalidArgument("chat: /back must follow a /fork, but no copy exists.")
        release_second(self.current.session)
        self._continue(self._copy_of(self._kept))

    def undo(self, command: str = "/undo") -> list[dict[str, Any]]:
        """Remove the last turn and return its messages; errors name what the user typed."""
        try:
            removed = self.current.session.undo()
        except InvalidArgument as error:
            sentence = str(error).removeprefix("undo: ")
            raise InvalidArgument(f"chat: {command}: {sentence}") from None
        self.current.last, self.current.tries = None, 0
        return removed

    def _new(self, system: str | None) -> Conversation:
        return Conversation(keep_starts(self._model.session(system, sinks=self._sinks)), system)

    def _saved(self, path: Path) -> Conversation:
        session = keep_starts(self._model.load_session(path))
        opening = session.messages[:1]
        has_system = bool(opening) and opening[0]["role"] == "system"
        return Conversation(session, opening[0]["content"] if has_system else None)

    def _copy_of(self, conversation: Conversation) -> Conversation:
        return replace(conversation, session=keep_starts(conversation.session.fork()), last=None)

    def _continue(self, conversation: Conversation) -> None:
        former, self.current = self.current, conversation
        former.session.close()


_PROMPT = "> "
_CONTINUED = "| "
_TWICE_S = 1.0  # a second Ctrl-C within this time ends the chat


class Lines(Protocol):
    """A source of lines."""

    def read(self, prompt: str) -> str | None:
        """Return the next line without its newline; None at the end.

        Raises:
            InvalidArgument: The line is not in the expected encoding.
        """


def read_entry(lines: Lines) -> str | None:
    """Return the next line together with its continuation lines; None at the end."""
    parts: list[str] = []
    is_continued = True
    while is_continued:
        line = lines.read(_CONTINUED if parts else _PROMPT)
        if line is None:
            break
        part, is_continued = split_ending(line)
        parts.append(part)
    return "\n".join(parts) if parts else None


class Talk:
    """Runs one line after another.

    Replies go to standard output, everything else to standard error. A failure is reported
    in one line. A failed command changes nothing; a reply that fails midway stays as it is.
    """

    def __init__(
        self,
        conversations: Conversations,
        replies: StreamOptions,
        default_tokens: int | None = None,
        defaults: Sampling | None = None,
    ) -> None:
        """Run lines on `conversations`.

        /set changes `replies`, the options of each reply; without a limit there, that of
        `default_tokens` applies, if any. `defaults` are those of the model, which /set shows.
        """
        self._conversations = conversations
        self._settings = Settings(replies, default_tokens, defaults)
        self._is_typed = False
        self._has_ended = False
        self._has_failed = False

    def read_all(self, lines: Lines) -> bool:
        """Run all lines of a file or a pipe; return whether all succeeded."""
        while not self._has_ended:
            self._do_next(lines)
        return not self._has_failed

    def listen(self, lines: Lines) -> None:
        """Run typed lines. Ctrl-C ends a reply; pressing it twice ends the chat."""
        self._is_typed = True
        interrupted_at = float("-inf")
        while not self._has_ended:
            try:
                self._do_next(lines)
            except KeyboardInterrupt:
                sys.stderr.write("\n")
                now = time.monotonic()
                if now - interrupted_at < _TWICE_S:
                    return
                interrupted_at = now
                note("Press Ctrl-C again, or Ctrl-D, to end the chat.")

    def _do_next(self, lines: Lines) -> None:
        try:
            entry = read_entry(lines)
            if entry is None:
                self._has_ended = True
                if self._is_typed:
                    sys.stderr.write("\n")  # so that later output does not follow the prompt
                return
            meaning = parse(entry)
            if isinstance(meaning, Message):
                self._send(meaning.text)
            elif meaning is not None:
                self._run(meaning)
        except (BrokenPipeError, OutputError):
            raise  # the replies cannot be read
        except SinkstreamError as error:
            self._fail(str(error))
        except OSError as error:
            self._fail(error.strerror or str(error))

    def _send(self, text: str | list[dict[str, Any]], tries: int = 0) -> None:
        conversation = self._conversations.current
        options = self._settings.options
        seed = options.get("seed")
        if tries and seed is not None:  # with the same seed, it would be the same reply
            options = {**options, "seed": (seed + tries) % 2**64}
        with conversation.session.stream(text, **options) as stream:
            conversation.last, conversation.tries = stream, tries
            try:
                write_text(stream)
            except KeyboardInterrupt:
                if not self._is_typed:
                    raise
                stream.cancel()
                write_text(stream)  # tokens that are already in the conversation
                note("The reply ends here. It stays in the conversation.")
            except SinkstreamError:
                sys.stdout.write("\n")
                raise
        limit = self._settings.default_limit
        if stream.finish_reason == "length" and limit is not None:
            note(
                f"The reply ends after {limit:,} tokens, the default in a chat. /set max-tokens "
                "changes the limit."
            )
        self._report_eviction(conversation)

    def _retry(self) -> None:
        tries = self._conversations.current.tries
        removed = self._conversations.undo("/retry")
        is_question = removed[0]["role"] != "tool"
        results = [message for message in removed if message["role"] == "tool"]
        self._send(removed[0]["content"] if is_question else results, tries + 1)

    def _run(self, command: Command) -> None:
        conversations, argument = self._conversations, command.argument
        match command.name:
            case "help":
                note(help_text(argument))
            case "quit":
                self._has_ended = True
            case "stats":
                note(_stats_of(conversations.current))
            case "reset":
                self._start(conversations.current.system)
            case "system":
                self._start(argument)
            case "save":
                conversations.current.session.save(expand_home(argument))
                note(f"Saved to {quoted(argument)}.")
            case "load":
                conversations.load(expand_home(argument))
                note(f"Continuing {quoted(argument)}: {_stats_of(conversations.current)}")
                self.show_last_exchange()
                self._report_eviction(conversations.current)
            case "fork":
                conversations.fork()
                note("Kept a copy. /back returns to it.")
            case "back":
                conversations.back()
                note(f"Back to the copy: {_stats_of(conversations.current)}")
            case "undo":
                conversations.undo()
                unread = conversations.current.session.stats.unread_tokens
                note(f"Removed the last question and its reply.{_reads_again(unread)}")
            case "retry":
                self._retry()
            case "history":
                note(_history_of(conversations.current.session))
            case "set":
                note(self._settings.change(argument) if argument else self._settings.listing())

    def show_last_exchange(self) -> None:
        """Show where a saved conversation continues."""
        messages = self._conversations.current.session.messages
        questions = [i for i, one in enumerate(messages) if one["role"] == "user"]
        if questions:
            note(_written(messages[questions[-1] :]))

    def _start(self, system: str | None) -> None:
        self._conversations.start(system)
        prompt = "the default" if system is None else quoted(system)
        note(f"New conversation. System prompt: {prompt}.")

    def _report_eviction(self, conversation: Conversation) -> None:
        evicted = conversation.session.stats.evicted_tokens
        if evicted == 0 or conversation.has_reported_eviction:
            return
        conversation.has_reported_eviction = True
        note(
            f"The conversation is longer than the window. The model no longer sees its first turns "
            f"({evicted:,} tokens so far), except for the {conversation.session.sinks:,} sinks."
        )

    def _fail(self, sentence: str) -> None:
        self._has_failed = True
        sys.stdout.flush()
        print(fold(f"sinkstream: {printable(sentence)}", sys.stderr), file=sys.stderr)


def note(text: str) -> None:
    """Write a message of the program to standard error."""
    sys.stdout.flush()
    is_wide = width_of(sys.stderr) is None  # a pipe's lines have no end
    Console(stderr=True).print(Text(printable(text), style="dim"), soft_wrap=is_wide)


def _reads_again(tokens: int) -> str:
    if tokens == 0:
        return ""
    return f" The next message reads {tokens:,} earlier tokens again, which have left the cache."


def _written(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return messages as they were typed and answered."""
    lines = []
    for message in messages:
        text = str(message["content"]).strip()
        if message["role"] == "system":
            continue
        lines.append("> " + text.replace("\n", "\n| ") if message["role"] == "user" else text)
    return "\n".join(lines)


def _history_of(session: Session) -> str:
    """Return a conversation, and where the model's view of it begins."""
    forgotten, seen = messages_in_view(session)
    if not forgotten and not seen:
        return "There is no turn yet."
    if not forgotten:
        return _written(seen)
    mark = "--- The model no longer sees the turns above. ---"
    return "\n".join(filter(None, (_written(forgotten), mark, _written(seen))))


def _stats_of(conversation: Conversation) -> str:
    stats = conversation.session.stats
    parts = [
        f"{stats.turns:,} {'turn' if stats.turns == 1 else 'turns'}",
        f"{stats.live_tokens:,} tokens live",
        f"{stats.evicted_tokens:,} evicted",
    ]
    last = None if conversation.last is None else conversation.last.stats
    if last is not None and last.tokens_per_s is not None:
        parts.append(f"last reply at {last.tokens_per_s:.1f} tokens/s")
    if last is not None and last.draft_tokens:
        parts.append(f"{last.accepted_tokens:,} of its {last.draft_tokens:,} drafts accepted")
    return ", ".join(parts) + "."
