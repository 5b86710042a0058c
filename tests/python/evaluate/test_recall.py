"""StreamEval and the needle test, with a model that recalls exactly what it sees."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.errors import InvalidArgument
from sinkstream.evaluate import (
    Answer,
    Line,
    Question,
    Recall,
    RecallResult,
    needle,
    stream_eval,
    stream_eval_lines,
)
from sinkstream.evaluate.recall_result import place_of
from tests.python.evaluate.scripted import ScriptedModel


def take(count: int, **how: int) -> list[Line | Question]:
    return list(itertools.islice(stream_eval_lines(**how), count))


def test_a_question_comes_every_ten_lines_about_the_line_twenty_above() -> None:
    lines: dict[int, str] = {}
    questions = []
    for part in take(500):
        if isinstance(part, Line):
            assert part.number == len(lines)
            lines[part.number] = part.text
        else:
            questions.append((len(lines) - 1, part))
    assert [last for last, _ in questions] == list(range(20, len(lines), 10))
    for last, question in questions:
        assert question.about == last - 20
        assert f"Query: {lines[last - 20]}" == question.text + question.answer + question.end
        assert re.fullmatch(r" <\d{5}>", question.answer)


def test_distance_and_spacing_may_be_others() -> None:
    abouts = [part.about for part in take(60, every=3, back=4) if isinstance(part, Question)]
    assert abouts[:4] == [2, 5, 8, 11]


def test_the_same_seed_writes_the_same_text() -> None:
    assert take(100, seed=5) == take(100, seed=5)
    assert take(100, seed=5) != take(100, seed=6)


def test_answers_are_drawn_from_many() -> None:
    answers = [part.answer for part in take(2000) if isinstance(part, Question)]
    assert len(set(answers)) > 0.98 * len(answers)


def test_recall_is_perfect_inside_of_the_window_and_zero_outside() -> None:
    result = stream_eval(ScriptedModel(), back=[5, 10, 40, 80], queries=6)
    assert [point.accuracy for point in result.by_distance] == [1, 1, 0, 0]
    assert result.recall("inside") == Recall(12, 12)
    # Line 0 starts with the sinks, so the first questions about it always count as "edge".
    assert result.recall("outside") == Recall(10, 0)
    assert result.recall("edge") == Recall(2, 0)
    near, far = result.by_distance[0].distance, result.by_distance[-1].distance
    assert near < 500 < 3000 < far


def test_the_place_of_an_answer_is_where_the_model_finds_it() -> None:
    # Questions across the edge of the window: what counts as inside must be found.
    for window in range(430, 560, 7):
        result = stream_eval(ScriptedModel(window=window), back=10, queries=3)
        for answer in result.answers:
            if answer.place != "edge":
                assert answer.is_right == (answer.place == "inside"), (window, answer)


@pytest.mark.parametrize(
    ("begin", "end", "place"),
    [
        (0, 4, "inside"),  # sinks
        (2, 6, "edge"),  # half of it is a sink
        (4, 90, "outside"),
        (4, 91, "outside"),
        (4, 92, "edge"),  # query 100 sees token 91: its window is 91 … 100
        (91, 95, "edge"),  # but the query for the answer's third token does not
        (92, 95, "edge"),
        (93, 95, "inside"),
    ],
)
def test_a_place_follows_the_definition_of_the_window(begin: int, end: int, place: str) -> None:
    assert place_of(begin, end, asked_at=100, answer_tokens=3, sinks=4, window=10) == place


def test_a_dense_window_remembers_everything() -> None:
    result = stream_eval(ScriptedModel(), back=[10, 80], queries=3, sinks=0, window=1 << 20)
    assert [point.accuracy for point in result.by_distance] == [1, 1]
    assert result.recall("outside") is None


def test_the_stream_holds_true_answers_and_nothing_that_the_model_said() -> None:
    model = ScriptedModel(window=300)  # cannot see the answers, so it says <00000>
    result = stream_eval(model, back=20, queries=4, seed=2)
    assert not any(answer.is_right for answer in result.answers)
    assert result.answers[0].found.startswith(" <00000>")
    text = model.tokenizer.decode(model.caches[0].tokens)
    written = "".join(
        part.text if isinstance(part, Line) else part.text + part.answer + part.end
        for part in take(200, seed=2)
    )
    assert written.startswith(text)
    assert text.count("Query:") == 3  # the last question was asked but never written


def test_without_kept_answers_the_stream_is_the_bare_lines() -> None:
    model = ScriptedModel()
    result = stream_eval(model, back=10, queries=4, keep_answers=False)
    text = model.tokenizer.decode(model.caches[0].tokens)
    assert text.count("\n") == 41
    assert "Query" not in text
    assert [answer.is_right for answer in result.answers] == [True] * 4


def test_a_distance_in_tokens_is_met_within_a_line() -> None:
    result = stream_eval(ScriptedModel(window=400), distance=[300, 2000], queries=4)
    for wanted, point in zip([300, 2000], result.by_distance, strict=True):
        assert abs(point.distance - wanted) < 100
    assert [point.accuracy for point in result.by_distance] == [1, 0]


def test_a_stream_begins_with_the_beginning_of_text_where_the_checkpoint_says_so() -> None:
    model = ScriptedModel(bos=0)
    stream_eval(model, back=1, every=1, queries=1)
    needle(model, distances=[3], repeats=1)
    assert [cache.tokens[0] for cache in model.caches] == [0, 0]
    assert [cache.tokens.count(0) for cache in model.caches] == [1, 1]


def test_a_needle_is_found_inside_of_the_window_and_not_outside() -> None:
    model = ScriptedModel(window=600)
    result = needle(model, distances=[900, 0, 300, 700], repeats=3)
    assert [point.asked for point in result.by_distance] == [0, 300, 700, 900]
    assert [point.accuracy for point in result.by_distance] == [1, 1, 0, 0]
    assert len({answer.expected for answer in result.answers}) == 3
    size = {answer.distance - answer.asked for answer in result.answers}
    assert len(size) == 1  # needle and question: the distances are exact


def test_questions_about_a_needle_are_not_in_the_way_of_the_next() -> None:
    model = ScriptedModel(window=600)
    needle(model, distances=[10, 200], repeats=1, lead=50)
    text = model.tokenizer.decode(model.caches[0].tokens)
    assert "What is" not in text
    assert text.count("The pass key is <") == 1


def test_the_default_distances_reach_from_within_the_window_to_twice_of_it() -> None:
    result = needle(ScriptedModel(window=800), repeats=1)
    asked = [point.asked for point in result.by_distance]
    assert (asked[0], asked[-1], len(asked)) == (100, 1600, 8)


@pytest.mark.parametrize("run", [stream_eval, needle])
def test_progress_counts_every_answer(run: Any) -> None:
    how: dict[str, Any] = {"back": [5, 80], "queries": 2}
    if run is needle:
        how = {"distances": [50, 1500], "repeats": 2}
    told: list[tuple[int, int, int]] = []
    result = run(ScriptedModel(), **how, progress=lambda *found: told.append(found))
    right = [answer.is_right for answer in result.answers]
    assert told == [(count, 4, sum(right[:count])) for count in (1, 2, 3, 4)]
    assert sum(right) == 2


@pytest.mark.parametrize(
    ("found", "is_right"),
    [
        (" <12345>.\n", True),
        ("<12345>", True),
        (" <1234", False),
        (" <123456>", False),
        ("", False),
    ],
)
def test_an_answer_is_right_when_it_begins_with_the_expected_one(
    found: str, is_right: bool
) -> None:
    assert Answer(20, 500, "inside", " <12345>", found).is_right == is_right


@pytest.mark.parametrize(("right", "low", "high"), [(0, 0, 0.1611), (10, 0.2993, 0.7007)])
def test_the_interval_is_wilsons(right: int, low: float, high: float) -> None:
    assert Recall(20, right).interval == pytest.approx((low, high), abs=1e-4)


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    result = stream_eval(ScriptedModel(), back=[10, 40], queries=3)
    result.to_json(tmp_path / "recall.json")
    assert RecallResult.from_json(tmp_path / "recall.json") == result
    (tmp_path / "recall.json").write_text("[]")
    with pytest.raises(InvalidArgument, match="RecallResult: the object must have the fields"):
        RecallResult.from_json(tmp_path / "recall.json")


def test_a_file_of_other_answers_is_refused(tmp_path: Path) -> None:
    content = {"task": "needle", "settings": {}, "answers": [{"asked": 1}]}
    (tmp_path / "recall.json").write_text(json.dumps(content))
    with pytest.raises(
        InvalidArgument, match=r'"recall.json" must be a file that `to_json` wrote, but is'
    ):
        RecallResult.from_json(tmp_path / "recall.json")


@pytest.mark.parametrize("run", [stream_eval, needle])
def test_what_was_evicted_is_counted(run: Any) -> None:
    how: dict[str, Any] = {"back": [5, 10], "queries": 3}
    if run is needle:
        how = {"distances": [50, 300], "repeats": 2}
    narrow = ScriptedModel(window=200)
    result = run(narrow, **how)
    evicted = sum(cache.evicted for cache in narrow.caches)
    # A copy reads the last question and answer of each stream, and evicts more.
    assert 0 < evicted < result.settings["evicted_tokens"] < evicted + 2 * 100
    assert run(ScriptedModel(), **how, window=1 << 20).settings["evicted_tokens"] == 0


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"back": 0}, "stream_eval: `back` must be in"),
        ({"back": []}, "stream_eval: `back` must not be empty"),
        ({"distance": [500, 0]}, "stream_eval: `distance` must be in"),
        ({"every": 0}, "stream_eval: `every` must be in"),
        ({"queries": 0}, "stream_eval: `queries` must be in"),
        ({"window": 0}, "stream_eval: `window` must be in"),
    ],
)
def test_a_value_out_of_range_is_named(how: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        stream_eval(ScriptedModel(), **how)


def test_a_real_model_takes_part(model: sinkstream.Model) -> None:
    # With random weights no answer is right, but everything must run.
    result = stream_eval(model, back=[1, 30], every=1, queries=4)
    assert len(result.answers) == 8
    assert not any(answer.is_right for answer in result.answers)
    assert needle(model, distances=[1, 90], repeats=2).recall("outside") == Recall(4, 0)


def test_smollm2_finds_a_needle_in_its_window_and_none_outside(smollm2: Path, threads: int) -> None:
    with sinkstream.load(smollm2, sinks=4, window=252, threads=threads, max_sequences=1) as real:
        result = needle(real, distances=[30, 150, 300, 600], repeats=2)
    assert [point.accuracy for point in result.by_distance] == [1, 1, 0, 0]
    assert result.recall("inside") == Recall(4, 4)
    assert result.recall("outside") == Recall(4, 0)
