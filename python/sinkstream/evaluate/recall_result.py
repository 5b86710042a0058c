"""Questions about a stream: how far back they ask, the answers, and which were correct."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from sinkstream.errors import InvalidArgument
from sinkstream.evaluate.result import Z95, JsonFile

Place = Literal["inside", "edge", "outside"]
"""Where the text in question was: fully visible, partly, or evicted."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One question and the model's answer."""

    asked: int
    """The requested distance: lines in StreamEval, tokens in the needle test."""
    distance: int
    """Tokens from the first token of the text asked about to the question's last token."""
    place: Place
    expected: str
    found: str

    @property
    def is_right(self) -> bool:
        """Return whether the model's text starts with the expected answer."""
        return self.found.strip().startswith(self.expected.strip())


@dataclass(frozen=True, slots=True)
class Recall:
    """How many questions were answered correctly."""

    questions: int
    right: int

    @property
    def accuracy(self) -> float:
        """Return the share of correct answers."""
        return self.right / self.questions

    @property
    def interval(self) -> tuple[float, float]:
        """Return Wilson's 95 % interval, which is meaningful even for 0 of 20."""
        n, p, z = self.questions, self.accuracy, Z95
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        # Rounding must not exclude the accuracy itself.
        return min(p, max(0.0, middle - half)), max(p, min(1.0, middle + half))


@dataclass(frozen=True, slots=True)
class AtDistance(Recall):
    """The questions at one distance."""

    asked: int
    """As in `Answer`."""
    distance: float
    """Mean distance in tokens."""


@dataclass(frozen=True)
class RecallResult(JsonFile):
    """A model's recall of a stream, by distance."""

    task: str
    """"stream_eval" or "needle"."""
    settings: dict[str, Any]
    """The arguments with defaults filled in, and the model's types. Distances are in `answers`."""
    answers: tuple[Answer, ...]

    @property
    def capacity(self) -> int:
        """Return S + W, the maximum number of visible tokens."""
        return int(self.settings["sinks"]) + int(self.settings["window"])

    @property
    def by_distance(self) -> tuple[AtDistance, ...]:
        """Return the accuracy at each requested distance, ascending."""
        found = []
        for asked in sorted({answer.asked for answer in self.answers}):
            here = [answer for answer in self.answers if answer.asked == asked]
            recall = _count(here)
            mean = sum(answer.distance for answer in here) / len(here)
            found.append(AtDistance(recall.questions, recall.right, asked, mean))
        return tuple(found)

    def recall(self, place: Place) -> Recall | None:
        """Return the recall of text inside, at the edge of, or outside the window.

        Args:
            place: "inside" (the text was fully visible), "edge" (partly visible) or "outside"
                (evicted).

        Returns:
            The recall; None if no question was about such text.
        """
        here = [answer for answer in self.answers if answer.place == place]
        return _count(here) if here else None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values: a summary for people, and all answers."""
        return {
            "task": self.task,
            "settings": self.settings,
            "by_distance": [
                {**asdict(point), "accuracy": point.accuracy, "interval_95": list(point.interval)}
                for point in self.by_distance
            ],
            "answers": [asdict(answer) for answer in self.answers],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RecallResult:
        """Return the result that `as_dict` describes.

        Raises:
            InvalidArgument: The values do not describe a result.
        """
        wanted = {entry.name for entry in fields(cls)}
        if not isinstance(values, Mapping) or not wanted <= set(values):
            raise InvalidArgument(
                f"RecallResult: the object must have the fields {', '.join(sorted(wanted))}, but "
                f"has {', '.join(sorted(map(str, values))) or 'none'}."
            )
        return cls(
            task=values["task"],
            settings=values["settings"],
            answers=tuple(Answer(**answer) for answer in values["answers"]),
        )


def place_of(
    begin: int, end: int, *, asked_at: int, answer_tokens: int, sinks: int, window: int
) -> Place:
    """Return where tokens [begin, end) are for the queries that answer a question.

    Args:
        begin: Index of the first token of the text in question.
        end: Index after its last token.
        asked_at: Index of the question's last token, which predicts the answer's first.
        answer_tokens: Tokens of the answer; the window slides with each.
        sinks: S.
        window: W.
    """
    first_at_start = asked_at - window + 1
    first_at_end = first_at_start + answer_tokens - 1
    if end <= sinks or max(begin, sinks) >= first_at_end:
        return "inside"
    return "edge" if begin < sinks or end > first_at_start else "outside"


def _count(answers: Iterable[Answer]) -> Recall:
    marks = [answer.is_right for answer in answers]
    return Recall(len(marks), sum(marks))
