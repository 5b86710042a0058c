"""The kept end of a reply: exact, and bounded."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from sinkstream.streams import kept_tokens
from sinkstream.streams.kept_tokens import Tail


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


def test_tail_with_one_batch_longer_than_itself() -> None:
    tail = Tail(3, 4)
    tail.add("ab", [1, 2], [-1.0, -2.0])
    tail.add("cdéfg𝄞", [3, 4, 5, 6, 7], [-3.0, -4.0, -5.0, -6.0, -7.0])
    assert (tail.text, tail.token_ids, tail.logprobs) == ("éfg𝄞", [5, 6, 7], [-5.0, -6.0, -7.0])
    assert (tail.dropped_tokens, tail.dropped_characters) == (4, 4)


def test_tail_takes_no_memory_once_it_is_full() -> None:
    """Neither more memory nor other blocks: reallocation would fragment the heap."""
    tail = Tail(100, 1000)
    pieces = ["some", " text", "", " é", " 𝄞𝄞", "\n"]

    def add(count: int) -> None:
        for i in range(count):
            tail.add(pieces[i % len(pieces)], (7, 8), (-0.5, -0.25))

    def held() -> int:
        snapshot = tracemalloc.take_snapshot()
        by_tail = snapshot.filter_traces([tracemalloc.Filter(True, kept_tokens.__file__)])
        return sum(trace.size for trace in by_tail.traces)

    tracemalloc.start()
    try:
        add(2000)
        before = held()
        add(20_001)
        after = held()
    finally:
        tracemalloc.stop()
    assert before > 4 * (1000 + 2 * 100)
    assert abs(after - before) < 200


@pytest.mark.parametrize("limit", [None, 3, 5, 100])
def test_alternatives_are_kept_with_their_tokens(limit: int | None) -> None:
    tail = Tail(limit, None)
    seen = []
    for size in (1, 2, 0, 4, 1, 7):
        ids = list(range(len(seen), len(seen) + size))
        seen += [((token, -0.5), (token + 100, -1.5)) for token in ids]
        tail.add("", ids, [-0.5] * size, seen[-size:] if size else [])
    assert tail.alternatives == seen[-(limit or 100) :]
    assert [own[0][0] for own in tail.alternatives] == tail.token_ids
    assert Tail(limit, None).alternatives == []
