"""One simulated replica: a queue, seats, and an engine that all running sequences share.

A turn waits for a seat, loads a snapshot if it needs one, reads, and decodes. Decoding sequences
share every step. While something decodes, a new prompt waits for the end of the current step; then
a step reads a few tokens, of one prompt after the other in turn, and takes longer. Time flows
without single steps: at a constant number of sequences, each has the same speed.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .events import Events
from .processors import Processors
from .service_times import ServiceTimes

_ALMOST_S = 1e-9  # rounding


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


@dataclass(eq=False, slots=True)
class Prompt:
    """A turn that is being read."""

    turn: Turn
    tokens: float
    left: float = 1.0
    """How much of it is not read yet, as a fraction."""


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
    processors: Processors = field(default_factory=Processors)
    """What its engine runs on."""
    _running: dict[Turn, None] = field(default_factory=dict)
    """In the order in which they began: a set has none that a seed decides."""
    _waiting: deque[Turn] = field(default_factory=deque)
    _reading: list[Prompt] = field(default_factory=list)
    _decoding: list[tuple[float, int, Turn]] = field(default_factory=list)
    """A heap by the count of tokens at which each ends."""
    _tokens: float = 0.0
    """Tokens that a sequence would have generated since the beginning."""
    _lost_s: float = 0.0
    """How long its engine will stand still, because its processor does something else."""
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
        self.processors.note(self, is_at_work=False)
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
        if self._is_stopped:
            return
        self.advance()
        step_left_s = 0.0
        if self._decoding:
            step_left_s = (math.ceil(self._tokens) - self._tokens) * self._step_s()
        if step_left_s > _ALMOST_S:
            self.events.after(step_left_s, lambda: self._read_next(turn, work.read_tokens))
        else:
            self._read_next(turn, work.read_tokens)

    def _read_next(self, turn: Turn, tokens: float) -> None:
        if not self._is_stopped:
            self.advance()
            self._reading.append(Prompt(turn, tokens))
            self.plan()

    def _step_s(self) -> float:
        """Return the time of a step in which something decodes."""
        times, decoding = self.times, len(self._decoding)
        if self._reading:
            step_s = times.step_while_reading_s * times.crowding(decoding)
        else:
            step_s = times.step_s(decoding)
        return self.processors.step_s(step_s, decoding)

    def _prompt_s(self, prompt: Prompt) -> float:
        """Return the time to read a whole prompt, if it is the only one."""
        times, decoding = self.times, len(self._decoding)
        if decoding:
            steps = times.read_while_decoding_s(prompt.tokens) / times.step_while_reading_s
            return steps * self._step_s()
        return self.processors.step_s(times.read_s(prompt.tokens), 0)

    def _read_now(self) -> list[Prompt]:
        """Return the prompts that are being read: those that share a step."""
        return self._reading if self._decoding else self._reading[:1]

    def advance(self) -> None:
        """Do what has been done until now, at the speed so far."""
        passed_s = self.events.now_s - self._at_s
        self._at_s = self.events.now_s
        lost_s = min(self._lost_s, passed_s)
        self._lost_s -= lost_s
        passed_s -= lost_s
        reading = self._read_now()
        whole_s = [self._prompt_s(one) * len(reading) for one in reading]
        if self._decoding:
            self._tokens += passed_s / self._step_s()
        for one, prompt_s in zip(reading, whole_s, strict=True):
            one.left = one.left - passed_s / prompt_s if prompt_s else 0.0

    def lose(self, seconds: float) -> None:
        """Stand still for a time."""
        self.advance()
        self._lost_s += seconds
        self.plan()

    def plan(self) -> None:
        """Wake up when the next turn has been read or has ended."""
        if self._is_stopped:
            return
        self.processors.note(self, is_at_work=bool(self._reading or self._decoding))
        self._version += 1
        reading = self._read_now()
        times = [one.left * self._prompt_s(one) * len(reading) for one in reading]
        if self._decoding:
            times.append((self._decoding[0][0] - self._tokens) * self._step_s())
        if times:
            self.events.after(
                self._lost_s + min(times), lambda version=self._version: self._wake(version)
            )

    def _wake(self, version: int) -> None:
        if version != self._version:
            return
        self.advance()
        read = [one for one in self._read_now() if one.left * self._prompt_s(one) <= _ALMOST_S]
        ended = []
        until = self._tokens + (_ALMOST_S / self._step_s() if self._decoding else 0.0)
        while self._decoding and self._decoding[0][0] <= until:
            ended.append(heapq.heappop(self._decoding)[2])
        if not self._decoding:
            self._tokens = 0.0  # a step begins, and no mark is left
        for one in read:
            self._reading.remove(one)
            self.calls.first_token(one.turn)
            mark = self._tokens + one.turn.reply_tokens - 1
            heapq.heappush(self._decoding, (mark, one.turn.number, one.turn))
        self.plan()
        for turn in ended:
            del self._running[turn]
            self.calls.end(turn)
        self._begin_waiting()
