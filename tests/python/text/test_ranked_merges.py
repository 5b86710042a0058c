"""The native search for merges equals its definition in Python, and survives any input."""

from __future__ import annotations

import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkstream import _core
from sinkstream.errors import CheckpointError
from sinkstream.text.tokenizers.vocabulary_kinds import MAX_CHARACTERS, MAX_MERGES, ranked_merges
from tests.python.lanes import examples
from tests.python.text import vocabularies
from tests.python.text.vocabularies import NORMAL

Merges = list[tuple[str, str]]


def reference(tokens: list[str], ordinary: list[int], scores: list[float]) -> Merges:
    """Split every ordinary token at every place, and sort what consists of two of them."""
    ids: dict[str, int] = {}
    for token_id in ordinary:
        ids.setdefault(tokens[token_id], token_id)
    found: list[tuple[float, int, int, str, str]] = []
    for piece, token_id in ids.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in ids and right in ids:
                found.append((-scores[token_id], -cut, token_id, left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]


def native(tokens: list[str], ordinary: list[int], scores: list[float]) -> Merges:
    found = _core.ranked_merges(tokens, ordinary, scores, MAX_MERGES)
    assert found is not None
    return found


@pytest.mark.parametrize("count", [5_000, 60_000])
def test_a_large_vocabulary_equals_the_reference(count: int) -> None:
    metadata = vocabularies.large_sentencepiece_metadata(count)
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    kinds = metadata["tokenizer.ggml.token_type"]
    ordinary = [token_id for token_id, kind in enumerate(kinds) if kind == NORMAL]
    merges = native(tokens, ordinary, scores)
    assert merges == reference(tokens, ordinary, scores)
    assert len(merges) > count // 2


# Few letters and short tokens, so that most tokens have several splits; letters of one, two and
# four bytes, and a lone surrogate, which a Python string may hold.
LETTERS = "ab\u2581\xe9\U0001f642\ud800\x00"


@examples(500)
@given(st.data())
def test_any_vocabulary_equals_the_reference(data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.text(st.sampled_from(LETTERS), max_size=7), max_size=60))
    ids = st.integers(0, max(len(tokens) - 1, 0))
    ordinary = data.draw(st.lists(ids, max_size=80)) if tokens else []
    score = st.sampled_from([0.0, -0.0, -1.0, -2.5, 3, float("inf"), -float("inf"), 1e-300])
    scores = data.draw(st.lists(score, min_size=len(tokens), max_size=len(tokens)))
    assert native(tokens, ordinary, scores) == reference(tokens, ordinary, scores)


@pytest.mark.parametrize(
    ("tokens", "merges"),
    [
        ([], []),
        ([""], []),
        (["", "a", ""], []),
        (["a"], []),
        (["ab", "a", "ab", "b"], [("a", "b")]),
        (["a", "a", "aa"], [("a", "a")]),
    ],
)
def test_empty_and_repeated_tokens_have_no_merges_of_their_own(
    tokens: list[str], merges: Merges
) -> None:
    ordinary = list(range(len(tokens)))
    assert native(tokens, ordinary, [0.0] * len(tokens)) == merges
    assert native(tokens, [], [0.0] * len(tokens)) == []


def test_a_token_of_two_megabytes_is_searched_in_linear_time_and_refused_in_a_file() -> None:
    tokens = ["a", "ab" * (1 << 20), "b" + "ab" * ((1 << 20) - 1)]
    assert native(tokens, [0, 1, 2], [0.0] * 3) == [("a", tokens[2])]
    with pytest.raises(CheckpointError, match=r"at most 1024 characters, but .* has 2097152"):
        ranked_merges(tokens, [0, 1, 2], [0.0] * 3)
    assert MAX_CHARACTERS == 1 << 22


@pytest.mark.parametrize("limit", [0, 1, 5, 6, 7])
def test_more_merges_than_the_limit_are_none(limit: int) -> None:
    tokens = ["a" * length for length in range(1, 5)]  # six merges
    found = _core.ranked_merges(tokens, [0, 1, 2, 3], [0.0] * 4, limit)
    assert found == (reference(tokens, [0, 1, 2, 3], [0.0] * 4) if limit >= 6 else None)


@pytest.mark.parametrize(
    ("tokens", "ordinary", "scores", "error"),
    [
        (["a"], [1], [0.0], IndexError),
        (["a"], [-1], [0.0], IndexError),
        (["a", "b"], [1], [0.0], IndexError),
        (["a"], [1 << 80], [0.0], OverflowError),
        (["a"], ["a"], [0.0], TypeError),
        ([b"a"], [0], [0.0], TypeError),
        (["a"], [0], ["0"], TypeError),
        (["a"], [0], [float("nan")], ValueError),
        (("a",), [0], [0.0], TypeError),
    ],
)
def test_other_values_are_errors(
    tokens: list[str], ordinary: list[int], scores: list[float], error: type[Exception]
) -> None:
    with pytest.raises(error):
        _core.ranked_merges(tokens, ordinary, scores, MAX_MERGES)


def test_other_threads_run_during_the_search() -> None:
    tokens = ["a" * length for length in range(1, 1400)]
    ordinary, scores = list(range(len(tokens))), [0.0] * len(tokens)
    rounds = [0]
    during: list[int] = []

    def search() -> None:
        before = rounds[0]
        native(tokens, ordinary, scores)
        during.append(rounds[0] - before)

    previous = sys.getswitchinterval()
    sys.setswitchinterval(60)  # no thread is made to give up the GIL
    try:
        thread = threading.Thread(target=search)
        thread.start()
        while thread.is_alive():
            rounds[0] += 1
            time.sleep(0)
        thread.join()
    finally:
        sys.setswitchinterval(previous)
    assert during[0] > 0
