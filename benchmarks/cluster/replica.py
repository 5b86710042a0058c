"""One simulated replica: a queue, seats, and an engine that all running sequences share.

A turn waits for a seat, loads a snapshot if it needs one, reads, and decodes. Decoding sequences
share every step. Prompts are read one after the other; while something decodes, a step reads only a
few tokens, and takes longer. Time flows without single steps: at a constant number of sequences,
each has the same speed.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .events import Events
from .service_times import ServiceTimes

_ALMOST = 1e-9  # of a token, or of a prompt: rounding


@dataclass(eq=False, slots=True)
class Turn:
    """One request."""

    number: int
    session: Any
    prompt_tokens: float
    reply_tokens: float
    """The first one comes as soon as the prompt is read."""
    asked_at_s: float
    """When its client asked first."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a turn needs before its first token."""

    delay_s: float
    """Before reading: of the request itself, and of loading a snapshot."""
    read_tokens: float


@dataclass(frozen=True, slots=True)
class Calls:
    """What a replica tells."""

    begin: Callable[[Turn], Work]
    """A turn has a seat; returns what it needs."""
    first_token: Callable[[Turn], None]
    end: Callable[[Turn], None]


@dataclass(eq=False, slots=True)
class Replica:
    """Serves turns until it is stopped."""

    events: Events
    times: ServiceTimes
    calls: Calls
    seats: int
    """Turns that run at the same time."""
    max_queue: int
    """Turns that may wait; further ones are refused."""
    _running: dict[Turn, None] = field(default_factory=dict)
    """In the order in which they began: a set has none that a seed decides."""
    _waiting: deque[Turn] = field(default_factory=deque)
    _reading: deque[tuple[Turn, float]] = field(default_factory=deque)
    """Turns, and the tokens to read."""
    _decoding: list[tuple[float, int, Turn]] = field(default_factory=list)
    """A heap by the count of tokens at which each ends."""
    _read: float = 0.0
    """How much of the first of `_reading` has been read, as a fraction."""
    _tokens: float = 0.0
    """Tokens that a sequence would have generated since the beginning."""
    _at_s: float = 0.0
    _version: int = 0
    _is_stopped: bool = False

    @property
    def in_progress(self) -> int:
        """Return the turns that run or wait."""
        return len(self._running) + len(self._waiting)

    def submit(self, turn: Turn) -> bool:
        """Take a turn, or refuse it: return whether there was room."""
        if self.in_progress >= self.seats + self.max_queue:
            return False
        self._waiting.append(turn)
        self._begin_waiting()
        return True

    def stop(self) -> list[Turn]:
        """Die, and return the turns that are cut off."""
        self._is_stopped = True
        self._version += 1
        return [*self._running, *self._waiting]

    def _begin_waiting(self) -> None:
        while self._waiting and len(self._running) < self.seats:
            turn = self._waiting.popleft()
            self._running[turn] = None
            work = self.calls.begin(turn)
            self.events.after(
                work.delay_s, lambda turn=turn, work=work: self._begin_reading(turn, work)
            )

    def _begin_reading(self, turn: Turn, work: Work) -> None:
        if not self._is_stopped:
            self._advance()
            self._reading.append((turn, work.read_tokens))
            self._plan()

    def _rates(self) -> tuple[float, float]:
        """Return tokens per second of a decoding sequence, and the seconds of the next prompt."""
        times, decoding = self.times, len(self._decoding)
        if not self._reading:
            return (1 / times.step_s(decoding) if decoding else 0.0), 0.0
        tokens = self._reading[0][1]
        if not decoding:
            return 0.0, times.read_s(tokens)
        crowding = times.crowding(decoding)
        return 1 / (times.step_beside_s * crowding), times.read_beside_s(tokens) * crowding

    def _advance(self) -> None:
        passed_s = self.events.now_s - self._at_s
        per_s, prompt_s = self._rates()
        self._tokens += passed_s * per_s
        if self._reading:
            self._read += passed_s / prompt_s if prompt_s else 1.0
        self._at_s = self.events.now_s

    def _plan(self) -> None:
        """Wake up when the next turn has been read or has ended."""
        self._version += 1
        per_s, prompt_s = self._rates()
        times = []
        if self._reading:
            times.append((1 - self._read) * prompt_s)
        if self._decoding:
            times.append((self._decoding[0][0] - self._tokens) / per_s)
        if times:
            self.events.after(min(times), lambda version=self._version: self._wake(version))

    def _wake(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        ended = []
        while self._decoding and self._decoding[0][0] <= self._tokens + _ALMOST:
            ended.append(heapq.heappop(self._decoding)[2])
        if self._reading and self._read >= 1 - _ALMOST:
            turn, _ = self._reading.popleft()
            self._read = 0.0
            self.calls.first_token(turn)
            mark = self._tokens + turn.reply_tokens - 1
            heapq.heappush(self._decoding, (mark, turn.number, turn))
        self._plan()
        for turn in ended:
            del self._running[turn]
            self.calls.end(turn)
        self._begin_waiting()
