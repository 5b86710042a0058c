"""How long a replica takes for what it does: tables that `cluster_calibration.py` measures."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any


class Curve:
    """A table of points, linear between them and beyond the last."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        """Take points (x, y) with rising x; below the first x, its y."""
        if not points or any(a[0] >= b[0] for a, b in pairwise(points)):
            raise ValueError(f"curve: `points` must have rising x, but are {points}.")
        self._x = [float(x) for x, _ in points]
        self._y = [float(y) for _, y in points]

    def __call__(self, x: float) -> float:
        if x <= self._x[0] or len(self._x) == 1:
            return self._y[0]
        right = min(bisect_right(self._x, x), len(self._x) - 1)
        x0, x1, y0, y1 = *self._x[right - 1 : right + 1], *self._y[right - 1 : right + 1]
        return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


@dataclass(frozen=True)
class ServiceTimes:
    """Of one replica."""

    step_s: Curve
    """A decode step, by its sequences."""
    read_s: Curve
    """Reading a prompt, or stored tokens, by tokens, when nothing decodes."""
    read_while_decoding_s: Curve
    """The same while one sequence decodes: each step then reads a few tokens only."""
    step_while_reading_s: float
    """A step of that sequence meanwhile."""
    load_s: Curve
    """Loading a snapshot, by bytes."""
    request_s: float
    """What a request takes outside of the engine."""
    seats: int
    """Sequences in memory: running and idle ones."""
    capacity_tokens: int
    """Sinks and window."""
    token_bytes: float
    """Of a snapshot, by token."""

    def crowding(self, decoding: int) -> float:
        """Return how many times as long a step takes as with one sequence."""
        return self.step_s(decoding) / self.step_s(1)


def read_service_times(path: Path) -> ServiceTimes:
    """Return the tables of a calibration file."""
    return service_times(json.loads(path.read_text()))


def service_times(figures: dict[str, Any]) -> ServiceTimes:
    """Return the tables of a calibration's figures."""
    curves = {
        name: Curve(figures[name])
        for name in ("step_s", "read_s", "read_while_decoding_s", "load_s")
    }
    others = ("step_while_reading_s", "request_s", "seats", "capacity_tokens", "token_bytes")
    return ServiceTimes(**curves, **{name: figures[name] for name in others})
