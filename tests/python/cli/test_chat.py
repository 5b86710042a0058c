"""`sinkstream chat`: turns and commands from a pipe, and keys at a terminal."""

from __future__ import annotations

import io
import json
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import sinkstream
from sinkstream.cli.chat import History, default_path, open_history
from sinkstream.cli.chat_loop import MOST, Conversations, Talk
from sinkstream.cli.terminal import printable
from tests.python.cli.conftest import Outcome, Run
from tests.python.cli.terminal import CTRL_C, CTRL_D, UP, Terminal, pause

PROGRAM = [sys.executable, "-m", "sinkstream.cli", "chat"]
LIMITS = ("-n", "12", "--seed", "7")

# The most frequent token of a conversation becomes by far the most probable one: the reply to many
# "a" is "a" without end.
ENDLESS = ("-t", "0", "--frequency-penalty", "-100", "-n", "1000000000")

Say = Callable[..., Outcome]


@pytest.fixture
def say(run: Run, checkpoint: str, monkeypatch: pytest.MonkeyPatch) -> Say:
    """Return a function that runs a chat with these lines on standard input."""

    def call(*lines: str, arguments: tuple[str, ...] = LIMITS, model: str = checkpoint) -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
        return run("chat", model, *arguments)

    return call


def replies(checkpoint: str, *turns: str, system: str | None = None, **options: object) -> str:
    """Return a session's replies to these turns, one per line."""
    options = {"max_tokens": 12, "seed": 7, **options}
    with sinkstream.load(checkpoint) as model, model.session(system) as session:
        return "".join(
            session.stream(turn, **options).result().text + "\n"  # type: ignore[arg-type]
            for turn in turns
        )


# ---- from a pipe ---------------------------------------------------------------------------------


def test_each_line_is_a_turn_of_one_session_and_replies_alone_are_on_stdout(
    say: Say, checkpoint: str
) -> None:
    outcome = say("hello", "", "  and\tnow ", "grüße 🚰")
    expected = replies(checkpoint, "hello", "  and\tnow ", "grüße 🚰")
    assert outcome == Outcome(0, expected, "")


def test_a_line_continues_after_a_backslash_and_two_slashes_are_one(
    say: Say, checkpoint: str
) -> None:
    outcome = say("one\\", "/two", "//three", "four\\\\", "five\\")
    expected = replies(checkpoint, "one\n/two", "/three", "four\\", "five")
    assert outcome == Outcome(0, expected, "")


SETTINGS = ("--window", "60", "--sinks", "7", "--kv-dtype", "float32")


def test_a_saved_conversation_brings_its_window_sinks_and_cache_type(
    say: Say, checkpoint: str, tmp_path: Path
) -> None:
    file = tmp_path / "talk"
    assert say("hello", f"/save {file}", arguments=(*LIMITS, *SETTINGS)).code == 0
    outcome = say("again", arguments=(*LIMITS, "--load", str(file)))
    expected = say("hello", "again", arguments=(*LIMITS, *SETTINGS))
    assert outcome.code == 0, outcome.err
    assert expected.out.endswith(outcome.out)
    assert outcome.out


def test_a_conversation_whose_sinks_are_its_system_prompt_is_loaded_without_flags(
    say: Say, tmp_path: Path
) -> None:
    file = tmp_path / "talk"
    flags = (*LIMITS, "--system", "Be brief.", "--sinks", "system", "--window", "60")
    assert say("hello", f"/save {file}", arguments=flags).code == 0
    outcome = say("again", arguments=(*LIMITS, "--load", str(file)))
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize(
    "flags", [("--window", "100"), ("--sinks", "5"), ("--kv-dtype", "int8")], ids=lambda f: f[0]
)
def test_a_flag_that_contradicts_the_file_is_an_error(
    say: Say, tmp_path: Path, flags: tuple[str, str]
) -> None:
    file = tmp_path / "talk"
    assert say("hello", f"/save {file}", arguments=(*LIMITS, *SETTINGS)).code == 0
    outcome = say("again", arguments=(*LIMITS, "--load", str(file), *flags))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1


