"""The kept end of a reply: exact, and bounded."""

from __future__ import annotations

import random

from sinkstream.tail import Tail


def test_tail_without_bounds_keeps_everything() -> None:
    tail = Tail(None, None)
    for i in range(10_000):
        tail.add("é" * (i % 3), [i], [-0.5])
    assert tail.text == "é" * sum(i % 3 for i in range(10_000))
    assert tail.token_ids == list(range(10_000))
    assert tail.logprobs == [-0.5] * 10_000
    assert (tail.dropped_tokens, tail.dropped_characters) == (0, 0)


def test_tail_equals_the_end_of_the_whole() -> None:
    draw = random.Random(5)
    for max_tokens, max_characters in [(0, 1), (1, 0), (7, 100), (300, 5000)]:
        tail = Tail(max_tokens, max_characters)
        text, ids = "", []
        for _ in range(3000):
            piece = "word " * draw.randrange(4)
            some = [draw.randrange(1000) for _ in range(draw.randrange(3))]
            tail.add(piece, some, [-float(i) for i in some])
            text += piece
            ids += some
        kept = ids[max(0, len(ids) - max_tokens) :]
        assert tail.text == text[max(0, len(text) - max_characters) :]
        assert tail.token_ids == kept
        assert tail.logprobs == [-float(i) for i in kept]
        assert tail.dropped_tokens == len(ids) - len(kept)
        assert tail.dropped_characters == len(text) - len(tail.text)


def test_tail_holds_a_bounded_number_of_tokens_and_characters() -> None:
    tail = Tail(100, 1000)
    most = 0
    for i in range(20_000):
        tail.add("some text ", [i], [0.0])
        held = sum(map(len, tail._blocks)) + sum(map(len, tail._pieces))
        most = max(most, held, len(tail._ids))
    assert most < 1000 + 2 * 2048
