"""One line of the table: a figure and its goal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """A figure in `unit`, with at most one goal; without a goal it only explains."""

    figure: str
    value: float
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    detail: str = ""  # the spread, or what the value was made from

    @property
    def verdict(self) -> str:
        """Return "reached" or "missed", or an empty string without a goal."""
        if self.at_least is not None:
            return "reached" if self.value >= self.at_least else "missed"
        if self.at_most is not None:
            return "reached" if self.value <= self.at_most else "missed"
        return ""

    @property
    def goal(self) -> str:
        """Return the goal as it is printed."""
        if self.at_least is not None:
            return f"≥ {self.at_least:.4g}"
        return "" if self.at_most is None else f"≤ {self.at_most:.4g}"

    def as_dict(self) -> dict[str, Any]:
        """Return the row as a report keeps it."""
        found: dict[str, Any] = {"figure": self.figure, "value": round(self.value, 4)}
        found["unit"] = self.unit
        if self.verdict:
            found |= {"goal": self.goal, "verdict": self.verdict}
        return found | ({"detail": self.detail} if self.detail else {})


def median_row(
    figure: str, values: Sequence[float], unit: str = "", *, at_least: float | None = None
) -> Row:
    """Return a row of the median of several rounds, with the smallest and largest as detail."""
    spread = f"{min(values):.3g} – {max(values):.3g}"
    return Row(figure, statistics.median(values), unit, at_least=at_least, detail=spread)


@dataclass(frozen=True)
class Outcome:
    """The results of one part."""

    rows: list[Row]
    evicted_tokens: int  # during the measurement: fewer than expected would falsify the figures
    threads: int
    series: dict[str, Any] = field(default_factory=dict)  # raw series, for the report only


def table(rows: Sequence[Row]) -> list[str]:
    """Return lines with aligned columns: figure, value, spread, goal, verdict."""
    cells = [("figure", "value", "from", "goal", "")]
    cells += [
        (row.figure, f"{row.value:.4g} {row.unit}".strip(), row.detail, row.goal, row.verdict)
        for row in rows
    ]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
