"""The processors that the engines of some replicas share with everything else on their machine.

While fewer engines are at work than there are processors, the others do what is outside of the
engines: event loops, pools of threads, clients. While all processors have an engine, that work
takes its time from all of them, in equal parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from .service_times import Curve


class Engine(Protocol):
    """An engine with one thread."""

    def advance(self) -> None:
        """Do what has been done until now, at the speed so far."""
        ...

    def plan(self) -> None:
        """Go on at the speed of now."""
        ...

    def lose(self, seconds: float) -> None:
        """Stand still for a time."""
        ...


@dataclass(frozen=True, slots=True)
class Sharing:
    """What engines lose to each other and to what is outside of them, while all are at work."""

    processors: int
    together: float
    """How many times as long a step takes when all processors have an engine at work."""
    outside: float
    """How many times as long something outside of the engines takes then."""
    token_s: float
    """Processor time outside of the engines, of servers and clients: for each token of a reply."""
    turn_s: float
    """For each turn, in addition."""
    save_s: Curve
    """For a snapshot, by bytes."""


class Processors:
    """Knows which engines are at work."""

    def __init__(self, sharing: Sharing | None = None) -> None:
        """Share processors; None: each engine, and all else, has one of its own."""
        self._sharing = sharing
        self._at_work: dict[Engine, None] = {}

    def step_s(self, alone_s: float, tokens: int) -> float:
        """Return the time of a step, by that of an engine alone and the tokens that it gives."""
        sharing = self._full()
        if sharing is None:
            return alone_s
        return alone_s * sharing.together + tokens * sharing.token_s

    def outside_s(self, alone_s: float) -> float:
        """Return the time of something outside of the engines."""
        sharing = self._full()
        return alone_s if sharing is None else alone_s * sharing.outside

    def _full(self) -> Sharing | None:
        """Return what is lost now."""
        sharing = self._sharing
        is_full = sharing is not None and len(self._at_work) >= sharing.processors
        return sharing if is_full else None

    def note(self, engine: Engine, *, is_at_work: bool) -> None:
        """Take note that an engine, which has advanced, works or does not."""
        if (engine in self._at_work) == is_at_work:
            return
        others = [other for other in self._at_work if other is not engine]
        for other in others:
            other.advance()
        if is_at_work:
            self._at_work[engine] = None
        else:
            del self._at_work[engine]
        for other in others:
            other.plan()

    def take_turn(self) -> None:
        """Do what a turn needs outside of the engines."""
        if self._sharing is not None:
            self.work(self._sharing.turn_s)

    def save(self, size: float) -> None:
        """Write a snapshot of `size` bytes."""
        if self._sharing is not None:
            self.work(self._sharing.save_s(size))

    def work(self, seconds: float) -> None:
        """Do something outside of the engines, which takes that much of a processor's time."""
        sharing = self._full()
        if sharing is not None:
            for engine in list(self._at_work):
                engine.lose(seconds / sharing.processors)


def sharing_of(figures: dict[str, Any]) -> Sharing:
    """Return what a calibration has measured."""
    return Sharing(**{**figures, "save_s": Curve(figures["save_s"])})
