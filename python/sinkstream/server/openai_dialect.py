"""How OpenAI's chats and completions write replies: the bytes of chunks, and whole responses.

Only text goes through a JSON writer; the rest of a chunk is built once. Strict clients fix the
order and the fields: a first delta with the role, deltas with text, an empty delta with the finish
reason, then the usage if it was asked for, then [DONE].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import orjson

from sinkstream.conversations.turns import Turn, TurnEnd
from sinkstream.server.reply_pieces import Piece
from sinkstream.server.reply_response import Ended
from sinkstream.server.request_bodies import ChatRequest, Generation, StreamSettings
from sinkstream.server.response_forms import OPENAI
from sinkstream.server.usage import cache_facts, counts, finish_reason, own_facts, timings_of
from sinkstream.streams.kept_tokens import ScoredPrompt


class OpenAiDialect(ABC):
    """What chats and completions have in common; see `Dialect`. They differ in their choices."""

    form = OPENAI
    with_tokens = False
    is_long = False

    def __init__(self, body: Generation, head: dict[str, Any], chunk_head: dict[str, Any]) -> None:
        """Write what `body` asks for, after the fields of a whole response or of each chunk."""
        settings = body.stream_options or StreamSettings()
        self.is_stream = bool(body.stream)
        self.has_progress = bool(body.return_progress)
        self.has_prediction = isinstance(body, ChatRequest) and body.prediction is not None
        self._has_usage = bool(settings.include_usage)
        """Whether the last chunk has the usage."""
        self._has_continuous_usage = self._has_usage and bool(settings.continuous_usage_stats)
        """Whether each chunk has the usage so far."""
        self._has_timings = bool(body.timings_per_token)
        self._ignored = body.ignored
        self._head = head
        self._frames = Frames(chunk_head, includes_usage=self._has_usage)

    @abstractmethod
    def first_choices(self, index: int, prompt: ScoredPrompt) -> list[bytes]:
        """Return the choices to send before the text of a choice that has begun."""

    @abstractmethod
    def choice(self, index: int, piece: Piece, offset: int) -> bytes:
        """Return a choice with text, `offset` characters after its beginning."""

    @abstractmethod
    def last_choice(self, index: int, reason: str) -> bytes:
        """Return the choice that ends a choice."""

    @abstractmethod
    def whole_choice(self, index: int, piece: Piece, reason: str) -> dict[str, Any]:
        """Return a choice of a whole response."""

    def progress(self, progress: dict[str, Any]) -> bytes:
        """Return a chunk with `prompt_progress`, in llama.cpp's form."""
        return self._frames.without_choices(prompt_progress=progress)

    def first(self, index: int, turn: Turn) -> bytes:
        """Return the chunks before the text."""
        choices = self.first_choices(index, turn.stream.scored_prompt)
        return b"".join(self._frames.with_choice(one, self._usage_now(turn)) for one in choices)

    def piece(self, index: int, turn: Turn, piece: Piece, offset: int) -> bytes:
        """Return a chunk with text."""
        return self._frames.with_choice(self.choice(index, piece, offset), self._usage_now(turn))

    def last(self, index: int, turn: Turn, end: TurnEnd) -> bytes:
        """Return the chunk with the finish reason."""
        choice = self.last_choice(index, finish_reason(end))
        own = own_facts(turn.facts, end, self._ignored)
        return self._frames.last_of_choice(choice, own, self._usage_now(turn))

    def finish(self, ended: Ended, usage: dict[str, Any]) -> bytes:
        """Return the chunk with the usage, if it was asked for."""
        if not self._has_usage:
            return b""
        return self._frames.without_choices(usage=usage, **self._further(ended))

    def whole(self, replies: Sequence[tuple[Piece, Ended]], usage: dict[str, Any]) -> bytes:
        """Return a response with all choices and the usage."""
        choices = [
            self.whole_choice(index, piece, finish_reason(end))
            for index, (piece, (_, end)) in enumerate(replies)
        ]
        further = {"usage": usage, **self._further(replies[0][1])}
        return orjson.dumps({**self._head, "choices": choices, **further})

    def _further(self, ended: Ended) -> dict[str, Any]:
        """Return the requested fields that go next to the usage, for the first choice."""
        return {"timings": timings_of(*ended)} if self._has_timings else {}

    def _usage_now(self, turn: Turn) -> bytes | None:
        if not self._has_continuous_usage:
            return None
        facts, stats = turn.facts, turn.stream.stats
        usage = counts(facts.prompt_tokens, stats.generated_tokens)
        return orjson.dumps({**usage, "sinkstream": cache_facts(facts, stats)})


class Frames:
    """Writes the chunks of one stream."""

    def __init__(self, head: dict[str, Any], *, includes_usage: bool) -> None:
        """Begin each chunk with the fields of `head`: id, object, created, model and others."""
        self._head = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
        # With usage asked for, every chunk but the last one says that it has none.
        self._end = b'],"usage":null}\n\n' if includes_usage else b"]}\n\n"

    def with_choice(self, choice: bytes, usage: bytes | None = None) -> bytes:
        """Return a chunk with one choice."""
        if usage is None:
            return self._head + choice + self._end
        return self._head + choice + b'],"usage":' + usage + b"}\n\n"

    def last_of_choice(
        self, choice: bytes, extra: dict[str, Any], usage: bytes | None = None
    ) -> bytes:
        """Return the chunk that ends a choice, with sinkstream's own fields."""
        end = b',"sinkstream":' + orjson.dumps(extra) + b"}\n\n"
        return self.with_choice(choice, usage)[: -len(b"}\n\n")] + end

    def without_choices(self, **fields: Any) -> bytes:
        """Return a chunk without choices that has other fields."""
        return self._head + b"]," + orjson.dumps(fields)[1:] + b"\n\n"


def chat_role(index: int) -> bytes:
    """Return the first choice of a chat's stream."""
    return _chat(index, b'{"role":"assistant","content":""}')


def chat_text(index: int, text: str, logprobs: dict[str, Any] | None) -> bytes:
    """Return a choice with text."""
    return _chat(index, b'{"content":' + orjson.dumps(text) + b"}", _json(logprobs))


def chat_thought(index: int, thought: str) -> bytes:
    """Return a choice with a part of a reasoning model's thought."""
    return _chat(index, b'{"reasoning_content":' + orjson.dumps(thought) + b"}")


def chat_call(index: int, call: dict[str, Any]) -> bytes:
    """Return a choice with the beginning of a tool call, or with a part of its arguments."""
    return _chat(index, b'{"tool_calls":[' + orjson.dumps(call) + b"]}")


def with_fields(choice: bytes, **fields: Any) -> bytes:
    """Return a choice with further fields."""
    return choice[:-1] + b"," + orjson.dumps(fields)[1:] if fields else choice


def chat_finish(index: int, reason: str) -> bytes:
    """Return the last choice of a chat's stream."""
    return _chat(index, b"{}", reason=orjson.dumps(reason))


def _chat(index: int, delta: bytes, logprobs: bytes = b"null", reason: bytes = b"null") -> bytes:
    values = (index, delta, logprobs, reason)
    return b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}' % values


def completion_text(
    index: int, text: str, logprobs: dict[str, Any] | None = None, reason: str | None = None
) -> bytes:
    """Return a choice of a completion's stream."""
    values = (orjson.dumps(text), index, _json(logprobs), orjson.dumps(reason))
    return b'{"text":%b,"index":%d,"logprobs":%b,"finish_reason":%b}' % values


def _json(value: dict[str, Any] | None) -> bytes:
    return b"null" if value is None else orjson.dumps(value)
