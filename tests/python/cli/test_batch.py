"""`sinkstream batch`: a result per line, in order, continued by a second run."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.cli import main
from sinkstream.streams import inbox
from tests.python.cli.conftest import Outcome, Run
from tests.python.cli.terminal import CTRL_C, Terminal

PROGRAM = [sys.executable, "-m", "sinkstream", "batch"]
SEED = ("--seed", "7", "-n", "9", "--threads", "1")

Line = dict[str, Any] | str
Batch = Callable[..., Outcome]


def as_text(lines: Sequence[Line]) -> str:
    return "".join(
        (line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)) + "\n"
        for line in lines
    )


@pytest.fixture
def batch(run: Run, checkpoint: str, tmp_path: Path) -> Batch:
    """Return a function that answers these lines into out.jsonl."""

    def call(*lines: Line, arguments: Sequence[str] = SEED) -> Outcome:
        (tmp_path / "in.jsonl").write_text(as_text(lines), encoding="utf-8")
        return run(
            *("batch", f"{tmp_path}/in.jsonl", f"{tmp_path}/out.jsonl", "-m", checkpoint),
            *arguments,
        )

    return call


def results(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "out.jsonl").read_text(encoding="utf-8")
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def reply(checkpoint: str, prompt: Any, **options: Any) -> sinkstream.Result:
    options = {"seed": 7, "max_tokens": 9, **options}
    with sinkstream.load(checkpoint, threads=1) as model:
        return model.generate(prompt, **options)


def message(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


# ---- results -------------------------------------------------------------------------------------


def test_a_line_is_answered_as_the_function_does(
    batch: Batch, checkpoint: str, tmp_path: Path
) -> None:
    talk = [{"role": "system", "content": "Be brief."}, *message("hello")]
    outcome = batch(
        {"prompt": "grüße 🚰", "id": "a"},
        {"messages": talk, "id": 17},
        {"prompt": [5, 6, 7]},
    )
    assert outcome == Outcome(0, "", "")
    expected = [
        ({"line": 1, "id": "a"}, reply(checkpoint, message("grüße 🚰"))),
        ({"line": 2, "id": 17}, reply(checkpoint, talk)),
        ({"line": 3}, reply(checkpoint, [5, 6, 7])),
    ]
    found_results = results(tmp_path)
    sources = (tmp_path / "in.jsonl").read_bytes().splitlines()
    assert [entry.pop("digest") for entry in found_results] == [
        hashlib.sha256(line).hexdigest()[:16] for line in sources
    ]
    assert found_results == [
        {
            **head,
            "text": found.text,
            "finish_reason": found.finish_reason,
            "prompt_tokens": found.stats.prompt_tokens,
            "generated_tokens": found.stats.generated_tokens,
            "seed": 7,
        }
        for head, found in expected
    ]


def test_options_of_a_line_go_before_those_of_the_command(
    batch: Batch, checkpoint: str, tmp_path: Path
) -> None:
    options = {
        "max_tokens": 20, "temperature": 1.5, "top_k": 50, "stop": ["an"], "seed": 3,
        "logit_bias": {"9": -3.5}, "ignore_eos": True,
    }  # fmt: skip
    outcome = batch({"prompt": "hello", **options}, {"prompt": "hello", "temperature": None})
    assert outcome.code == 0
    expected = reply(checkpoint, message("hello"), **{**options, "logit_bias": {9: -3.5}})
    assert [entry["text"] for entry in results(tmp_path)] == [
        expected.text,
        reply(checkpoint, message("hello")).text,
    ]


def test_log_probabilities_are_written_if_they_are_wanted(
    batch: Batch, checkpoint: str, tmp_path: Path
) -> None:
    assert batch({"prompt": "hello", "logprobs": 1}).code == 0
    expected = reply(checkpoint, message("hello"), logprobs=1)
    (found,) = results(tmp_path)
    assert found["token_ids"] == list(expected.token_ids)
    assert found["logprobs"] == pytest.approx(list(expected.logprobs))
    assert [[token for token, _ in entry] for entry in found["alternatives"]] == [
        [token for token, _ in entry] for entry in expected.alternatives
    ]


def test_a_reply_that_lost_its_beginning_says_so(
    batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (inbox._WHOLE_TOKENS, inbox._TAIL_CHARACTERS) == (65_536, 32_768)
    monkeypatch.setattr(inbox, "_WHOLE_TOKENS", 5000)
    monkeypatch.setattr(inbox, "_TAIL_CHARACTERS", 1000)
    line = {"prompt": "x", "max_tokens": 5001, "ignore_eos": True, "stop": "zzzzzzzz"}
    assert batch(line, {**line, "max_tokens": 5000}).code == 0
    found, whole = results(tmp_path)
    assert "dropped_tokens" not in whole
    assert found["generated_tokens"] == 5001
    assert found["dropped_tokens"] == 5001 - 4096
    assert found["dropped_characters"] > 0


def test_raw_prompts_and_a_system_message(batch: Batch, checkpoint: str, tmp_path: Path) -> None:
    batch({"prompt": "hello"}, arguments=(*SEED, "--raw"))
    assert results(tmp_path)[0]["text"] == reply(checkpoint, "hello").text
    (tmp_path / "out.jsonl").unlink()
    batch({"prompt": "hello"}, arguments=(*SEED, "--system", "Be brief."))
    talk = [{"role": "system", "content": "Be brief."}, *message("hello")]
    assert results(tmp_path)[0]["text"] == reply(checkpoint, talk).text


@pytest.mark.parametrize("where", ["out.jsonl", "-"])
def test_a_result_is_one_line_for_every_reader(
    run: Run, checkpoint: str, tmp_path: Path, line_breaks: dict[int, float], where: str
) -> None:
    line = {"prompt": "a", "logit_bias": line_breaks, "id": "\u2028"}
    (tmp_path / "in.jsonl").write_text(as_text([line]), encoding="utf-8")
    target = where if where == "-" else f"{tmp_path}/{where}"
    command = ("batch", f"{tmp_path}/in.jsonl", target, "-m", checkpoint, *SEED, "-n", "60")
    outcome = run(*command)
    assert (outcome.code, outcome.err) == (0, "")
    text = outcome.out if where == "-" else (tmp_path / where).read_text(encoding="utf-8")
    (found,) = map(json.loads, text.splitlines())
    assert "\x85" in found["text"]
    assert found["id"] == "\u2028"


def test_results_keep_the_order_of_the_lines(batch: Batch, tmp_path: Path) -> None:
    lengths = [(i * 37) % 90 + 1 for i in range(60)]
    lines = [
        {"prompt": f"p{i}", "max_tokens": n, "ignore_eos": True} for i, n in enumerate(lengths)
    ]
    assert batch(*lines, arguments=("--max-sequences", "5")).code == 0
    found = results(tmp_path)
    assert [entry["line"] for entry in found] == list(range(1, 61))
    assert [entry["generated_tokens"] for entry in found] == lengths


def test_as_many_requests_run_at_once_as_were_asked_for(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[int] = []
    open_now = [0]
    stream, close = sinkstream.Model.stream, sinkstream.Stream.close

    def start(model: sinkstream.Model, *args: Any, **options: Any) -> sinkstream.Stream:
        open_now[0] += 1
        running.append(open_now[0])
        return stream(model, *args, **options)

    def end(found: sinkstream.Stream) -> None:
        if found.finish_reason is not None and not hasattr(found, "_ended"):
            open_now[0] -= 1
            found._ended = True  # type: ignore[attr-defined]
        close(found)

    monkeypatch.setattr(sinkstream.Model, "stream", start)
    monkeypatch.setattr(sinkstream.Stream, "close", end)
    lines = [{"prompt": "x", "max_tokens": 9 + 50 * (i % 3)} for i in range(30)]
    assert batch(*lines, arguments=("--max-sequences", "3", "--seed", "1")).code == 0
    assert max(running) == 3
    assert running.count(3) > 20


def test_no_line_is_no_result(batch: Batch, tmp_path: Path) -> None:
    assert batch() == Outcome(0, "", "")
    assert results(tmp_path) == []
    assert batch("", "  ") == Outcome(0, "", "")
    assert results(tmp_path) == []


def test_blank_lines_count_as_lines_only(batch: Batch, tmp_path: Path) -> None:
    batch("", {"prompt": "a"}, "  ", {"prompt": "b"})
    assert [entry["line"] for entry in results(tmp_path)] == [2, 4]


def test_the_last_line_needs_no_newline_and_lines_may_end_in_crlf(
    run: Run, checkpoint: str, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'{"prompt": "a"}\r\n{"prompt": "b"}')
    outcome = run(
        *("batch", f"{tmp_path}/in.jsonl", f"{tmp_path}/out.jsonl", "-m", checkpoint, *SEED)
    )
    assert (outcome.code, len(results(tmp_path))) == (0, 2)


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("nonsense", "batch: line 2 must be a JSON object, but is not: "),
        ("[1]", "batch: line 2 must be a JSON object, but is of type list."),
        ("[" * 100_000, "batch: line 2 must be a JSON object, but is not: "),
        ('{"prompt": "\\udc00"}', "must be valid Unicode"),
        ("{}", "batch: line 2 must have a prompt or messages, but has neither."),
        ({"prompt": "a", "messages": []}, "must have a prompt or messages, but has both."),
        ({"prompt": 3}, "stream: `prompt` must be a string, token ids or a list of messages"),
        ({"prompt": ""}, "batch: the prompt of line 2 must not be empty"),
        ({"messages": [{"role": "user"}]}, "stream: "),
        ({"messages": "hello"}, "of line 2 must be a list of objects, but are of type str."),
        ({"prompt": "a", "temprature": 1}, 'but has "temprature". Did you mean temperature?'),
        ({"prompt": "a", "top_p": 2}, "stream: `top_p` must be in (0, 1], but is 2."),
        ({"prompt": "a", "top_k": "x"}, "stream: `top_k` must be an integer, but is of type str."),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "batch: a key of `logit_bias` in line 2 must be"),
        ({"prompt": "a", "id": [1]}, "batch: the id of line 2 must be a string or an integer"),
        ({"prompt": "a", "max_tokens": 10**400}, "stream: `max_tokens` must be in [0, "),
    ],
)  # fmt: skip
def test_an_error_is_a_result_and_the_others_are_answered(
    batch: Batch, checkpoint: str, tmp_path: Path, line: Line, sentence: str
) -> None:
    outcome = batch({"prompt": "a"}, line, {"prompt": "b"})
    first, wrong, last = results(tmp_path)
    assert (first["text"], last["text"]) == tuple(
        reply(checkpoint, message(text)).text for text in "ab"
    )
    assert set(wrong) - {"id"} == {"line", "digest", "error"}
    assert sentence in wrong["error"]
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == (
        'sinkstream: batch: 1 of 3 lines has an "error" instead of a result. '
        f"The first: {wrong['error']}\n"
    )


def test_an_error_keeps_the_id(batch: Batch, tmp_path: Path) -> None:
    batch({"id": "x", "prompt": "a", "top_p": 2})
    assert results(tmp_path)[0]["id"] == "x"


def test_a_line_that_is_not_utf8_or_too_long_is_an_error(
    run: Run, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinkstream.cli.batch_requests.MAX_LINE_BYTES", 1000)
    long = json.dumps({"prompt": "x" * 200_000}).encode()
    (tmp_path / "in.jsonl").write_bytes(b'{"prompt": "\xff"}\n' + long + b'\n{"prompt": "b"}\n')
    outcome = run(
        *("batch", f"{tmp_path}/in.jsonl", f"{tmp_path}/out.jsonl", "-m", checkpoint, *SEED)
    )
    assert outcome.code == 2
    bad, too_long, good = results(tmp_path)
    assert "UTF-8" in bad["error"]
    assert "line 2 must have at most 1,000 bytes" in too_long["error"]
    assert good["line"] == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{0}/none.jsonl", "{0}/out.jsonl"], '"{0}/none.jsonl": No such file or directory.'),
        (["{0}/in.jsonl", "{0}/none/o"], '"{0}/none/o": No such file or directory.'),
        (["{0}", "{0}/out.jsonl"], '"{0}": Is a directory.'),
        (["{0}/in.jsonl", "{0}/in.jsonl"], "batch: OUT must be a different file from IN"),
        (["{0}/in.jsonl", "{0}/o", "--top-p", "2"], "`--top-p` must be in (0, 1], but is 2."),
        (["{0}/in.jsonl", "{0}/o", "--raw", "--system", "x"], "--system must not be given"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_the_model_is_loaded(
    run: Run, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n', encoding="utf-8")
    words = [word.format(tmp_path) for word in arguments]
    outcome = run("batch", *words, "-m", "/missing/model.gguf")
    assert (outcome.code, outcome.out) == (2, "")
    assert sentence.format(tmp_path) in outcome.err
    assert outcome.err.count("\n") == 1
    assert (tmp_path / "in.jsonl").read_text() == '{"prompt": "a"}\n'


def test_a_full_disk_is_one_sentence(run: Run, checkpoint: str, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n', encoding="utf-8")
    outcome = run("batch", f"{tmp_path}/in.jsonl", "/dev/full", "-m", checkpoint, *SEED)
    assert outcome == Outcome(2, "", 'sinkstream: "/dev/full": No space left on device.\n')


def test_an_engine_that_dies_ends_the_run_and_keeps_its_results(
    batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = sinkstream.Stream.aresult
    count = [0]

    async def die(stream: sinkstream.Stream) -> sinkstream.Result:
        count[0] += 1
        if count[0] > 5:
            raise sinkstream.EngineDead("stream: the engine has failed.")
        return await result(stream)

    monkeypatch.setattr(sinkstream.Stream, "aresult", die)
    outcome = batch(*[{"prompt": "a"}] * 20)
    assert outcome == Outcome(2, "", "sinkstream: stream: the engine has failed.\n")
    assert 1 <= len(results(tmp_path)) <= 5
    assert all("text" in entry for entry in results(tmp_path))


# ---- a second run --------------------------------------------------------------------------------

LINES = [{"id": i, "prompt": f"line {i}"} for i in range(12)]


@pytest.mark.parametrize("kept", [0, 1, 5, 11, 12])
@pytest.mark.parametrize(
    "torn", ["", '{"li', '{"line": 6, "id": 5, "te', '{"line": 99, "text": "é']
)
def test_a_second_run_continues_after_the_last_complete_line(
    batch: Batch, tmp_path: Path, kept: int, torn: str
) -> None:
    batch(*LINES)
    out = tmp_path / "out.jsonl"
    whole = out.read_bytes()
    lines = whole.splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:kept]) + torn.encode()[: -1 if "é" in torn else None])
    said = f"sinkstream: batch: {kept} of 12 lines were already answered.\n" * (kept > 0)
    assert batch(*LINES) == Outcome(0, "", said)
    assert out.read_bytes() == whole


def test_finished_lines_are_not_answered_again(
    batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch(*LINES[:5])
    asked: list[object] = []
    stream = sinkstream.Model.stream

    def watch(model: sinkstream.Model, prompt: Any, **options: Any) -> sinkstream.Stream:
        asked.append(prompt[0]["content"])
        return stream(model, prompt, **options)

    monkeypatch.setattr(sinkstream.Model, "stream", watch)
    assert batch(*LINES).code == 0
    assert asked == [line["prompt"] for line in LINES[5:]]


@pytest.mark.parametrize(
    "content",
    [
        "something else", "something else\n", '{"line": 3}\nother\n', '{"a": 1}\n', "[1]\n",
        '{"line": "x"}\n',
    ],
)  # fmt: skip
def test_a_file_that_holds_something_else_is_not_touched(
    batch: Batch, tmp_path: Path, content: str
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text(content, encoding="utf-8")
    outcome = batch(*LINES)
    assert outcome.code == 2
    assert "must hold results of this command, or not exist" in outcome.err
    assert out.read_text(encoding="utf-8") == content


def test_results_of_another_input_are_not_continued(batch: Batch, tmp_path: Path) -> None:
    batch(*LINES[:5])
    before = (tmp_path / "out.jsonl").read_bytes()
    outcome = batch(*[{**line, "id": f"other {line['id']}"} for line in LINES])
    assert outcome.code == 2
    assert "must hold results of the same input" in outcome.err
    outcome = batch(*LINES[:3])
    assert outcome.code == 2
    assert "must hold results of the same input" in outcome.err
    assert (tmp_path / "out.jsonl").read_bytes() == before


@pytest.mark.parametrize("changed", [0, 2, 4])
@pytest.mark.parametrize("digests", [True, False])
def test_an_answered_line_that_has_changed_is_named(
    batch: Batch, tmp_path: Path, changed: int, digests: bool
) -> None:
    batch(*LINES[:5])
    out = tmp_path / "out.jsonl"
    if not digests:  # as 0.1.0 wrote it
        kept = [
            {name: value for name, value in entry.items() if name != "digest"}
            for entry in results(tmp_path)
        ]
        out.write_text(as_text(kept), encoding="utf-8")
    before = out.read_bytes()
    lines = [dict(line) for line in LINES]
    lines[changed]["prompt" if digests else "id"] = "another"
    outcome = batch(*lines)
    assert outcome == Outcome(
        2,
        "",
        "sinkstream: batch: OUT must hold results of the same input, but has one for line "
        f"{changed + 1}, and IN has a different line {changed + 1}. To start over, delete "
        "OUT.\n",
    )
    assert out.read_bytes() == before


BAD = {"id": "bad", "prompt": "a", "top_p": 2}


def test_errors_of_an_earlier_run_are_counted(batch: Batch, tmp_path: Path) -> None:
    assert batch(*LINES[:2], BAD, BAD).code == 2
    outcome = batch(*LINES[:2], BAD, BAD, LINES[2])
    assert outcome == Outcome(
        2,
        "",
        "sinkstream: batch: 4 of 5 lines were already answered, 2 with an error. --retry-errors "
        "answers those again.\n",
    )
    assert [entry["line"] for entry in results(tmp_path)] == [1, 2, 3, 4, 5]


def test_errors_are_answered_again_and_keep_their_places(
    batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = sinkstream.Stream.aresult
    with monkeypatch.context() as patch:

        async def fail(stream: sinkstream.Stream) -> sinkstream.Result:
            if stream.request_id % 2:  # of lines 1, 3 and 5
                raise sinkstream.CapacityError("stream: full.")
            return await result(stream)

        patch.setattr(sinkstream.Stream, "aresult", fail)
        lines = [{"prompt": [5] * (i + 1)} for i in range(9)]
        assert batch(*lines[:6], BAD).code == 2
    asked: list[object] = []
    stream = sinkstream.Model.stream

    def watch(model: sinkstream.Model, prompt: Any, **options: Any) -> sinkstream.Stream:
        asked.append(len(prompt))
        return stream(model, prompt, **options)

    monkeypatch.setattr(sinkstream.Model, "stream", watch)
    outcome = batch(*lines[:6], BAD, *lines[6:], arguments=(*SEED, "--retry-errors"))
    assert (outcome.code, outcome.out) == (2, "")
    assert "batch: 3 of 10 lines were already answered.\n" in outcome.err
    assert 'batch: 1 of 7 lines has an "error"' in outcome.err
    assert asked == [1, 3, 5, 1, 7, 8, 9]
    again = results(tmp_path)
    (tmp_path / "out.jsonl").unlink()
    batch(*lines[:6], BAD, *lines[6:])
    assert again == results(tmp_path)
    assert ["error" in entry for entry in again] == [False] * 6 + [True] + [False] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_a_file_of_text_says_what_is_wrong_with_it(batch: Batch) -> None:
    outcome = batch("Name a river.", "Name a lake.")
    assert outcome.err.startswith(
        'sinkstream: batch: 2 of 2 lines have an "error" instead of a result. The first: batch: '
        "line 1 must be a JSON object, but is not: "
    )


def test_two_runs_do_not_write_to_one_file(batch: Batch, tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / "out.jsonl").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        outcome = batch(*LINES)
    assert outcome.code == 2
    assert f'another run is writing to "{tmp_path}/out.jsonl".' in outcome.err


# A run over it ends only if it is stopped, however fast it is or slow the test.
ENDLESS_LINE = {"prompt": "x", "max_tokens": 1_000_000_000, "ignore_eos": True}
LONG_LINES = [{"id": i, "prompt": "x", "max_tokens": 150, "ignore_eos": True} for i in range(20)]


@pytest.fixture(scope="module")
def whole(checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the results of `LONG_LINES`."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "in.jsonl").write_text(as_text(LONG_LINES), encoding="utf-8")
    assert main(["batch", f"{folder}/in.jsonl", f"{folder}/out", "-m", checkpoint, *SEED]) == 0
    return (folder / "out").read_bytes()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_stopped_is_continued_to_the_same_results(
    batch: Batch, checkpoint: str, whole: bytes, tmp_path: Path, how: signal.Signals
) -> None:
    out = tmp_path / "out.jsonl"
    lines = [*LONG_LINES[:-1], ENDLESS_LINE]
    (tmp_path / "in.jsonl").write_text(as_text(lines), encoding="utf-8")
    command = [*PROGRAM, f"{tmp_path}/in.jsonl", str(out), "-m", checkpoint, *SEED]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    try:
        while not (out.exists() and out.read_bytes().count(b"\n") > 3):
            assert time.monotonic() < until
            time.sleep(0.005)
        process.send_signal(how)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()  # it would not end by itself
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert err.decode() == (f'sinkstream: stopped. The same command continues in "{out}".\n')
    assert batch(*LONG_LINES).code == 0
    assert out.read_bytes() == whole


# ---- pipes and terminals -------------------------------------------------------------------------


def test_standard_streams_are_dashes(checkpoint: str, batch: Batch, tmp_path: Path) -> None:
    batch(*LINES)
    done = subprocess.run(
        [*PROGRAM, "-", "-", "-m", checkpoint, *SEED],
        input=as_text(LINES).encode(),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == (tmp_path / "out.jsonl").read_bytes()


def test_a_program_may_ask_line_by_line(checkpoint: str) -> None:
    with subprocess.Popen(
        [*PROGRAM, "-", "-", "-m", checkpoint, *SEED], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for i in range(3):
            process.stdin.write(as_text([{"id": i, "prompt": "hello"}]).encode())
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == i
        process.stdin.close()
        assert process.stdout.read() == b""
        assert process.wait(timeout=30) == 0


def test_ctrl_c_ends_a_run_that_waits_for_input(checkpoint: str) -> None:
    process = subprocess.Popen(
        [*PROGRAM, "-", "-", "-m", checkpoint, *SEED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b'{"prompt": "a"}\n')
    process.stdin.flush()
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"")


def test_a_closed_input_is_one_sentence(checkpoint: str) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" <&-', "sh", *PROGRAM, "-", "-", "-m", checkpoint],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "standard input" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_reader_that_goes_away_ends_it_quietly(checkpoint: str) -> None:
    lines = as_text([{"prompt": "x"}] * 2000)
    done = subprocess.run(
        ["sh", "-c", '"$@" | head -n 2; exit 0', "sh", *PROGRAM, "-", "-", "-m", checkpoint, *SEED],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.count("\n") == 2
    assert done.stderr == ""


def test_a_terminal_shows_progress(checkpoint: str, tmp_path: Path) -> None:
    lines = [{"prompt": "x", "max_tokens": 200, "ignore_eos": True}] * 59 + [ENDLESS_LINE]
    (tmp_path / "in.jsonl").write_text(as_text(lines), encoding="utf-8")
    command = [*PROGRAM, f"{tmp_path}/in.jsonl", f"{tmp_path}/out.jsonl", "-m", checkpoint]
    with Terminal(command, {"TERM": "xterm"}) as terminal:
        terminal.read_until("/60")
        terminal.press(CTRL_C)
        assert terminal.end()[0] == 130


def test_memory_does_not_grow_with_the_input(checkpoint: str, tmp_path: Path) -> None:
    """Sixty megabytes go through a process that may use little more than a model needs."""
    lines = as_text([{"prompt": "x", "max_tokens": 1, "pad": "y" * 100_000}])
    with (tmp_path / "in.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(600):
            file.write(lines)
    script = (
        "import resource, sys; from sinkstream.cli import main; code = main(sys.argv[1:]); "
        "print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )

    def peak(*arguments: str) -> int:
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            capture_output=True, text=True, check=True, env={**os.environ},
        )  # fmt: skip
        return int(done.stdout.split()[-1])

    small = tmp_path / "small.jsonl"
    small.write_text(lines, encoding="utf-8")
    least = peak("batch", str(small), f"{tmp_path}/small_out", "-m", checkpoint)
    most = peak("batch", f"{tmp_path}/in.jsonl", f"{tmp_path}/out", "-m", checkpoint)
    assert most - least < 20_000  # kB