def test_after_load_the_last_exchange_is_shown(say: Say, tmp_path: Path, checkpoint: str) -> None:
    file = tmp_path / "talk"
    say("hello there", "and now?", f"/save {file}")
    both = replies(checkpoint, "hello there", "and now?")
    last = both.removeprefix(replies(checkpoint, "hello there")).strip()
    outcome = say(f"/load {file}")
    assert "> and now?" in outcome.err
    assert printable(last) in outcome.err
    assert "> hello there" not in outcome.err


def test_every_option_of_a_reply_reaches_it(
    say: Say, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {
        "max_tokens": 30,
        "stop": ["an"],
        "temperature": 1.5,
        "top_k": 50,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "seed": 5,
        "speculation": 3,
    }
    expected = replies(checkpoint, "hello", **options)
    given: list[dict[str, object]] = []
    stream = sinkstream.Session.stream

    def watch(session: sinkstream.Session, text: str, **found: object) -> sinkstream.Stream:
        given.append(found)
        return stream(session, text, **found)  # type: ignore[arg-type]

    monkeypatch.setattr(sinkstream.Session, "stream", watch)
    words = {f"--{name.replace('_', '-')}": value for name, value in options.items()}
    words["--stop"] = "an"
    outcome = say("hello", arguments=tuple(str(word) for pair in words.items() for word in pair))
    assert outcome == Outcome(0, expected, "")
    assert given == [options]


def test_the_system_prompt_is_the_sessions_and_may_be_its_sinks(say: Say, checkpoint: str) -> None:
    arguments = (*LIMITS, "--system", "Be brief.", "--sinks", "system", "--window", "60")
    outcome = say(*["hello"] * 3, arguments=arguments)
    assert outcome.out.startswith(replies(checkpoint, "hello", system="Be brief."))
    with sinkstream.load(checkpoint) as model, model.session("Be brief.", sinks="system") as own:
        assert f"except for the {own.sinks} sinks." in outcome.err


def test_reset_and_system_begin_anew(say: Say, checkpoint: str) -> None:
    outcome = say(
        *("hello", "/reset", "hello", "/system Be kind.", "hello", "again", "/reset", "hello"),
        arguments=(*LIMITS, "--system", "Be brief."),
    )
    brief, kind = (replies(checkpoint, "hello", system=s) for s in ("Be brief.", "Be kind."))
    both = replies(checkpoint, "hello", "again", system="Be kind.")
    assert (outcome.code, outcome.out) == (0, brief + brief + both + kind)
    assert outcome.err.splitlines() == [
        f'New conversation. System prompt: "{prompt}".'
        for prompt in ("Be brief.", "Be kind.", "Be kind.")
    ]


def test_a_saved_conversation_goes_on_in_this_chat_and_in_another(
    say: Say, checkpoint: str, tmp_path: Path
) -> None:
    file = tmp_path / "a talk.session"
    outcome = say("hello", f"/save {file}", "again", "/reset", f"/load {file}", "again")
    both, first = replies(checkpoint, "hello", "again"), replies(checkpoint, "hello")
    second = both.removeprefix(first)
    assert (outcome.code, outcome.out) == (0, first + second + second)
    assert f'Saved to "{file}".' in outcome.err
    assert f'Continuing "{file}": 1 turn, ' in outcome.err
    outcome = say("again", arguments=(*LIMITS, "--load", str(file)))
    assert outcome == Outcome(0, second, "")


def test_a_home_folder_may_be_written_as_a_tilde(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert say("/save ~/talk", "/save ~no-such-user/talk").code == 2
    assert (tmp_path / "talk").exists()


def test_back_returns_to_the_copy_as_often_as_one_likes(say: Say, checkpoint: str) -> None:
    outcome = say(
        *("hello", "/fork", "again", "/back", "again", "and again", "/reset", "/back", "again"),
        *("/fork", "so", "/back", "so"),
    )
    first = replies(checkpoint, "hello")
    again = replies(checkpoint, "hello", "again").removeprefix(first)
    third = replies(checkpoint, "hello", "again", "and again").removeprefix(first + again)
    so = replies(checkpoint, "hello", "again", "so").removeprefix(first + again)
    assert outcome.out == first + again + again + third + again + so + so
    assert outcome.code == 0


def test_nothing_runs_out_of_memory_however_often_conversations_are_replaced(
    say: Say, tmp_path: Path
) -> None:
    file = tmp_path / "talk"
    round_ = ["/fork", "/reset", "/back", "/system x", f"/load {file}", "/fork"]
    outcome = say("hello", f"/save {file}", *round_ * 20)
    assert outcome.code == 0
    assert "sinkstream:" not in outcome.err


def test_undo_takes_turns_back_to_the_first(say: Say, checkpoint: str) -> None:
    outcome = say("hello", "again", "/undo", "again", "/undo", "/undo", "/undo")
    first = replies(checkpoint, "hello")
    again = replies(checkpoint, "hello", "again").removeprefix(first)
    assert outcome.out == first + again + again
    assert outcome.code == 2
    *_, last = outcome.err.splitlines()
    assert last.startswith("sinkstream: chat: /undo: there must be a turn to undo")


def test_undo_and_retry_work_however_far_the_window_has_moved(say: Say) -> None:
    arguments = (*LIMITS, "--window", "40")
    talk = ["hello"] * 9
    plain = say(*talk, "again", "/stats", arguments=arguments)
    undone = say(
        *(*talk, "so", "/undo", "and", "more", "/undo", "/undo", "again", "/retry", "/undo"),
        *("again", "/stats"),
        arguments=arguments,
    )
    assert undone.code == 0
    assert (
        undone.err.splitlines()[-1].partition("last")[0]
        == (plain.err.splitlines()[-1].partition("last")[0])
    )
    assert undone.out.splitlines()[-1] == plain.out.splitlines()[-1]
    one, two, *_ = (line for line in undone.err.splitlines() if line.startswith("Removed"))
    assert one == "Removed the last question and its reply.", "it waited in a second sequence"
    assert two == one
    assert "earlier tokens again, which have left the cache." in undone.err


def test_stats_are_the_sessions(say: Say, checkpoint: str) -> None:
    outcome = say("/stats", "hello", "again", "/stats")
    before, after = outcome.err.splitlines()
    assert before.startswith("0 turns, ")
    assert "last reply" not in before
    with sinkstream.load(checkpoint) as model, model.session() as session:
        for turn in ("hello", "again"):
            session.stream(turn, max_tokens=12, seed=7).result()
        assert after.startswith(f"2 turns, {session.stats.live_tokens} tokens live, 0 evicted, ")
    assert re.search(r"last reply at [\d.]+ tokens/s(, \d+ of its \d+ drafts accepted)?\.$", after)


def test_stats_say_how_much_was_guessed(say: Say) -> None:
    # Longer than the beginning that is read again after `/undo`: such a step has no drafts.
    lines, limits = ("hello", "/undo", "hello", "/stats"), ("-n", "100", "--seed", "7")
    drafted = say(*lines, arguments=(*limits, "--speculation", "20"))
    found = re.search(r", (\d+) of its (\d+) drafts accepted\.$", drafted.err.strip())
    assert found, drafted.err
    assert 8 <= int(found[1]) <= int(found[2])
    plain = say(*lines, arguments=(*limits, "--speculation", "0"))
    assert plain.out == drafted.out
    assert "drafts" not in plain.err


def test_the_first_eviction_of_a_conversation_is_told_once(say: Say) -> None:
    outcome = say(*["hello"] * 5, "/reset", *["hello"] * 5, arguments=(*LIMITS, "--window", "40"))
    told = [line for line in outcome.err.splitlines() if "longer than the window" in line]
    assert len(told) == 2
    assert "tokens so far), except for the 4 sinks." in told[0]
    assert outcome.err.splitlines()[1].startswith("New conversation")


@pytest.mark.parametrize("word", ["/quit", "/exit", "/bye", "  /EXIT"])
def test_a_chat_ends_under_any_name(say: Say, word: str) -> None:
    assert say(word, "hello") == Outcome(0, "", "")


def test_clear_is_reset(say: Say, checkpoint: str) -> None:
    outcome = say("hello", "/clear", "hello")
    assert outcome.out == 2 * replies(checkpoint, "hello")


def test_retry_replaces_the_last_reply(say: Say, checkpoint: str) -> None:
    outcome = say("hello", "again", "/retry", "/retry", "/stats", "so")
    first = replies(checkpoint, "hello")
    tries = []
    with sinkstream.load(checkpoint) as model, model.session() as session:
        session.stream("hello", max_tokens=12, seed=7).result()
        for seed in (7, 8, 9):  # with the same seed it would be the same reply
            stream = session.stream("again", max_tokens=12, seed=seed)
            tries.append(stream.result().text + "\n")
            if seed < 9:
                stream.cancel(keep="drop")
        last = session.stream("so", max_tokens=12, seed=7).result().text + "\n"
    assert outcome.out == first + "".join(tries) + last
    assert outcome.err.startswith("2 turns, ")
    assert outcome.code == 0


def test_retry_needs_a_reply(say: Say, checkpoint: str, tmp_path: Path) -> None:
    file = tmp_path / "talk"
    outcome = say("/retry", "hello", f"/save {file}", f"/load {file}", "/retry", "/reset", "/retry")
    assert outcome.code == 2
    assert outcome.err.count("sinkstream: chat: /retry: there must be a turn to undo") == 2
    with sinkstream.load(checkpoint) as model, model.session() as session:
        again = session.stream("hello", max_tokens=12, seed=8).result().text + "\n"
    assert outcome.out == replies(checkpoint, "hello") + again, "also of a saved conversation"


def test_history_shows_the_conversation(say: Say, checkpoint: str) -> None:
    outcome = say("hello there", "grüße\\", "again", "/history", "/reset", "/history")
    first, second = (
        text.strip()
        for text in (
            replies(checkpoint, "hello there"),
            replies(checkpoint, "hello there", "grüße\nagain").removeprefix(
                replies(checkpoint, "hello there")
            ),
        )
    )
    shown, _, rest = outcome.err.partition("New conversation")
    assert shown.index("> hello there") < shown.index("> grüße\n| again")
    for reply in (first, second):
        assert printable(reply) in shown
    assert rest.splitlines()[-1] == "There is no turn yet."


def test_history_shows_what_the_model_no_longer_sees(say: Say) -> None:
    outcome = say(*["hello"] * 9, "/history", arguments=(*LIMITS, "--window", "40"))
    _, _, shown = outcome.err.partition("sinks.\n")
    forgotten, mark, seen = shown.partition("--- The model no longer sees the turns above. ---")
    assert mark
    assert forgotten.count("> hello") + seen.count("> hello") == 9
    assert seen.count("> hello") >= 1


def test_set_changes_an_option_of_the_following_replies(say: Say, checkpoint: str) -> None:
    outcome = say(
        *("/set max-tokens 3", "/SET temperature 0", "hello", "/set max_tokens default", "/set"),
        arguments=(*LIMITS, "--top-k", "9"),
    )
    assert outcome.out == replies(checkpoint, "hello", max_tokens=3, temperature=0, top_k=9)
    lines = outcome.err.splitlines()
    assert lines[:2] == ["max-tokens is 3.", "temperature is 0."]
    assert "top-k 9" in lines[-1]
    assert "top-p 0.95 (the model's)" in lines[-1]
    assert "temperature 0," in lines[-1]
    assert "seed 7, speculation automatic." in lines[-1]
    assert outcome.code == 0


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/set top-p 2", "chat: `top-p` must be in (0, 1], but is 2."),
        ("/set temp 1", "chat: the option must be one of frequency-penalty, max-tokens, min-p"),
        ("/set temp 1", "Did you mean temperature?"),
        ("/set top-k many", 'chat: `top-k` must be an integer, but is "many".'),
        ("/set top-p x", 'chat: `top-p` must be a number, but is "x".'),
        ("/set seed", "chat: /set must be followed by OPTION VALUE, but is followed only by seed."),
    ],
)
def test_a_wrong_set_is_one_line_and_changes_nothing(
    say: Say, checkpoint: str, line: str, sentence: str
) -> None:
    outcome = say(line, "hello")
    assert (outcome.code, outcome.out) == (2, replies(checkpoint, "hello"))
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_reply_that_loops_is_cut_and_said(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinkstream.cli.chat.REPLY_TOKENS", 50)
    outcome = say("a" * 24, arguments=("-t", "0", "--frequency-penalty", "-100"))
    assert outcome.code == 0
    assert len(outcome.out) <= 51
    assert outcome.err == (
        "The reply ends after 50 tokens, the default in a chat. /set max-tokens changes the "
        "limit.\n"
    )
    outcome = say(
        *("/set max-tokens none", "/set"), arguments=("-t", "0", "--frequency-penalty", "-100")
    )
    assert "max-tokens none" in outcome.err


def test_a_number_of_tokens_that_was_given_cuts_silently(say: Say) -> None:
    outcome = say("hello", arguments=(*LIMITS, "-t", "0", "--frequency-penalty", "-100"))
    assert (outcome.code, outcome.err) == (0, "")


def test_help_and_quit(say: Say) -> None:
    outcome = say("/help", "/quit", "hello")
    assert (outcome.code, outcome.out) == (0, "")
    assert "/system TEXT start a new conversation" in " ".join(outcome.err.split())


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/nope", 'chat: the command must be one that /help lists, but is "/nope".'),
        ("/back", "chat: /back must follow a /fork"),
        ("/save", "chat: /save must be followed by FILE"),
        ("/save /missing/talk", 'save: the session cannot be written to "/missing/talk": No such'),
        ("/save /", "save: the session cannot be written to"),
        ("/load /missing/talk", 'load_session: file "talk" cannot be opened'),
        ("/load /", "load_session: "),
        (f"/load {__file__}", "load_session: "),
        ("/undo now", "chat: /undo must have no argument"),
    ],
)
def test_an_error_is_one_line_and_loses_nothing(
    say: Say, checkpoint: str, line: str, sentence: str
) -> None:
    outcome = say("hello", line, "again")
    assert (outcome.code, outcome.out) == (2, replies(checkpoint, "hello", "again"))
    assert outcome.err.startswith(f"sinkstream: {sentence}")
    assert outcome.err.count("\n") == 1


