"""Finds the turns of a conversation in the tokens that the model still sees."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from sinkstream.errors import InvalidArgument
from sinkstream.sessions.session import Session
from sinkstream.text.turns.turn_format import TurnFormat


@dataclass(frozen=True, slots=True)
class Exchange:
    """A user message and its reply, as text."""

    question: str | None
    """None if its beginning has been evicted."""
    reply: str


def exchanges_of(session: Session) -> list[Exchange]:
    """Return the turns whose replies are still in view, oldest first.

    They are found by what the chat template writes around a user message. Without a template
    there are none.

    Raises:
        InvalidArgument: The session is closed.
        EngineDead: The model is closed, or its engine has failed.
    """
    tokenizer = session._host.text.tokenizer
    header, prompt = _around_question(session._turns)
    if tokenizer is None or not header or not prompt:
        return []
    ids = session.token_ids
    found = []
    begins = [at + len(prompt) for at in _occurrences(ids, prompt)]
    asked = 0  # where the search for the next question begins
    for begin, following in itertools.pairwise([*begins, len(ids)]):
        end = begin - len(prompt)
        headers = [asked + at + len(header) for at in _occurrences(ids[asked:end], header)]
        question = tokenizer.decode(ids[headers[-1] : end]).strip() if headers else None
        next_headers = _occurrences(ids[begin:following], header) if following < len(ids) else []
        reply = ids[begin : begin + next_headers[-1] if next_headers else following]
        found.append(Exchange(question, tokenizer.decode(reply).strip()))
        asked = begin
    return found


def text_of(session: Session, ids: Sequence[int]) -> str:
    """Return the text of token ids; "" without a tokenizer."""
    tokenizer = session._host.text.tokenizer
    return "" if tokenizer is None else tokenizer.decode([int(token) for token in ids])


def _around_question(turns: TurnFormat) -> tuple[list[int], list[int]]:
    """Return the ids before and after every user message; empty if there are none."""
    try:
        one, other = (turns.user(letter, after="assistant") for letter in "ab")
    except InvalidArgument:  # there is no text, or the template refuses it
        return [], []
    return _common_start(one, other), _common_start(one[::-1], other[::-1])[::-1]


def _common_start(one: list[int], other: list[int]) -> list[int]:
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return [token for token, _ in pairs]


def _occurrences(ids: list[int], part: list[int]) -> list[int]:
    """Return the indices at which `part` occurs in `ids`."""
    size = len(part)
    return [i for i in range(len(ids) - size + 1) if ids[i : i + size] == part]
