"""`sinkstream generate`: text or events on standard output, one-sentence errors, exit codes."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sinkstream
from tests.python.cli.conftest import Run

PROGRAM = [sys.executable, "-m", "sinkstream.cli"]


def expected(checkpoint: str, prompt: str, **options: object) -> sinkstream.Result:
    with sinkstream.load(checkpoint) as model:
        return model.generate(prompt, **options)


def test_it_writes_the_text_that_the_model_generates(run: Run, checkpoint: str) -> None:
    outcome = run("generate", "hello", "-m", checkpoint, "-n", "40", "--seed", "7")
    text = expected(checkpoint, "hello", max_tokens=40, seed=7).text
    assert (outcome.code, outcome.out, outcome.err) == (0, text + "\n", "")


def test_every_sampling_option_reaches_the_stream(run: Run, checkpoint: str) -> None:
    outcome = run(
        *("generate", "hello", "-m", checkpoint, "-n", "30", "--json", "--seed", "5"),
        *("--temperature", "1.5", "--top-k", "50", "--top-p", "0.9", "--min-p", "0.01"),
        *("--repetition-penalty", "1.2", "--presence-penalty", "0.1"),
        *("--frequency-penalty", "0.2", "--logit-bias", "9=-inf", "--logprobs", "2"),
        *("--ignore-eos", "--stop-token-id", "3", "--stop", "zzz", "--stream-interval", "2"),
    )
    started, *_, finished = [json.loads(line) for line in outcome.out.splitlines()]
    assert started["sampling"] == {
        "temperature": 1.5,
        "top_k": 50,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
    }
    result = expected(
        checkpoint,
        "hello",
        max_tokens=30,
        seed=5,
        **started["sampling"],
        logit_bias={9: float("-inf")},
        ignore_eos=True,
        stop_token_ids=[3],
        stop="zzz",
    )
    tokens = [json.loads(line) for line in outcome.out.splitlines() if '"token"' in line]
    assert [token["id"] for token in tokens] == result.token_ids
    assert all(len(token["alternatives"]) == 2 for token in tokens)
    assert finished["reason"] == result.finish_reason


def test_events_are_one_json_object_a_line(run: Run, checkpoint: str) -> None:
    outcome = run(
        *("generate", "hello", "-m", checkpoint, "-n", "100", "--json"),
        *("--window", "28", "--ignore-eos", "--seed", "3"),
    )
    events = [json.loads(line) for line in outcome.out.splitlines()]
    kinds = [event["event"] for event in events]
    assert (kinds[0], kinds[-1]) == ("started", "finished")
    assert {"prefill", "token", "evicted"} < set(kinds)
    assert (
        sum(e["count"] for e in events if e["event"] == "evicted")
        == (events[-1]["stats"]["evicted_tokens"])
    )
    text = "".join(e["text"] for e in events if e["event"] in ("token", "finished"))
    with sinkstream.load(checkpoint, window=28) as model:
        assert text == model.generate("hello", max_tokens=100, seed=3, ignore_eos=True).text


def test_a_dash_reads_standard_input(
    run: Run, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello")))
    outcome = run("generate", "-", "-m", checkpoint, "-n", "20", "--seed", "7")
    assert outcome.out == expected(checkpoint, "hello", max_tokens=20, seed=7).text + "\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--top-p", "2"], "stream: `top_p` must be in (0, 1], but is 2."),
        (["--temperature", "nan"], "stream: `temperature` must be in [0, 100], but is nan."),
        (["--logit-bias", "9"], "`--logit-bias` must be ID=NUMBER, but is '9'."),
        (["--window", "0"], "load: `window` must be in [1, 16777216], but is 0."),
        (["--top-k", "x"], "Invalid value for '--top-k'"),
        (["--nonsense"], "No such option: --nonsense"),
        (["--device", "tpu"], "load: `device` must be one of"),
        (["-m", "/nowhere"], 'load: "/nowhere" must be'),
    ],
)
def test_an_error_is_one_sentence_and_exit_code_2(
    run: Run, checkpoint: str, arguments: list[str], sentence: str
) -> None:
    outcome = run("generate", "hello", "-m", checkpoint, "-n", "3", *arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("sinkstream: ")
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1


def test_input_that_is_not_utf8_is_an_error(
    run: Run, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xff")))
    outcome = run("generate", "-", "-m", checkpoint)
    assert outcome.code == 2
    assert "standard input must be UTF-8, but byte 2 is not." in outcome.err


def test_a_capacity_beyond_the_trained_length_warns_in_one_line(run: Run, checkpoint: str) -> None:
    outcome = run("generate", "hello", "-m", checkpoint, "-n", "3", "--window", "4096")
    assert outcome.code == 0
    assert outcome.err.startswith("sinkstream: load: sinks + window should not exceed the 2048")
    assert outcome.err.count("\n") == 1


def endless(checkpoint: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, "generate", "hello", "-m", checkpoint, "--ignore-eos", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_ends_it_quietly_with_130(checkpoint: str) -> None:
    process = endless(checkpoint)
    assert process.stdout is not None
    for _ in range(10):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")


def test_a_reader_that_goes_away_ends_it_quietly(checkpoint: str) -> None:
    process = endless(checkpoint)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=30) == 1


def test_a_trace_has_every_step(run: Run, checkpoint: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    outcome = run(
        "generate", "hello", "-m", checkpoint, "-n", "9", "--ignore-eos", "--trace", str(path)
    )
    assert (outcome.code, outcome.err) == (0, "")
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    assert sum(event["name"] == "step" for event in events) == 9
    assert "hello" not in path.read_text(encoding="utf-8")


def test_a_trace_that_cannot_be_written_is_said_before_anything_is_loaded(run: Run) -> None:
    outcome = run("generate", "hello", "-m", "/missing/model.gguf", "--trace", "/missing/t.json")
    assert outcome.code == 2
    assert outcome.err.startswith("sinkstream: trace: `path` must be a writable file")
