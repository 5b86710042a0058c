"""`sinkstream demo`: a small cache that wraps, a summary, and a text that stays readable."""

from __future__ import annotations

import io
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

import sinkstream
from sinkstream.cli import demo
from sinkstream.cli.demo import LiveScreen, break_lines, open_screen
from sinkstream.cli.terminal import printable
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


def test_the_summary_says_how_much_was_guessed() -> None:
    counts = {"request_id": 1, "prompt_tokens": 50, "generated_tokens": 3000, "cached_tokens": 0}
    times = dict.fromkeys(("time_to_first_token_s", "tokens_per_s", "token_p50_s", "token_p99_s"))
    others = {"evicted_tokens": 5, "live_tokens": 6, "cache_bytes": 7, "consumer_lag": 0}
    stats = sinkstream.Stats(**counts, **times, **others)  # type: ignore[arg-type]
    assert "guessed" not in demo.summary(stats, demo.Watch(0))
    drafted = replace(stats, draft_tokens=2000, accepted_tokens=1234)
    assert "\n1,234 of 2,000 guessed tokens were right.\n" in demo.summary(drafted, demo.Watch(0))


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
    [(60, 660), pytest.param(demo.WINDOW, demo.TOKENS, marks=pytest.mark.full)],
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


@given(st.text(alphabet="ab \n漢é"), st.integers(2, 9))
def test_broken_lines_fit_and_keep_all_but_spaces(text: str, width: int) -> None:
    lines = break_lines(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "").replace("\n", "")


@pytest.mark.timeout(20)
def test_a_character_that_is_wider_than_the_terminal_has_a_line_of_its_own() -> None:
    assert break_lines("漢a字", 1) == ["漢", "a", "字"]
    assert break_lines("漢 字\n", 1) == ["漢", "字", ""]


def test_lines_break_at_spaces() -> None:
    assert break_lines("once upon a time", 10) == ["once upon", "a time"]
    assert break_lines("once upon", 9) == ["once upon"]
    assert break_lines("incomprehensible", 7) == ["incompr", "ehensib", "le"]


def test_a_line_that_is_continued_is_the_last_one() -> None:
    assert break_lines("end.\n", 20) == ["end.", ""]


@pytest.mark.parametrize("character", ["\x1b", "\r", "\x07", "\x9b", "\x7f", "\x00"])
def test_a_terminal_is_shown_control_characters_and_not_given_them(character: str) -> None:
    assert printable(f"a{character}b") == "a\N{REPLACEMENT CHARACTER}b"


def test_newlines_and_tabs_pass() -> None:
    assert printable("a\n\tb") == "a\n\tb"


def test_text_that_has_scrolled_away_is_the_text_that_was_written() -> None:
    terminal = io.StringIO()
    console = Console(file=terminal, force_terminal=True, width=30, color_system=None)
    words = "the sea was calm and the night was long " * 20
    with LiveScreen(lambda: "STATUS", console) as screen:
        for begin in range(0, len(words), 7):
            screen.write(words[begin : begin + 7])
    shown = _without_redrawn_lines(terminal.getvalue())
    assert "STATUS" in terminal.getvalue()
    assert " ".join(shown.split()) == words.strip()


class Dumb(io.StringIO):
    """A terminal that obeys no escape sequences."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("term", ["dumb", None])
def test_a_terminal_that_obeys_no_escape_sequences_gets_none(
    monkeypatch: pytest.MonkeyPatch, term: str | None
) -> None:
    monkeypatch.delenv("TERM", raising=False)
    if term is not None:
        monkeypatch.setenv("TERM", term)
    terminal = Dumb()
    monkeypatch.setattr("sys.stdout", terminal)
    with open_screen(lambda: "STATUS") as screen:
        screen.write("the sea\x1b[5n")
        assert terminal.getvalue() == "the sea\N{REPLACEMENT CHARACTER}[5n"  # as it arrives
    assert terminal.getvalue() == "the sea\N{REPLACEMENT CHARACTER}[5n\n"


def test_a_file_gets_the_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    with open_screen(lambda: "STATUS") as screen:
        screen.write("a\x1b[5n")
    assert sys.stdout.getvalue() == "a\x1b[5n\n"  # type: ignore[attr-defined]


def test_the_status_stays_on_one_line_of_a_narrow_terminal() -> None:
    terminal = io.StringIO()
    console = Console(file=terminal, force_terminal=True, width=30, color_system=None)
    with LiveScreen(lambda: "a status of more words than a line has room for", console) as screen:
        screen.write("text")
        drawn = terminal.getvalue()
    assert "a status of more words than a…" in drawn
    assert "room for" not in drawn


def _without_redrawn_lines(written: str) -> str:
    """Return the text that a terminal shows after these characters and escape sequences."""
    rows, row, column = [""], 0, 0
    index = 0
    while index < len(written):
        character = written[index]
        if character == "\x1b":
            end = index + 2
            while not written[end].isalpha():
                end += 1
            count = int(written[index + 2 : end].strip("?") or "1")
            if written[end] == "A":
                row -= count
            elif written[end] == "K":
                rows[row] = ""
            index = end
        elif character == "\r":
            column = 0
        elif character == "\n":
            row, column = row + 1, 0
            if row == len(rows):
                rows.append("")
        else:
            rows[row] = rows[row][:column].ljust(column) + character + rows[row][column + 1 :]
            column += 1
        index += 1
    return "\n".join(rows)
