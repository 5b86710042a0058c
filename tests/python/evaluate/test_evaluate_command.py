"""`sinkstream evaluate`: a table, files, one-sentence errors, and Ctrl-C."""

from __future__ import annotations

import itertools
import json
import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import sinkstream
from sinkstream.evaluate import Difference, PerplexityResult, RecallResult, perplexity
from sinkstream.evaluate.result import level_of
from tests.python.cli.conftest import Run


@pytest.fixture
def book(prose: str, tmp_path: Path) -> Path:
    """Return a file with a short text."""
    path = tmp_path / "book.txt"
    path.write_text(prose[:2000], encoding="utf-8")
    return path


def test_it_measures_what_the_function_measures(
    run: Run, checkpoint: str, book: Path, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    out, plot = tmp_path / "out.json", tmp_path / "out.svg"
    outcome = run(
        *("evaluate", book, "-m", checkpoint, "--method", "sinks,window,dense,recompute"),
        *("--sinks", "3", "--window", "25", "--tokens", "200", "--sample", "9", "--block", "50"),
        *("--threads", "1", "--out", out, "--plot", plot),
    )
    assert outcome.code == 0, outcome.err
    written = json.loads(out.read_text())
    found = {entry["method"]: PerplexityResult.from_dict(entry) for entry in written["results"]}
    with sinkstream.load(checkpoint, sinks=3, window=25, threads=1, max_sequences=1) as model:
        text = book.read_text(encoding="utf-8")
        for method, window in {"sinks": 25, "window": 28, "recompute": 28}.items():
            sample = 9 if method == "recompute" else None
            result = perplexity(model, text, method=method, max_tokens=200, sample=sample, block=50)
            assert found[method] == result
            assert result.settings["window"] == window
            assert f"{result.perplexity:.3f}" in outcome.out
    assert found["dense"].settings["window"] == 199
    assert [entry["of"] for entry in written["differences"]] == ["sinks", "window", "dense"]
    assert "sinks - recompute: " in outcome.out
    results = [*found.values()]
    differences = [Difference.from_dict(entry) for entry in written["differences"]]
    drawn = math.exp(level_of(found["recompute"], results, differences)[0])
    assert written["estimates"] == {"recompute": pytest.approx(drawn)}
    (row,) = [line for line in outcome.out.splitlines() if line.split()[:1] == ["recompute"]]
    assert row.split()[1:6] == ["0", "+", "28", "9", f"{drawn:.3f}"]
    own = found["recompute"].perplexity
    assert f"recompute: {own:.3f} at its 9 sampled tokens; {drawn:.3f} for the wh" in outcome.out
    assert f"paired: {drawn:.1f})" in plot.read_text()
    assert "keeps the keys and values of all 199 tokens" in outcome.err
    assert plot.read_bytes().startswith(b"<?xml")


def test_a_book_is_named_by_its_title(run: Run, checkpoint: str, tmp_path: Path) -> None:
    lines = [json.dumps({"title": name, "text": f"{name} " * 99}) for name in ("one", "two")]
    (tmp_path / "books.jsonl").write_text("\n".join(lines))
    outcome = run(
        *("evaluate", tmp_path / "books.jsonl", "--title", "Two", "-m", checkpoint),
        *("--window", "28", "--tokens", "60", "--threads", "1"),
    )
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("two, 60 tokens")


def test_stream_eval_and_needle_write_accuracy_by_distance(
    run: Run, checkpoint: str, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    out, plot = tmp_path / "out.json", tmp_path / "out.png"
    outcome = run(
        *("evaluate", "--stream-eval", "-m", checkpoint, "--window", "100", "--back", "1,20"),
        *("--queries", "3", "--threads", "1", "--out", out, "--plot", plot),
    )
    assert outcome.code == 0, outcome.err
    result = RecallResult.from_json(out)
    assert [point.asked for point in result.by_distance] == [1, 20]
    assert f"outside the window: 0 of {result.recall('outside').questions} correct" in outcome.out
    assert plot.read_bytes().startswith(b"\x89PNG")
    outcome = run("evaluate", "--needle", "-m", checkpoint, "--window", "100", "--threads", "1")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("needle, 4 + 100 visible tokens")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "evaluate: FILE must be given"),
        (["missing.txt"], 'evaluate: "missing.txt" must be a readable file'),
        (["BOOK", "--method", "sinks,none"], 'evaluate: `--method` must be one of "dense", '),
        (["BOOK", "--plot", "x.pdf"], "plot: `path` must end with .png or .svg"),
        (["BOOK", "--out", "no/such/x.json"], "evaluate: `--out` must be in a folder that exists"),
        (["BOOK", "--back", "1,x"], "evaluate: `--back` must be comma-separated integers"),
        (["BOOK", "--stream-eval"], "evaluate: FILE must not be given with --stream-eval"),
        (
            ["--stream-eval", "--needle"],
            "evaluate: only one of --stream-eval and --needle may be given",
        ),
        (["BOOK", "--tokens", "1"], "perplexity: `--tokens` must be in"),
        (["BOOK", "--window", "9999"], "perplexity: sinks + window must be less than"),
        (["BOOK", "--title", "other"], 'evaluate: `--title` must be one of "book.txt", but is'),
    ],
)
def test_an_error_is_one_sentence_and_exit_code_2(
    words: list[str], sentence: str, run: Run, checkpoint: str, book: Path
) -> None:
    given = [str(book) if word == "BOOK" else word for word in words]
    outcome = run("evaluate", *given, "-m", checkpoint, "--threads", "1")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.splitlines()[-1].startswith(f"sinkstream: {sentence}")