def test_a_line_that_is_not_utf8_is_an_error_and_the_next_goes_on(
    run: Run, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = io.BytesIO(b"hello\nab\xff\nagain\r\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(lines))
    outcome = run("chat", checkpoint, *LIMITS)
    assert (outcome.code, outcome.out) == (2, replies(checkpoint, "hello", "again"))
    assert outcome.err == (
        "sinkstream: chat: standard input must be UTF-8, but byte 2 of line 2 is not.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--load", "/missing/talk"], 'load_session: file "talk" cannot be opened'),
        (["--load", "x", "--system", "y"], "chat: --system must not be given with --load"),
        (["-m", "x"], "chat: the model must be given once"),
        (["--sinks", "few"], "must be an integer or \"system\", but is 'few'."),
        (["--sinks", "-1"], "chat: `--sinks` must be in [0, "),
        (
            ["--sinks", "system"],
            'session: `--sinks` must be an integer if there is no system prompt, but is "system"',
        ),
        (["--window", "0"], "chat: `--window` must be in [1, "),
    ],
)
def test_what_is_wrong_from_the_start_ends_it_with_2(
    say: Say, arguments: list[str], sentence: str
) -> None:
    outcome = say("hello", arguments=tuple(arguments))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("sinkstream: ")
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_wrong_option_of_the_replies_is_said_before_the_model_is_loaded(say: Say) -> None:
    outcome = say("hello", "again", arguments=("--top-p", "2"), model="/missing/model.gguf")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == "sinkstream: chat: `--top-p` must be in (0, 1], but is 2.\n"


