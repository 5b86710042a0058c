"""`sinkstream generate`: text or events on standard output, one-sentence errors, exit codes."""

from __future__ import annotations

import inspect
import io
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import sinkstream
from sinkstream.cli.generate import PIPED_TOKENS
from tests.python.cli.conftest import Run
from tests.python.cli.terminal import CTRL_C, Terminal

PROGRAM = [sys.executable, "-m", "sinkstream.cli"]


def expected(
    checkpoint: str, prompt: str, *, system: str | None = None, raw: bool = False, **options: object
) -> sinkstream.Result:
    """Return the reply to a prompt, sent as a message unless it is raw."""
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    with sinkstream.load(checkpoint) as model:
        return model.generate(prompt if raw else messages, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def base_model(checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Give the checkpoint without its chat template."""
    folder = tmp_path_factory.mktemp("base") / "model"
    shutil.copytree(checkpoint, folder)
    file = folder / "tokenizer_config.json"
    fields = json.loads(file.read_text(encoding="utf-8"))
    del fields["chat_template"]
    file.write_text(json.dumps(fields), encoding="utf-8")
    return str(folder)


LIMITS = ("-n", "40", "--seed", "7")


def test_a_prompt_is_a_message_where_the_checkpoint_has_a_template(
    run: Run, checkpoint: str
) -> None:
    text = expected(checkpoint, "hello", max_tokens=40, seed=7).text
    for more in ([], ["--chat"]):
        outcome = run("generate", "hello", "-m", checkpoint, *LIMITS, *more)
        assert (outcome.code, outcome.out, outcome.err) == (0, text + "\n", "")


def test_a_system_message_goes_before_it(run: Run, checkpoint: str) -> None:
    outcome = run("generate", "hello", "-m", checkpoint, *LIMITS, "--system", "Be brief.")
    text = expected(checkpoint, "hello", system="Be brief.", max_tokens=40, seed=7).text
    assert (outcome.code, outcome.out) == (0, text + "\n")


def test_raw_continues_the_text(run: Run, checkpoint: str) -> None:
    outcome = run("generate", "hello", "-m", checkpoint, *LIMITS, "--raw")
    raw = expected(checkpoint, "hello", raw=True, max_tokens=40, seed=7)
    assert (outcome.code, outcome.out) == (0, raw.text + "\n")
    assert raw.token_ids != expected(checkpoint, "hello", max_tokens=40, seed=7).token_ids


def test_without_a_template_the_text_is_continued(run: Run, base_model: str) -> None:
    text = expected(base_model, "hello", raw=True, max_tokens=40, seed=7).text
    for more in ([], ["--raw"]):
        outcome = run("generate", "hello", "-m", base_model, *LIMITS, *more)
        assert (outcome.code, outcome.out, outcome.err) == (0, text + "\n", "")


@pytest.mark.parametrize("more", [["--chat"], ["--system", "Be brief."]])
def test_a_message_needs_a_template(run: Run, base_model: str, more: list[str]) -> None:
    outcome = run("generate", "hello", "-m", base_model, *LIMITS, *more)
    assert (outcome.code, outcome.out) == (2, "")
    assert "chat template" in outcome.err


@pytest.mark.parametrize("other", [["--chat"], ["--system", "x"]])
def test_raw_text_is_no_message(run: Run, other: list[str]) -> None:
    outcome = run("generate", "hello", "-m", "/missing/model.gguf", "--raw", *other)
    assert outcome.code == 2
    assert outcome.err == (
        f"sinkstream: generate: {other[0]} must not be given with --raw, which sends plain text.\n"
    )


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_an_empty_message_is_refused_and_an_empty_text_may_be_continued(
    run: Run, checkpoint: str, prompt: str
) -> None:
    outcome = run("generate", prompt, "-m", checkpoint, *LIMITS)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("sinkstream: generate: PROMPT must not be empty")


# ---- the end of a reply --------------------------------------------------------------------------

ENDLESS = ("a" * 24, "-t", "0", "--frequency-penalty", "-100", "--ignore-eos")


def tokens_in(out: str) -> int:
    return sum('"event": "token"' in line for line in out.splitlines())


def test_a_pipe_gets_as_many_tokens_as_generate_returns(run: Run, checkpoint: str) -> None:
    parameters = inspect.signature(sinkstream.Model.generate).parameters
    assert parameters["max_tokens"].default == PIPED_TOKENS
    outcome = run("generate", *ENDLESS, "-m", checkpoint, "--json")
    assert outcome.code == 0
    assert tokens_in(outcome.out) == PIPED_TOKENS
    assert outcome.err == (
        f"sinkstream: generate: the text ends after {PIPED_TOKENS} tokens, the default in a pipe. "
        "-n sets another limit.\n"
    )
    as_run = run("run", checkpoint, ENDLESS[0], "-t", "0", "--frequency-penalty", "-100")
    assert as_run.err in ("", outcome.err.replace("generate:", "run:"))
    wrong = run("run", "/nowhere", "hello")
    assert wrong.err.startswith('sinkstream: run: "/nowhere" must be a GGUF file')


def test_a_given_number_of_tokens_is_no_surprise(run: Run, checkpoint: str) -> None:
    outcome = run("generate", *ENDLESS, "-m", checkpoint, "--json", "-n", "300")
    assert (outcome.code, tokens_in(outcome.out), outcome.err) == (0, 300, "")


def test_endless_and_a_number_contradict_each_other(run: Run) -> None:
    outcome = run("generate", "x", "-m", "/missing/model.gguf", "--endless", "-n", "3")
    assert outcome.code == 2
    assert "--max-tokens must not be given with --endless" in outcome.err


def test_a_terminal_gets_the_whole_text(checkpoint: str) -> None:
    with Terminal([*PROGRAM, "generate", *ENDLESS, "-m", checkpoint], {}) as terminal:
        terminal.read_until("a" * (2 * PIPED_TOKENS))
        terminal.press(CTRL_C)
        assert terminal.end()[0] == 130


# ---- events, input, errors -----------------------------------------------------------------------


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


def test_what_is_predicted_is_drafted(run: Run, checkpoint: str, tmp_path: Path) -> None:
    words = ["generate", "hello", "-m", checkpoint, "-n", "60", "--seed", "5", "--json"]
    letters = ("j", "k", "q", "x", "z")  # no merge joins two of them
    with sinkstream.load(checkpoint) as model:
        assert model.tokenizer is not None
        ids = [model.tokenizer.encode(letter).ids[0] for letter in letters]
    words += ["--ignore-eos", *(f"--logit-bias={token}=100" for token in ids)]
    plain = run(*words, "--speculation", "0").out.splitlines()
    stats = json.loads(plain[-1])["stats"]
    assert (stats["draft_tokens"], stats["accepted_tokens"]) == (0, 0)
    file = tmp_path / "reply.txt"
    file.write_text("".join(json.loads(line).get("text", "") for line in plain))
    drafted = run(*words, "--speculation", "20", "--prediction", str(file)).out.splitlines()
    stats = json.loads(drafted[-1])["stats"]
    assert stats["draft_tokens"] >= stats["accepted_tokens"] > 40

    def tokens(lines: list[str]) -> list[str]:
        return [line for line in lines if '"token"' in line]

    assert tokens(drafted) == tokens(plain)
    outcome = run(*words, "--prediction", str(tmp_path / "none"))
    assert (outcome.code, outcome.out) == (2, "")
    assert "`--prediction` must name a text file" in outcome.err


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
        messages = [{"role": "user", "content": "hello"}]
        assert text == model.generate(messages, max_tokens=100, seed=3, ignore_eos=True).text


def test_an_event_is_one_line_for_every_reader(
    run: Run, checkpoint: str, line_breaks: dict[int, float]
) -> None:
    biases = [f"--logit-bias={token}={bias}" for token, bias in line_breaks.items()]
    outcome = run("generate", "a", "-m", checkpoint, "-n", "60", "--seed", "7", "--json", *biases)
    events = [json.loads(line) for line in outcome.out.splitlines()]
    assert "\x85" in "".join(event.get("text", "") for event in events)


def test_a_dash_reads_standard_input(
    run: Run, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"hello")))
    outcome = run("generate", "-", "-m", checkpoint, "-n", "20", "--seed", "7")
    assert outcome.out == expected(checkpoint, "hello", max_tokens=20, seed=7).text + "\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--top-p", "2"], "generate: `--top-p` must be in (0, 1], but is 2."),
        (["--temperature", "nan"], "generate: `--temperature` must be in [0, 100], but is nan."),
        (["-t", "101"], "generate: `--temperature` must be in [0, 100], but is 101."),
        (["--logprobs", "21"], "generate: `--logprobs` must be in [0, 20], but is 21."),
        (["--speculation", "64"], "generate: `--speculation` must be in [0, 63], but is 64."),
        (["--seed", "-1"], "generate: `--seed` must be in [0, 18446744073709551615], but is -1."),
        (["--stop-token-id", "-1"], "`--stop-token-id` must be a token id in [0, "),
        (["--logit-bias", "9"], "`--logit-bias` must be ID=NUMBER, but is '9'."),
        (["--window", "0"], "generate: `--window` must be in [1, 16777216], but is 0."),
        (["--top-k", "x"], "Invalid value for '--top-k': it must be an integer, but is \"x\"."),
        (["--top-p=x"], "Invalid value for '--top-p': it must be a number, but is \"x\"."),
        (["-t", ""], "Invalid value for '--temperature': it must be a number, but is \"\"."),
        (["--nonsense"], "No such option: --nonsense"),
        (["--device", "tpu"], "generate: `--device` must be one of"),
        (["-m", "/nowhere"], 'generate: "/nowhere" must be'),
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


@pytest.mark.parametrize(
    "wrong", [["-t", "101"], ["--top-k", "-1"], ["-n", "-1"], ["--window", "0"], ["--threads", "0"]]
)
def test_a_wrong_option_is_said_before_a_model_is_opened(run: Run, wrong: list[str]) -> None:
    outcome = run("generate", "hello", "-m", "/missing/model.gguf", *wrong)
    assert outcome.code == 2
    assert "must be in [" in outcome.err
    assert "/missing" not in outcome.err


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
    assert outcome.err.startswith(
        "sinkstream: generate: sinks + window should not exceed the model's"
    )
    assert outcome.err.count("\n") == 1


def endless(checkpoint: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, "generate", "hello", "-m", checkpoint, "--ignore-eos", "--json", "--endless"],
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


def test_a_reply_follows_a_schema_a_regex_or_a_grammar(
    run: Run, checkpoint: str, tmp_path: Path
) -> None:
    pytest.importorskip("llguidance", reason="needs the extra `structured`")
    schema, grammar = tmp_path / "schema.json", tmp_path / "grammar.lark"
    schema.write_text('{"enum": ["größer", 7]}', encoding="utf-8")
    grammar.write_text('start: "a" | "b"', encoding="utf-8")
    for flag, value, replies in (
        ("--schema", str(schema), {'"größer"\n', "7\n"}),
        ("--regex", "x{3}", {"xxx\n"}),
        ("--grammar", str(grammar), {"a\n", "b\n"}),
    ):
        outcome = run("generate", "hello", "-m", checkpoint, *LIMITS, flag, value)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out in replies


def test_a_schema_that_cannot_be_read_is_refused(run: Run, checkpoint: str) -> None:
    outcome = run("generate", "hello", "-m", checkpoint, "--schema", "/no/such.json")
    assert outcome.code != 0
    assert outcome.err == (
        "sinkstream: generate: `--schema` must name a text file, but '/no/such.json' cannot be "
        "read: No such file or directory.\n"
    )


def test_run_with_a_prompt_generates(run: Run, checkpoint: str) -> None:
    text = expected(checkpoint, "hello", system="Be brief.", max_tokens=40, seed=7).text
    outcome = run("run", checkpoint, "hello", *LIMITS, "--system", "Be brief.")
    assert (outcome.code, outcome.out, outcome.err) == (0, text + "\n", "")


def test_run_without_a_prompt_is_a_chat(checkpoint: str) -> None:
    done = subprocess.run(
        [*PROGRAM, "run", checkpoint, *LIMITS, "--sinks", "5", "--window", "61"],
        input="hello\n/stats\n", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == expected(checkpoint, "hello", max_tokens=40, seed=7).text + "\n"
    assert "1 turn, " in done.stderr


def test_the_name_of_a_model_as_the_prompt_is_noticed(
    run: Run, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinkstream.checkpoint.stores.PACKAGES", {"tinyllama": "a package"})
    monkeypatch.setattr(
        "sinkstream.checkpoint.stores.locate_packaged", lambda _: tmp_path / "tiny.gguf"
    )
    for word, is_noticed in ((checkpoint, True), ("tinyllama", True), ("hello", False)):
        outcome = run("generate", word, "-m", checkpoint, *LIMITS)
        assert outcome.code == 0
        assert (f"`sinkstream run {word}` runs that model" in outcome.err) == is_noticed