@pytest.mark.parametrize("window", [None, 25])
def test_several_numbers_of_sinks_are_compared_in_one_run(
    run: Run, checkpoint: str, book: Path, tmp_path: Path, window: int | None
) -> None:
    out = tmp_path / "out.json"
    given = [] if window is None else ["--window", str(window)]
    scores = tmp_path / "scores"
    for _ in range(2):  # the second run has only to read the scores
        outcome = run(
            *("evaluate", book, "-m", checkpoint, "--method", "sinks,window", *given),
            *("--sinks", "4,0,1", "--tokens", "201", "--threads", "1", "--out", out),
            *("--resume", scores),
        )
        assert outcome.code == 0, outcome.err
    found = json.loads(out.read_text())["results"]
    shown = [(entry["method"], entry["settings"]["sinks"]) for entry in found]
    assert shown == [("sinks", 4), ("sinks", 0), ("sinks", 1), ("window", 0)]
    assert sorted(path.name for path in scores.iterdir()) == [
        "sinks-0.npz", "sinks-1.npz", "sinks-4.npz", "window.npz",
    ]  # fmt: skip
    text = book.read_text(encoding="utf-8")
    with sinkstream.load(checkpoint, sinks=4, window=25, threads=1, max_sequences=1) as model:
        for entry in found[:3]:
            sinks = entry["settings"]["sinks"]
            size = 100 - sinks if window is None else window
            assert entry["settings"]["window"] == size
            one = perplexity(model, text, sinks=sinks, window=size, max_tokens=201)
            assert f"{one.perplexity:.3f}" in outcome.out
        assert found[3]["settings"]["window"] == (100 if window is None else 29)


@pytest.mark.parametrize(
    ("sinks", "value"), [("x", '"x"'), ("4,", '"4,"'), ("-1", "-1"), ("4,99999999", "99999999")]
)
def test_wrong_numbers_of_sinks_are_refused_before_the_model_is_loaded(
    run: Run, book: Path, sinks: str, value: str
) -> None:
    outcome = run("evaluate", book, "-m", "/missing/model.gguf", "--sinks", sinks)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("sinkstream: evaluate: `--sinks` must be ")
    assert outcome.err.endswith(f"but is {value}.\n")


