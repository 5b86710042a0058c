"""A client that asks a server for a text without end, and goes on wherever the server ends it.

It speaks `/v1/completions`, which every compared server has. Knows no server by name.
"""

from __future__ import annotations

import http.client
import itertools
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_READ_S = 600
_VAIN = 5  # replies without text, one after another, after which a client gives up


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that arrived at once: one token, or those of a few milliseconds."""

    text: str
    tokens: int
    at_s: float = 0.0  # on the clock of the text, which stands still while its server is stopped
    wait_s: float | None = None  # since the piece before; None for the first one of a turn


@dataclass(slots=True)
class End:
    """The server ended a reply, or refused a request, and the client had to go on."""

    at_tokens: int  # of the text so far
    reason: str  # what the client saw
    gap_s: float = 0.0  # until more text arrived
    resent_tokens: int = 0  # of the text, in the request that continued it


class GaveUp(Exception):
    """The server gives no more text; the message is what the client saw last."""


@dataclass
class Endless:
    """One text without end.

    `pieces` is an iterator over requests: when a reply ends, it asks for more. The next request has
    the beginning of the text and its last half context, as a client does that wants to go on; after
    a refusal, half as much.
    """

    port: int
    opening: str
    context: int
    body: Mapping[str, Any]  # the fields of a request, without those that this sets
    most_tokens: int
    text: list[Piece] = field(default_factory=list)
    tokens: int = 0
    ends: list[End] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)  # the last that the server reported

    def pieces(self) -> Iterator[Piece]:
        """Yield text as it arrives, up to `most_tokens`.

        The caller appends each piece, with its times, by `add`.

        Raises:
            GaveUp: Several requests in sequence got no text.
        """
        vain = 0
        rest: list[Piece] = []
        while self.tokens < self.most_tokens:
            ended = self.ends[-1] if self.ends else None
            asked_at, before = time.perf_counter(), self.tokens
            if ended is not None:
                rest = tail(self.text, self.context // 2 >> vain)
                ended.resent_tokens = sum(piece.tokens for piece in rest)
            prompt = self.opening + "".join(piece.text for piece in rest)
            reason = "the stream ended without a finish reason"
            try:
                for piece, finish_reason in self._reply(prompt):
                    if piece.text:
                        if ended is not None and self.tokens == before:
                            ended.gap_s += time.perf_counter() - asked_at
                        yield piece
                    if finish_reason is not None:
                        reason = f'finish reason "{finish_reason}"'
            except (OSError, http.client.HTTPException, _Refused) as error:
                reason = str(error) or type(error).__name__
            if self.tokens >= self.most_tokens:
                return
            vain = vain + 1 if self.tokens == before else 0
            if vain == _VAIN:
                raise GaveUp(reason)
            if vain and ended is not None:  # still the same end: the wait goes on
                ended.gap_s += time.perf_counter() - asked_at
                ended.reason += f"; {reason}"
            else:
                self.ends.append(End(self.tokens, reason))

    def add(self, piece: Piece) -> None:
        """Append a piece to the text."""
        self.text.append(piece)
        self.tokens += piece.tokens

    def _reply(self, prompt: str) -> Iterator[tuple[Piece, str | None]]:
        """Yield the events of one reply, with the finish reason if one has it."""
        body = {**self.body, "prompt": prompt, "stream": True}
        body["max_tokens"] = self.most_tokens - self.tokens
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_READ_S)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise _Refused(f"status {answer.status}: {_message(answer.read())}")
            counted = 0
            for line in answer:
                if line.startswith((b"error: ", b'data: {"error"')):
                    raise _Refused(f"an error in the stream: {_message(line.partition(b': ')[2])}")
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                self.usage = event.get("usage") or self.usage
                for choice in event.get("choices", ()):
                    total = _tokens_so_far(event) or counted + bool(choice["text"])
                    yield Piece(choice["text"], total - counted), choice.get("finish_reason")
                    counted = total
        finally:
            connection.close()


class _Refused(Exception):
    """The server answered a request with an error."""


def tail(text: list[Piece], tokens: int) -> list[Piece]:
    """Return the last pieces of a text that have at least `tokens` tokens; all if it has fewer."""
    counts = itertools.accumulate(piece.tokens for piece in reversed(text))
    pieces = next((i for i, count in enumerate(counts, 1) if count >= tokens), len(text))
    return text[len(text) - pieces :]


def _tokens_so_far(event: Mapping[str, Any]) -> int:
    """Return how many tokens a reply has, if its server says so; 0 if it does not."""
    usage, timings = event.get("usage") or {}, event.get("timings") or {}
    return int(usage.get("completion_tokens") or timings.get("predicted_n") or 0)


def _message(answer: bytes) -> str:
    """Return the message of an error in OpenAI's form, or the beginning of any other answer."""
    try:
        found = json.loads(answer)["error"]
        return str(found["message"] if isinstance(found, dict) else found)
    except (ValueError, KeyError, TypeError):
        return answer.decode(errors="replace").strip()[:200]
