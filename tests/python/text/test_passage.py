"""Passages begin and end where they should, inside pieces and between them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sinkstream.text.templates.chat_template import Passage, Piece, common_prefix, join_pieces

WHOLE = Passage((1, "ab cd ab", 2, "ef"))


def flat(pieces: tuple[Piece, ...]) -> list[Piece]:
    """Return control tokens and letters, one by one."""
    return [
        item for piece in pieces for item in (list(piece) if isinstance(piece, str) else [piece])
    ]


@st.composite
def sequences(draw: st.DrawFn) -> tuple[Piece, ...]:
    items = draw(st.lists(st.sampled_from([1, 2, "a", "b"]), max_size=6))
    pieces: tuple[Piece, ...] = ()
    for item in items:
        pieces = join_pieces(pieces, (item,))
    return pieces


def test_a_passage_after_a_word_begins_inside_a_piece() -> None:
    assert WHOLE.after("ab") == Passage((2, "ef"), "ab cd ab", at_start=False)
    assert WHOLE.after("cd") == Passage((" ab", 2, "ef"), "ab cd", at_start=False)
    assert Passage(("ab", 1)).after("a") == Passage(("b", 1), "a", at_start=True)
    assert WHOLE.after("x") is None


def test_the_pieces_before_a_word_end_inside_a_piece() -> None:
    assert WHOLE.pieces_before("cd") == (1, "ab ")
    assert WHOLE.pieces_before("ab") == (1,)
    assert WHOLE.pieces_before("x") == WHOLE.pieces


def test_a_passage_remembers_the_text_before_it_over_two_cuts() -> None:
    tail = WHOLE.after("cd")
    assert tail is not None
    assert tail.without_start((" a",)) == Passage(("b", 2, "ef"), "ab cd a", at_start=False)
    assert tail.without_start((" ab", 2)) == Passage(("ef",), at_start=False)


@given(sequences(), sequences())
def test_a_start_is_removed_if_the_passage_has_it(
    a: tuple[Piece, ...], b: tuple[Piece, ...]
) -> None:
    rest = Passage(a).without_start(b)
    if flat(a)[: len(flat(b))] == flat(b):
        assert rest is not None
        assert flat(rest.pieces) == flat(a)[len(flat(b)) :]
    else:
        assert rest is None


@given(sequences(), sequences())
def test_an_end_is_removed_if_the_passage_has_it(
    a: tuple[Piece, ...], b: tuple[Piece, ...]
) -> None:
    assert flat(Passage(join_pieces(a, b)).without_end(b) or ()) == flat(a)
    items, end = flat(a), flat(b)
    is_end = items[len(items) - len(end) :] == end if len(end) <= len(items) else False
    assert (Passage(a).without_end(b) is not None) == is_end


@given(sequences(), sequences())
def test_a_common_prefix_is_the_longest(a: tuple[Piece, ...], b: tuple[Piece, ...]) -> None:
    start = flat(common_prefix(a, b))
    assert flat(a)[: len(start)] == flat(b)[: len(start)] == start
    assert flat(a)[: len(start) + 1] != flat(b)[: len(start) + 1] or flat(a) == start