def test_a_recall_task_takes_one_number_of_sinks(run: Run, checkpoint: str) -> None:
    outcome = run("evaluate", "--needle", "-m", "/missing/model.gguf", "--sinks", "0,4")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == (
        "sinkstream: evaluate: `--sinks` must be one number with --stream-eval or --needle, but is "
        '"0,4".\n'
    )


def test_a_short_text_gets_a_window_that_it_fills(
    run: Run, checkpoint: str, book: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    outcome = run(
        *(
            "evaluate",
            book,
            "-m",
            checkpoint,
            "--tokens",
            "201",
            "--method",
            "sinks,window,recompute",
        ),
        *("--sample", "5", "--threads", "1", "--out", out),
    )
    assert outcome.code == 0, outcome.err
    assert outcome.err == (
        "sinkstream: evaluate: the text should have more than 2,049 tokens for the default window, "
        "but has 201. 4 sinks and a window of 96 are used. Choose a different window with "
        "--window.\n"
    )
    for entry in json.loads(out.read_text())["results"]:
        assert entry["settings"]["sinks"] + entry["settings"]["window"] == 100
    with sinkstream.load(checkpoint, threads=1, max_sequences=1) as model:
        text = book.read_text(encoding="utf-8")
        expected = perplexity(model, text, max_tokens=201, window=96)
    assert f"{expected.perplexity:.3f}" in outcome.out


@pytest.mark.parametrize("more", [["--window", "28"], ["--method", "dense"]])
def test_a_window_that_was_given_or_is_not_needed_is_not_changed(
    run: Run, checkpoint: str, book: Path, more: list[str]
) -> None:
    outcome = run("evaluate", book, "-m", checkpoint, "--tokens", "201", "--threads", "1", *more)
    assert outcome.code == 0
    assert "for the default window" not in outcome.err


def test_a_text_of_a_few_tokens_still_fails_in_one_sentence(
    run: Run, checkpoint: str, tmp_path: Path
) -> None:
    (tmp_path / "tiny.txt").write_text("the cat", encoding="utf-8")
    outcome = run("evaluate", tmp_path / "tiny.txt", "-m", checkpoint, "--threads", "1")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1


def test_a_task_that_is_too_hard_for_the_model_is_said_to_be(run: Run, checkpoint: str) -> None:
    outcome = run(
        *("evaluate", "--stream-eval", "-m", checkpoint, "--window", "400", "--back", "1,20"),
        *("--queries", "3", "--threads", "1"),
    )
    assert "inside the window: 0 of 3 correct" in outcome.out
    assert outcome.err == (
        "sinkstream: evaluate: the model answers no question correctly even inside its window, so "
        "this task is too hard for it, and says nothing about the cache.\n"
    )


def test_ctrl_c_saves_the_scores_and_says_how_to_resume(
    run: Run, checkpoint: str, book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [
        *("evaluate", book, "-m", checkpoint, "--window", "60", "--threads", "1", "--chunk", "50"),
        *("--tokens", "500", "--resume", tmp_path / "runs", "--out", tmp_path / "out.json"),
    ]
    forward, calls = sinkstream.Model.forward, itertools.count()

    def interrupted(self: sinkstream.Model, ids: torch.Tensor, cache: Any = None) -> torch.Tensor:
        if next(calls) == 4:
            signal.raise_signal(signal.SIGINT)
        return forward(self, ids, cache)

    with monkeypatch.context() as patch:
        patch.setattr(sinkstream.Model, "forward", interrupted)
        outcome = run(*command)
    assert (outcome.code, outcome.out) == (130, "")
    assert "sinkstream: stopped. The same command continues from" in outcome.err
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["sinks.npz"]
    assert run(*command).code == 0
    found = json.loads((tmp_path / "out.json").read_text())["results"][0]
    with sinkstream.load(checkpoint, window=60, threads=1, max_sequences=1) as model:
        text = book.read_text(encoding="utf-8")
        expected = perplexity(model, text, max_tokens=500, chunk=50)
    assert PerplexityResult.from_dict(found) == expected
