"""The arithmetic of the tables of `benchmarks`, on numbers with known answers."""

from __future__ import annotations

import pytest

from benchmarks.engine.row import Row, median_row, table
from benchmarks.figures import gaps_ms, line, quantile, ratios, unfairness

pytestmark = pytest.mark.full


def test_a_quantile_has_its_share_of_values_below_it() -> None:
    values = [float(value) for value in range(100, 0, -1)]  # in any order
    assert quantile(values, 0) == 1
    assert quantile(values, 0.5) == 51
    assert quantile(values, 0.99) == 100
    assert quantile(values, 1) == 100
    assert quantile([7.0], 0.99) == 7


def test_a_line_through_points_on_a_line_has_no_error() -> None:
    found = line([(x, 5 - 2.5 * x) for x in range(10)])
    assert found.slope == pytest.approx(-2.5)
    assert found.error == pytest.approx(0, abs=1e-12)


def test_a_line_has_the_standard_error_of_the_text_book() -> None:
    # Residuals −0.2, 0.4, −0.2 over a width of 2: sqrt(0.24 / (3 − 2) / 2).
    found = line([(1, 1), (2, 2.6), (3, 3)])
    assert found.slope == pytest.approx(1)
    assert found.error == pytest.approx(0.12**0.5)


def test_a_line_needs_three_points() -> None:
    with pytest.raises(ValueError, match="`points` must be at least 3, but are 2"):
        line([(0, 0), (1, 1)])


def test_one_more_page_is_within_the_error_and_a_byte_per_stream_is_not() -> None:
    streams = range(100, 10_001, 100)
    one_page = line([(n, 4096 * (n > 7000)) for n in streams])
    assert 0 < one_page.slope <= one_page.most_if_flat(4096, 9900)
    leak = line([(n, n // 4096 * 4096) for n in streams])  # memory is counted in pages
    assert leak.slope > leak.most_if_flat(4096, 9900)


def test_unfairness_is_how_much_longer_than_the_median_the_slowest_takes() -> None:
    assert unfairness([10, 10, 10]) == 1
    assert unfairness([5, 10, 40]) == 2


def test_gaps_are_between_tokens_of_the_same_stream() -> None:
    assert gaps_ms([[0.0, 0.5], [0.25, 1.0], [0.5, 2.0]]) == [250, 500, 250, 1000]


def test_ratios_compare_the_same_round_only() -> None:
    assert ratios([2, 9], [4, 3]) == [0.5, 3]
    with pytest.raises(ValueError, match="shorter"):
        ratios([1, 2], [1])


@pytest.mark.parametrize(
    ("row", "goal", "verdict"),
    [
        (Row("rate", 0.9, at_least=0.9), "≥ 0.9", "reached"),
        (Row("rate", 0.899, at_least=0.9), "≥ 0.9", "missed"),
        (Row("gap", 2.2, at_most=2.2), "≤ 2.2", "reached"),
        (Row("gap", 2.21, at_most=2.2), "≤ 2.2", "missed"),
        (Row("pages", 0, at_most=0), "≤ 0", "reached"),
        (Row("pages", 3), "", ""),
    ],
)
def test_a_row_says_whether_its_goal_is_reached(row: Row, goal: str, verdict: str) -> None:
    assert (row.goal, row.verdict) == (goal, verdict)
    assert row.as_dict().get("verdict", "") == verdict


def test_a_table_shows_value_spread_goal_and_verdict_in_columns() -> None:
    lines = table([median_row("rate", [3, 1, 2], "tokens/s", at_least=4), Row("pages", 0)])
    assert lines[1].split() == ["rate", "2", "tokens/s", "1", "–", "3", "≥", "4", "missed"]
    assert lines[0].index("goal") == lines[1].index("≥ 4")
    assert len(lines) == 3
