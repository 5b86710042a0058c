"""`sinkstream demo`: a small cache that wraps, a summary, and a text that stays readable."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

import sinkstream
from sinkstream.cli import demo
from tests.python.cli.conftest import Run
from tests.python.cli.signals import end_by_signal

PROGRAM = [sys.executable, "-m", "sinkstream.cli", "demo"]


def test_it_wraps_the_cache_and_says_so(run: Run, checkpoint: str) -> None:
    outcome = run("demo", "-m", checkpoint, "--tokens", "300", "--window", "28", "--prompt", "ab")
    assert outcome.code == 0
    assert outcome.out.startswith("ab")
    assert "300 tokens in " in outcome.out
    # The last of the 300 tokens was generated but never read.
    with sinkstream.load(checkpoint) as model:
        assert model.tokenizer is not None
        prompt = len(model.tokenizer.encode("ab", add_special_tokens=False).ids)
    assert f"32 tokens are live, {prompt + 299 - 32} were evicted" in outcome.out
    assert "when the cache was first full, and is" in outcome.out


def test_it_writes_without_end_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_terminal, tokens in ((True, None), (False, demo.TOKENS)):
        monkeypatch.setattr("sys.stdout.isatty", lambda found=is_terminal: found, raising=False)
        assert demo.default_tokens() == tokens


def test_the_status_of_a_long_demo_fits_on_80_columns() -> None:
    stats = sinkstream.Stats(
        request_id=1,
        prompt_tokens=50,
        generated_tokens=1_234_567,
        cached_tokens=0,
        evicted_tokens=1_234_361,
        live_tokens=256,
        cache_bytes=8_800_000,
        time_to_first_token_s=0.1,
        tokens_per_s=123.45,
        token_p50_s=0.0071,
        token_p99_s=0.0123,
        consumer_lag=0,
    )
    assert len(demo.status_line(stats)) < 80


def test_no_control_token_can_be_drawn(checkpoint: str) -> None:
    with sinkstream.load(checkpoint) as model:
        bias = demo.forbid_control_tokens(model)
        assert model.tokenizer is not None
        special = [i for i, t in model.tokenizer.get_added_tokens_decoder().items() if t.special]
        assert sorted(bias) == sorted(special)
        assert set(bias.values()) == {float("-inf")}
        assert bias


def test_ctrl_c_ends_an_endless_demo_with_its_summary(checkpoint: str) -> None:
    program = [*PROGRAM, "--endless", "-m", checkpoint, "--window", "28"]
    code, out, err = end_by_signal(program, signal.SIGINT, after=2000)
    assert (code, err) == (130, b"")
    assert b"tokens are live" in out


@pytest.mark.parametrize(
    ("window", "tokens"),
    [(60, 800), pytest.param(demo.WINDOW, demo.TOKENS, marks=pytest.mark.full)],
)
def test_the_demo_stays_readable_far_past_its_window(
    window: int, tokens: int, smollm2: Path, threads: int
) -> None:
    with sinkstream.load(
        smollm2, sinks=demo.SINKS, window=window, max_sequences=1, threads=threads
    ) as model:
        result = demo.start(model, demo.PROMPT, tokens=tokens).result()
    last = result.token_ids[48:]
    assert len(last) == tokens - 48
    four_grams = {tuple(last[i : i + 4]) for i in range(len(last) - 3)}
    assert len(four_grams) >= 0.5 * (len(last) - 3)
    # Words of letters, rather than noise, which may have many different four-grams, too.
    words = result.text.split()
    assert sum(word.strip(".,;:!?\"'()“”’").isalpha() for word in words) > 0.8 * len(words)
    assert result.stats.evicted_tokens > 4 * window


@pytest.mark.parametrize("wrong", [["--tokens", "-1"], ["--temperature", "-1"], ["--sinks", "-1"]])
def test_an_error_is_one_sentence_and_exit_code_2(
    run: Run, checkpoint: str, wrong: list[str]
) -> None:
    outcome = run("demo", "-m", checkpoint, *wrong)
    assert outcome.code == 2
    assert outcome.err.startswith("sinkstream: ")
    assert outcome.err.count("\n") == 1