def test_a_model_without_chat_template_writes_on_and_says_so(
    say: Say, checkpoint: str, tmp_path: Path
) -> None:
    folder = tmp_path / "base"
    shutil.copytree(checkpoint, folder)
    file = folder / "tokenizer_config.json"
    fields = json.loads(file.read_text(encoding="utf-8"))
    del fields["chat_template"]
    file.write_text(json.dumps(fields), encoding="utf-8")
    outcome = say("hello", "again", model=str(folder))
    with pytest.warns(UserWarning, match="no chat template"):
        expected = replies(str(folder), "hello", "again")
    assert (outcome.code, outcome.out) == (0, expected)
    assert outcome.err.startswith("sinkstream: The checkpoint has no chat template: ")
    assert outcome.err.count("\n") == 1


class Given:
    """A fixed list of lines."""

    def __init__(self, *lines: str) -> None:
        self._lines: Iterator[str] = iter(lines)

    def read(self, prompt: str) -> str | None:
        return next(self._lines, None)


EVERYTHING = (
    *("hello", "/stats", "/save /missing/talk", "/load /missing/talk", "/fork", "/back", "/undo"),
    *("/reset", "/system x", "hello"),
)


def test_a_closed_model_is_a_line_for_each_command(
    checkpoint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    model = sinkstream.load(checkpoint, max_sequences=MOST)
    conversations = Conversations(model, None)
    model.close()
    assert not Talk(conversations, {"max_tokens": 3}).read_all(Given(*EVERYTHING))
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("is closed. Load it again.") + err.count("has been closed") >= 6, err
    assert "Traceback" not in err


def test_a_busy_session_is_a_line_and_is_not_lost(
    checkpoint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with sinkstream.load(checkpoint, max_sequences=MOST) as model:
        conversations = Conversations(model, None)
        talk = Talk(conversations, {"max_tokens": 3})
        busy = conversations.current.session.stream("a" * 20, temperature=0, frequency_penalty=-100)
        assert not talk.read_all(Given("hello", "/save x", "/fork", "/stats"))
        out, err = capfd.readouterr()
        assert out == ""
        assert err.count("session: only one turn can run at a time, but another is running") == 3
        busy.close()
        assert Talk(conversations, {"max_tokens": 3}).read_all(Given("hello"))


# ---- a process of its own ------------------------------------------------------------------------


Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(checkpoint: str) -> Iterator[Start]:
    """Return a function that starts a chat with pipes and sends it some text."""
    with ExitStack() as stack:

        def call(said: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                [*PROGRAM, checkpoint, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **environment},
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            watch = threading.Timer(60, process.kill)  # in case expected output never comes
            watch.start()
            stack.callback(watch.cancel)
            assert process.stdin is not None
            process.stdin.write(said.encode("utf-8"))
            process.stdin.flush()
            return process

        yield call


def test_a_program_may_talk_line_by_line_in_any_locale(start: Start, checkpoint: str) -> None:
    process = start("grüße\n", *LIMITS, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert process.stdout is not None
    first = replies(checkpoint, "grüße").encode("utf-8")
    assert process.stdout.read(len(first)) == first
    out, err = process.communicate(b"again", timeout=30)
    expected = replies(checkpoint, "grüße", "again").encode("utf-8")
    assert (process.returncode, first + out, err) == (0, expected, b"")


def test_without_a_terminal_ctrl_c_ends_the_program(start: Start) -> None:
    process = start("aaaaaaaaaaaaaaaa\n", *ENDLESS)
    assert process.stdout is not None
    process.stdout.read(100)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"")


def test_a_reader_that_goes_away_ends_it_quietly(start: Start) -> None:
    process = start("aaaaaaaaaaaaaaaa\n", *ENDLESS)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=30) == 1


def test_no_standard_input_is_the_end(checkpoint: str) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *PROGRAM, checkpoint], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# ---- at a terminal -------------------------------------------------------------------------------


@pytest.fixture
def sit(tmp_path: Path, checkpoint: str) -> Iterator[Callable[..., Terminal]]:
    """Return a function that opens a chat at a terminal, with a history of its own."""
    opened: list[Terminal] = []

    def call(*arguments: str, out: Path | None = None, **environment: str) -> Terminal:
        settings = {"XDG_STATE_HOME": str(tmp_path), **environment}
        terminal = Terminal([*PROGRAM, checkpoint, *arguments], settings, out)
        opened.append(terminal)
        return terminal

    yield call
    for terminal in opened:
        terminal.__exit__(None, None, None)


def test_a_typed_chat_ends_with_ctrl_d(sit: Callable[..., Terminal]) -> None:
    terminal = sit(*LIMITS)
    assert "/help lists the commands" in terminal.read_until("> ")
    terminal.press(b"hello\\\n")
    terminal.read_until("| ")
    terminal.press(b"again\n")
    terminal.read_until("> ")
    terminal.press(b"/stats\n")
    terminal.read_until("1 turn, ")
    terminal.read_until("> ")
    terminal.press(CTRL_D)
    code, rest = terminal.end()
    assert code == 0
    assert "sinkstream:" not in rest


def test_ctrl_c_ends_the_reply_which_stays_and_the_talk_goes_on(
    sit: Callable[..., Terminal],
) -> None:
    terminal = sit(*ENDLESS)
    for turn in (1, 2):
        terminal.read_until("> ")
        terminal.press(b"aaaaaaaaaaaaaaaaaaaaaaaa\n")
        terminal.read_until("aaaaaaaaaaaaaaaaaaaaaaaa\r\n")
        terminal.read_until("a" * 500)
        terminal.press(CTRL_C)
        terminal.read_until("The reply ends here.")
        terminal.read_until("> ")
        terminal.press(b"/stats\n")
        terminal.read_until(f"{turn} turn")
    terminal.press(b"/quit\n")
    assert terminal.end()[0] == 0


def test_ctrl_c_twice_at_the_prompt_ends_it_and_once_does_not(
    sit: Callable[..., Terminal],
) -> None:
    terminal = sit(*LIMITS)
    terminal.read_until("> ")
    # Python's readline prints its prompt shortly before it checks for signals. A signal in between
    # waits for the next key; no hand is that quick.
    for _ in range(2):
        pause(0.2)
        terminal.press(b"dropped" + CTRL_C)
        terminal.read_until("Press Ctrl-C again, or Ctrl-D, to end the chat.")
        terminal.read_until("> ")
        pause(1.2)
    terminal.press(b"/stats\n")
    terminal.read_until("0 turns, ")
    terminal.read_until("> ")
    pause(0.2)
    terminal.press(CTRL_C)
    terminal.read_until("Press Ctrl-C again")
    terminal.read_until("> ")
    pause(0.2)
    terminal.press(CTRL_C)
    code, rest = terminal.end()
    assert code == 0
    assert "Traceback" not in rest


def test_typed_lines_come_back_in_the_next_chat_unless_history_is_off(
    sit: Callable[..., Terminal], tmp_path: Path
) -> None:
    file = tmp_path / "sinkstream" / "chat_history"
    terminal = sit(*LIMITS, "--no-history")
    terminal.read_until("> ")
    terminal.press(b"/stats\n/quit\n")
    assert terminal.end()[0] == 0
    assert not file.exists()
    terminal = sit(*LIMITS)
    terminal.read_until("> ")
    terminal.press(b"/nope\n")
    terminal.read_until("> ")
    terminal.press(CTRL_D)
    assert terminal.end()[0] == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert file.read_text(encoding="utf-8") == '"/nope"\n'
    terminal = sit(*LIMITS)
    terminal.read_until("> ")
    terminal.press(UP + b"x\n")
    terminal.read_until('but is "/nopex".')


def test_a_history_that_cannot_be_saved_is_reported_and_the_chat_works(
    sit: Callable[..., Terminal],
) -> None:
    terminal = sit(*LIMITS, XDG_STATE_HOME="/dev/null")
    terminal.read_until("Typed lines will not be saved for the next chat: ")
    terminal.read_until("> ")
    terminal.press(b"/quit\n")
    assert terminal.end()[0] == 0


def test_pasted_lines_are_one_message(sit: Callable[..., Terminal], tmp_path: Path) -> None:
    terminal = sit(*LIMITS, TERM="xterm")
    terminal.read_until("\x1b[?2004h")  # from now on the terminal marks pasted text
    terminal.read_until("> ")
    terminal.press(b"\x1b[200~one\rtwo\rthree\x1b[201~\n")
    terminal.read_until("> ")
    terminal.press(b"/stats\n")
    terminal.read_until("1 turn, ")
    entries = History(tmp_path / "sinkstream" / "chat_history").entries
    assert entries[0] == "one\ntwo\nthree"


def test_tab_completes_commands_and_file_names(
    sit: Callable[..., Terminal], tmp_path: Path
) -> None:
    terminal = sit(*LIMITS, TERM="xterm")
    terminal.read_until("> ")
    terminal.press(b"/hist\t\n")
    terminal.read_until("There is no turn yet")
    terminal.read_until("> ")
    terminal.press(f"/save {tmp_path}/a talk\n".encode())
    terminal.read_until("Saved to ")
    terminal.read_until("> ")
    terminal.press(f"/load {tmp_path}/a t\t\n".encode())
    terminal.read_until("Continuing ")


def test_a_loaded_chat_shows_the_last_exchange(
    sit: Callable[..., Terminal], say: Say, tmp_path: Path
) -> None:
    file = tmp_path / "talk"
    say("hello there", f"/save {file}")
    terminal = sit(*LIMITS, "--load", str(file))
    terminal.read_until("/help lists the commands")
    terminal.read_until("> hello there")
    terminal.read_until("> ")


def test_an_empty_home_is_none(sit: Callable[..., Terminal]) -> None:
    terminal = sit(*LIMITS, XDG_STATE_HOME="", HOME="")
    terminal.read_until("Typed lines will not be saved for the next chat: there is no home folder.")
    terminal.read_until("> ")
    terminal.press(b"/quit\n")
    assert terminal.end()[0] == 0


def test_a_user_whom_the_system_does_not_know_has_no_history(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def unknown(number: int) -> pwd.struct_passwd:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert default_path() is None
    assert open_history() is None
    assert "there is no home folder" in capfd.readouterr().err
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_path() == Path("/state/sinkstream/chat_history")


def test_a_file_gets_the_replies_alone(
    sit: Callable[..., Terminal], checkpoint: str, tmp_path: Path
) -> None:
    file = tmp_path / "replies"
    terminal = sit(*LIMITS, out=file)
    terminal.read_until("> ")
    terminal.press(b"hello\n")
    terminal.read_until("> ")
    terminal.press(b"/stats\n")
    terminal.read_until("1 turn, ")
    terminal.read_until("> ")
    terminal.press(CTRL_D)
    assert terminal.end()[0] == 0
    assert file.read_text(encoding="utf-8") == replies(checkpoint, "hello")


# ---- the history's file --------------------------------------------------------------------------


def test_a_history_keeps_its_last_entries_and_leaves_out_what_is_none(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "history"
    history = History(path)
    for i in range(2001):
        history.add(f"line {i}\nand more")
    history.close()
    path.write_bytes(path.read_bytes() + b"no entry\n17\n\xff\n")
    again = History(path)
    assert again.entries[-1] == "line 2000\nand more"
    assert len(again.entries) == 997
    again.close()
    assert History(path).entries == again.entries
    assert len(path.read_text(encoding="utf-8").splitlines()) == 997


def test_two_chats_at_once_lose_nothing_of_each_other(tmp_path: Path) -> None:
    one, other = (History(tmp_path / "history") for _ in range(2))
    for i in range(3):
        one.add(f"one {i}")
        other.add(f"other {i}")
    assert len(History(tmp_path / "history").entries) == 6


def test_a_state_folder_that_is_not_absolute_is_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert default_path() == tmp_path / ".local" / "state" / "sinkstream" / "chat_history"


# ---- a real model --------------------------------------------------------------------------------


def test_a_real_model_knows_what_was_said_before(say: Say, smollm2: Path) -> None:
    outcome = say(
        "What is the capital of France? Answer with one word.",
        "And of Italy?",
        model=str(smollm2),
        arguments=("-t", "0", "-n", "40", "--window", "1000", "--threads", "2"),
    )
    assert (outcome.code, outcome.err) == (0, "")
    assert "Paris" in outcome.out
    assert "Rome" in outcome.out
