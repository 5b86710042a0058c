"""Notices that Ray Serve no longer asks for a replica's health.

This is the only sign of a drain that a replica gets: no public call announces it, and the
destructor runs only after the last request, which never comes while an endless stream runs. Silence
can also mean that the controller has failed, so the reaction must not harm a replica that stays.
"""

from __future__ import annotations

PERIOD_S = 1.0
"""How often Ray asks."""
TICK_S = 0.5
_SILENT_TICKS = 6  # three periods


class Silence:
    """Counts ticks since the last question. Belongs to one event loop.

    Ticks and questions run on the same loop, so a loop that stood still does not count as silence.
    """

    def __init__(self) -> None:
        self._ticks: int | None = None  # until the first question

    def note_question(self) -> None:
        """Note a question."""
        self._ticks = 0

    def tick(self) -> bool:
        """Note that `TICK_S` has passed; return whether it has been silent for too long."""
        if self._ticks is None:
            return False
        self._ticks += 1
        return self._ticks >= _SILENT_TICKS
