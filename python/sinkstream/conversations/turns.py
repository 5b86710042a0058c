"""What a caller needs from a store of conversations: begin a turn, read its stream, end it.

Knows nothing about HTTP or about any store. `plain_turns.py` keeps nothing between requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, Protocol

from sinkstream.conversations.promises import Promises
from sinkstream.conversations.transcript import ListedConversation, StoredTurn, TurnOutline
from sinkstream.request.options import StreamOptions
from sinkstream.request.template_variables import Thinking
from sinkstream.request.tools import Tools
from sinkstream.sessions.pinned import Sinks
from sinkstream.streams.events import FinishReason, Stats
from sinkstream.streams.served_stream import ServedStream

TurnState = Literal["resident", "undone", "loaded", "replayed", "new"]
"""Where the conversation before this turn was: in memory, in memory after undoing a turn, in a
snapshot file, in the store as token ids, or nowhere."""


def engine_salt(tenant: str, cache_salt: str) -> str:
    """Return what requests must have in common to share a cached beginning, or to be guessed.

    Otherwise the time to the first token, the time between tokens and `cached_tokens` would show
    what another tenant's conversations say.
    """
    parts = json.dumps([tenant, cache_salt]).encode()
    return blake2b(parts, digest_size=16).hexdigest()


class Waiting(Protocol):
    """What a thread is in while it waits for the model to read, or for another thread."""

    def __call__(self, cancel: Callable[[], object] | None = None) -> AbstractContextManager[None]:
        """Return the context; `cancel` ends the wait, and may be called by any thread."""


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One turn to generate."""

    tenant: str
    """A hash of the API key; "" without keys."""
    messages: list[dict[str, Any]]
    """In OpenAI's form. `Turns.begin` checks them, and ignores fields that no template reads."""
    options: StreamOptions
    """As for `Session.stream`."""
    previous: str | None = None
    """The id of a node to continue; `messages` are then only the new ones."""
    session_key: str | None = None
    """The client's name for the conversation: a hint that breaks ties."""
    cache_salt: str = ""
    """Conversations with different salts share nothing."""
    store: bool = True
    """If False, nothing is written to disk."""
    continue_final: bool = False
    """Whether the last message is the assistant's, and the reply continues it."""
    thinking: Thinking = None
    """As for `Model.stream`, and further variables, as the chat template reads them."""
    tools: Tools | None = None
    """What the reply may call."""
    forks: bool = False
    """Whether a `previous` turn that is not stored stays in memory as well, if there is room."""
    node: str | None = None
    """The id that the turn will have; None for a new one."""
    record: str = ""
    """What `Turns.text_of` returns in addition to the text: the caller's own."""
    sinks: Sinks = None
    """What of the conversation stays in the window for good, if it begins here; None for what the
    turns were opened with. One that is continued keeps its own."""
    refuses_overflow: bool = False
    """Whether a prompt that is longer than what the model sees is an error."""
    has_siblings: bool = False
    """Whether other turns of the same request continue the same turn at the same time."""

    @property
    def given(self) -> str | None:
        """Return the text that the reply continues; None if it continues no message.

        Content that is malformed is refused where messages are read, and counts as none here.
        """
        if not self.continue_final:
            return None
        content = self.messages[-1].get("content")
        if isinstance(content, str):
            return content
        parts = content if isinstance(content, list) else []
        texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
        return "\n".join(text for text in texts if isinstance(text, str))

    @property
    def engine_salt(self) -> str:
        """Return the `cache_salt` of its sequence."""
        return engine_salt(self.tenant, self.cache_salt)


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A completion of plain text or of token ids."""

    prompt: str | Sequence[int]
    options: StreamOptions
    """As for `Model.stream`."""
    salt: str = ""
    """What `engine_salt` returned."""
    sinks: Sinks = None
    """As for a turn; plain text has no system prompt, so "system" stands for the model's S."""
    refuses_overflow: bool = False
    """As for a turn."""


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """What is known about a turn when it begins."""

    state: TurnState
    node: str
    """The id that this turn will have."""
    session: str
    prompt_tokens: int
    """Tokens of the conversation before the reply, including evicted ones."""
    cached_tokens: int
    """How many of `prompt_tokens` need not be read."""
    replayed_tokens: int
    """How many of those that are read are stored ids of earlier turns."""
    read_tokens: int = 0
    """How many of those that are read were read before the turn began."""
    read_s: float = 0.0
    """How long that took."""
    pinned_tokens: int = 0
    """How many tokens at the start of the conversation stay in the window for good."""
    dropped_tokens: int = 0
    """How many tokens that the request adds have left the window before the reply begins."""
    warning: str = ""
    """A sentence about them; "" if there are none."""


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """What remains of a turn after its end."""

    node: str
    """The id of the committed turn; "" if nothing is kept."""
    finish_reason: FinishReason
    stats: Stats
    thought_tokens: int = 0
    """How many of the generated tokens were thoughts and the tags around them."""
    has_calls: bool = False
    """Whether the reply calls tools."""


