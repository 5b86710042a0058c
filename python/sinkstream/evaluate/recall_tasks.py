"""The texts and questions of StreamEval and of the needle test, generated from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

# Five digits: too many to guess, few enough for small models.
_LOW, _HIGH = 10_000, 99_999


@dataclass(frozen=True, slots=True)
class Line:
    """One line to remember."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """A question, cut off where the model is to continue."""

    about: int
    """Number of the line with the answer."""
    text: str
    answer: str
    end: str
    """The text after the answer."""


def stream_eval_lines(
    *, every: int = 10, back: int = 20, seed: int = 0
) -> Iterator[Line | Question]:
    """Generate StreamEval indefinitely: numbered lines, and questions about earlier lines.

    The wording is that of StreamingLLM's figure 9: "The REGISTER_CONTENT in line 7 is <48213>.",
    and later "Query: The REGISTER_CONTENT in line 7 is", which the model should continue.

    Args:
        every: Lines between two questions.
        back: Lines from a question back to its answer. The first question comes after the first
            line whose number is at least `back` and a multiple of `every`.
        seed: The same seed gives the same text.
    """
    draw = random.Random(seed)
    values: dict[int, str] = {}
    number = 0
    while True:
        values[number] = f"<{draw.randint(_LOW, _HIGH)}>"
        yield Line(number, f"The REGISTER_CONTENT in line {number} is {values[number]}.\n")
        if number >= back and number % every == 0:
            about = number - back
            yield Question(
                about, f"Query: The REGISTER_CONTENT in line {about} is", f" {values[about]}", ".\n"
            )
        values.pop(number - back, None)
        number += 1


@dataclass(frozen=True, slots=True)
class Needle:
    """One fact to remember among meaningless sentences."""

    intro: str
    text: str
    question: Question


FILLER = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
)
"""Repeated around the needle."""


def draw_needle(seed: int) -> Needle:
    """Return a pass key to recall (Mohtashami and Jaggi, https://arxiv.org/abs/2305.16300).

    The question ends with the key's opening bracket, so that it tests recall rather than style.

    Args:
        seed: The same seed gives the same key.
    """
    key = random.Random(seed).randint(_LOW, _HIGH)
    return Needle(
        intro="There is important information hidden inside a lot of irrelevant text. Find it and "
        "memorize it. There will be a question about it.\n",
        text=f"The pass key is <{key}>. Remember it. <{key}> is the pass key.\n",
        question=Question(0, "What is the pass key? The pass key is <", f"{key}>", ".\n"),
    )
