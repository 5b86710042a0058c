"""Turns that keep nothing: every prompt is read anew, or shares an open session's beginning."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sinkstream.conversations.canonical import canonical_messages
from sinkstream.conversations.overflow import Prompt, check_fits, warning_of
from sinkstream.conversations.transcript import ListedConversation, StoredTurn, TurnOutline
from sinkstream.conversations.turns import (
    NotFound,
    TextRequest,
    TurnEnd,
    TurnFacts,
    TurnRequest,
    TurnText,
    Waiting,
)
from sinkstream.host import Host, ReplyOptions
from sinkstream.model import Model, host_of
from sinkstream.request.stream_request import StreamRequest, called_at
from sinkstream.sessions.pinned import Pinning, Sinks, leading
from sinkstream.streams.served_stream import ServedStream
from sinkstream.text.messages import without_unknown


@dataclass(slots=True)
class PlainTurn:
    """A reply without a conversation."""

    stream: ServedStream
    facts: TurnFacts
    on_end: Callable[[], None] = lambda: None
    """Called once, when the reply has ended."""

    def end(self) -> TurnEnd:
        """Close the stream; nothing is kept."""
        reason, stats = self.stream.finish_reason or "cancelled", self.stream.stats
        self.stream.close()
        on_end, self.on_end = self.on_end, lambda: None
        on_end()
        thoughts, has_calls = self.stream.thought_tokens, bool(self.stream.tool_calls)
        return TurnEnd("", reason, stats, thoughts, has_calls)


class PlainTurns:
    """Replies to whole conversations, each given by the client."""

    promises = None
    trouble = None

    def __init__(self, model: Model, sinks: Sinks = None) -> None:
        """Generate with `model`, which the caller closes.

        Args:
            model: The model.
            sinks: What of a conversation stays in the window if its request does not say.
        """
        self._host = host_of(model)
        self._pinning = Pinning(self._host, sinks)

    def begin(self, request: TurnRequest) -> PlainTurn:
        """Start a reply; see `Turns.begin`. A request that names an earlier turn is refused."""
        _check_previous(request)
        ids = self._encode(request)
        wanted = ReplyOptions(
            request.options,
            sinks=self._sinks_for(request, ids),
            thinking=request.thinking,
            tools=request.tools,
            given=request.given,
            cache_salt=request.engine_salt,
            called_at=called_at(),
        )
        prompt = self._host.complete(wanted, ids)
        return _turn(self._host, prompt, "messages", refuses=request.refuses_overflow)

    def _encode(self, request: TurnRequest) -> list[int]:
        return self._host.formats.encode_chat(
            without_unknown(request.messages),
            request.thinking,
            request.tools,
            is_open=request.continue_final,
        )

    def _sinks_for(self, request: TurnRequest, ids: Sequence[int]) -> int | None:
        first = leading(request.messages)
        checked = canonical_messages(first) if first else []
        return self._pinning.sinks_for(request.sinks, checked, request.thinking, request.tools, ids)

    def begin_text(self, asked: TextRequest) -> PlainTurn:
        """Start a completion; see `Turns.begin_text`."""
        return begin_text(self._host, asked, self._pinning)

    def wait_in(self, waiting: Waiting) -> None:
        """Do nothing: nothing is read before a reply begins."""

    def prompt_tokens(self, request: TurnRequest) -> int:
        """Return the tokens of the messages; see `Turns.prompt_tokens`."""
        _check_previous(request)
        return len(self._encode(request))

    def text_of(self, tenant: str, name: str, *, may_run: bool = False) -> TurnText:
        """Refuse with `NotFound`: nothing is kept."""
        raise NotFound("server: this server does not store responses.")

    def note(self, name: str, note: str) -> None:
        """Do nothing: no turn is stored."""

    def conversations(
        self, tenant: str, limit: int, after: str | None = None
    ) -> list[ListedConversation]:
        """Return none: nothing is kept."""
        if after is not None:
            raise NotFound("sessions: this server does not store conversations.")
        return []

    def rename(self, tenant: str, name: str, title: str) -> None:
        """Refuse with `NotFound`: nothing is kept."""
        raise NotFound("sessions: this server does not store conversations.")

    def outline(self, tenant: str, name: str) -> list[TurnOutline]:
        """Refuse with `NotFound`: nothing is kept."""
        raise NotFound("sessions: this server does not store conversations.")

    def transcript(self, tenant: str, name: str) -> list[StoredTurn]:
        """Refuse with `NotFound`: nothing is kept."""
        raise NotFound("sessions: this server does not store conversations.")

    def save(self, tenant: str, name: str, path: Path) -> None:
        """Refuse with `NotFound`: nothing is kept."""
        raise NotFound("sessions: this server does not store conversations.")

    def delete(self, tenant: str, name: str) -> None:
        """Refuse with `NotFound`: nothing is kept."""
        raise NotFound("delete: this server does not store conversations.")

    def close(self) -> None:
        """Do nothing: streams end with their requests."""


def _check_previous(request: TurnRequest) -> None:
    if request.previous is not None:
        raise NotFound("server: this server does not store responses, so none can be continued.")


def begin_text(host: Host, asked: TextRequest, pinning: Pinning) -> PlainTurn:
    """Start a completion of plain text or of token ids; see `Turns.begin_text`."""
    sinks = pinning.sinks_for_text(asked.sinks)
    wanted = ReplyOptions(asked.options, sinks, cache_salt=asked.salt, called_at=called_at())
    request = host.request_for(asked.prompt, wanted)
    return _turn(host, request, "prompt", refuses=asked.refuses_overflow)


def _turn(host: Host, request: StreamRequest, name: str, *, refuses: bool) -> PlainTurn:
    prompt, capacity = Prompt(0, len(request.prompt)), sum(host.window)
    if refuses:
        check_fits(prompt, capacity, name)
    stream = host.start_stream(ServedStream, request)
    sinks, window = stream.window
    dropped = prompt.dropped(sinks, window)
    facts = TurnFacts(
        state="new",
        node="",
        session=secrets.token_hex(8),
        prompt_tokens=stream.prompt_tokens,
        cached_tokens=0,
        replayed_tokens=0,
        pinned_tokens=min(sinks, prompt.tokens),
        dropped_tokens=dropped,
        warning=warning_of(prompt, dropped, sinks + window),
    )
    return PlainTurn(stream, facts)