@dataclass(frozen=True, slots=True)
class TurnText:
    """A stored turn, as text."""

    previous: str | None
    """The turn that it follows."""
    messages: list[dict[str, Any]]
    """What it read after that, in canonical form."""
    given: str
    """The beginning of the reply, if the last message is one."""
    text: str
    """The reply that was generated."""
    finish_reason: str
    """"interrupted" if the server was killed; "" if the turn is running."""
    created_at: float
    record: str
    """The request's record."""
    note: str
    """What `Turns.note` wrote; "" if nothing."""


class Turn(Protocol):
    """One running reply."""

    @property
    def stream(self) -> ServedStream:
        """Return the reply; the caller reads it and closes it."""
        ...

    @property
    def facts(self) -> TurnFacts:
        """Return what is known from the beginning."""
        ...

    def end(self) -> TurnEnd:
        """Commit the turn, and free or keep its session. Blocks briefly.

        Call it once, after the stream has ended in whatever way.
        """
        ...


class Turns(Protocol):
    """Begins turns. Any thread may call it."""

    @property
    def promises(self) -> Promises | None:
        """Return where promises of replies are kept; None if nothing is."""
        ...

    @property
    def trouble(self) -> str | None:
        """Return why no turn can be kept at present; None if all is well."""
        ...

    def begin(self, request: TurnRequest) -> Turn:
        """Start generating a reply. Blocks: it is called in a worker thread.

        Raises:
            InvalidArgument: A value is out of range, or a message is malformed.
            ContextExceeded: What is to be pinned, or a prompt that may not overflow, is too long.
            NotFound: There is no node `previous`.
            SessionBusy: The conversation is in use and cannot be branched.
            CapacityError: There is no memory for another conversation.
        """
        ...

    def begin_text(self, asked: TextRequest) -> Turn:
        """Start a completion of plain text or of token ids, which is not kept. Blocks.

        Raises:
            ContextExceeded: A prompt that may not overflow is too long.
            CapacityError: There is no memory for it.
            Exception: Any error that `Model.stream` raises.
        """
        ...

    def wait_in(self, waiting: Waiting) -> None:
        """Say what a thread of the caller is in while `begin` waits for the model to read."""
        ...

    def prompt_tokens(self, request: TurnRequest) -> int:
        """Return the `prompt_tokens` that `begin` would report. Blocks.

        Raises:
            Exception: Any error about a message or a name that `begin` raises.
        """
        ...

    def text_of(self, tenant: str, name: str, *, may_run: bool = False) -> TurnText:
        """Return a turn that is stored and complete, or also one that runs. Blocks briefly.

        Raises:
            NotFound: The tenant has no such turn.
        """
        ...

    def note(self, name: str, note: str) -> None:
        """Keep a note with a stored turn, if it exists. Blocks briefly."""
        ...

    def conversations(
        self, tenant: str, limit: int, after: str | None = None
    ) -> list[ListedConversation]:
        """Return a tenant's kept conversations, latest first: at most `limit`, after a given one.

        A single turn that was never continued, and that its client did not name, is not listed: it
        may be a title that a program asked for.

        Raises:
            NotFound: The tenant has no conversation `after`.
        """
        ...

    def rename(self, tenant: str, name: str, title: str) -> None:
        """Give a conversation another title. Blocks briefly.

        Raises:
            NotFound: The tenant has no such conversation.
            SessionBusy: Another process is running a turn of it.
        """
        ...

    def outline(self, tenant: str, name: str) -> list[TurnOutline]:
        """Return the turns of a conversation, or of the one that a turn belongs to, oldest first.

        Raises:
            NotFound: The tenant has no such conversation or turn.
        """
        ...

    def transcript(self, tenant: str, name: str) -> list[StoredTurn]:
        """Return the turns of a conversation, oldest first, or a single turn.

        Raises:
            NotFound: The tenant has no such conversation or turn.
        """
        ...

    def save(self, tenant: str, name: str, path: Path) -> None:
        """Write the state at the end of a turn or a conversation, as `Session.save` does. Blocks.

        Raises:
            NotFound: The tenant has no such conversation or turn.
            CapacityError: There is no memory to restore it.
            OSError: The file cannot be written.
        """
        ...

    def delete(self, tenant: str, name: str) -> None:
        """Delete a conversation, or a turn with all turns that follow it. Blocks briefly.

        Raises:
            NotFound: The tenant has no such conversation or turn.
            SessionBusy: A turn of the conversation is running.
        """
        ...

    def close(self) -> None:
        """End all turns; stored turns stay in the store. May be called more than once."""
        ...


def note_of_calls(calls: Sequence[Mapping[str, Any]], **further: Any) -> str:
    """Return a note on a turn whose reply calls tools; `calls` are as in a message."""
    return json.dumps({"tool_calls": list(calls), **further}, ensure_ascii=False)


def calls_of(turn: TurnText) -> list[dict[str, Any]]:
    """Return the `tool_calls` of a stored turn's reply."""
    calls: list[dict[str, Any]] = json.loads(turn.note).get("tool_calls", []) if turn.note else []
    return calls


class NotFound(LookupError):
    """There is no such node, session or response for this tenant."""


def deleted(turn: str) -> NotFound:
    """Return the error for a request that continues a turn which was deleted meanwhile."""
    return NotFound(f"stream: `previous` must name a turn, but {turn} was deleted.")
