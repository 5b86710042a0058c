"""Where a session's next turn goes: three policies of a router.

The ring remembers nothing: a session moves whenever its arc gets another owner. The other two
remember where a session is, and move it only if its replica is gone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from .ring import Ring


class Placement(Protocol):
    """Chooses a replica for each turn."""

    def add(self, replica: str) -> None:
        """Use a new replica."""
        ...

    def remove(self, replica: str) -> None:
        """Use a replica no longer."""
        ...

    def choose(self, session: str) -> str:
        """Return the replica for a session's next turn."""
        ...

    def forget(self, session: str) -> None:
        """Take note that a session has ended."""
        ...


class RingPlacement:
    """The session's place on a ring."""

    def __init__(self, points: int = 100) -> None:
        self._ring = Ring(points)
        self.add, self.remove, self.choose = self._ring.add, self._ring.remove, self._ring.owner

    def forget(self, session: str) -> None:
        """Nothing is remembered."""


class _Pinned:
    """Remembers where each session is."""

    def __init__(self) -> None:
        self.sessions: Counter[str] = Counter()
        """By replica."""
        self._pins: dict[str, str] = {}

    def add(self, replica: str) -> None:
        """Use a new replica."""
        self.sessions[replica] = 0

    def remove(self, replica: str) -> None:
        """Use a replica no longer: its sessions are placed anew."""
        del self.sessions[replica]

    def choose(self, session: str) -> str:
        """Return where the session is, or place it."""
        pin = self._pins.get(session)
        if pin is None or pin not in self.sessions:
            pin = self._pins[session] = self._pick(session)
            self.sessions[pin] += 1
        return pin

    def forget(self, session: str) -> None:
        """Take note that a session has ended."""
        pin = self._pins.pop(session, None)
        if pin in self.sessions:
            self.sessions[pin] -= 1

    def _pick(self, session: str) -> str:
        raise NotImplementedError


class StickyPlacement(_Pinned):
    """The replica with the fewest sessions, of those that have no turn waiting if there is one.

    By sessions alone, a new replica would get all that are placed, faster than it can serve them.
    """

    def __init__(self, is_full: Callable[[str], bool] = lambda replica: False) -> None:
        super().__init__()
        self._is_full = is_full

    def _pick(self, session: str) -> str:
        sessions, is_full = self.sessions, self._is_full
        return min(sessions, key=lambda name: (is_full(name), sessions[name], name))


class BoundedPlacement(_Pinned):
    """The first replica on the ring that has fewer than `bound` times the mean of sessions."""

    def __init__(self, bound: float = 1.25) -> None:
        super().__init__()
        self._bound = bound
        self._ring = Ring()

    def add(self, replica: str) -> None:
        """Use a new replica."""
        super().add(replica)
        self._ring.add(replica)

    def remove(self, replica: str) -> None:
        """Use a replica no longer."""
        super().remove(replica)
        self._ring.remove(replica)

    def _pick(self, session: str) -> str:
        mean = (self.sessions.total() + 1) / len(self.sessions)
        most = math.ceil(self._bound * mean)
        return next(node for node in self._ring.walk(session) if self.sessions[node] < most)


PLACEMENTS: dict[str, Callable[[Callable[[str], bool]], Placement]] = {
    "ring, 100 points": lambda is_full: RingPlacement(100),
    "ring, 1,000 points": lambda is_full: RingPlacement(1000),
    "sticky": StickyPlacement,
    "bounded": lambda is_full: BoundedPlacement(1.25),
}
"""Each is given whether a replica has turns waiting."""
