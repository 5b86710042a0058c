"""A session without the thoughts of its replies is, bit for bit, one that has never read them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.cli.chat_loop import Conversations
from sinkstream.errors import InvalidArgument, SessionBusy
from tests.python.text.encoding import encode_chat
from tests.python.text.reasoning_templates import (
    EMPTIED,
    KEPT,
    OPENED,
    THINK,
    WRITTEN,
    write_folder,
)
from tests.python.text.vocabularies import special

TEMPLATES: dict[str, tuple[Any, ...]] = {
    "written": (WRITTEN, *THINK),
    "written_as_text": (WRITTEN,),
    "opened": (OPENED, *THINK),
    "emptied": (EMPTIED, *THINK),
    "kept": (KEPT, *special("[THINK]", "[/THINK]")),
}
TAGS = {
    "written": ("<think>", "</think>"),
    "written_as_text": ("<think>", "</think>"),
    "opened": ("</think>",),
    "emptied": ("</think>",),
    "kept": ("[THINK]", "[/THINK]"),
}
Open = Callable[..., sinkstream.Model]


@pytest.fixture(scope="module")
def open_model(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Open]:
    """Give tiny models by template and size."""
    loaded: dict[Any, sinkstream.Model] = {}

    def load(template: str, window: int = 508, sequences: int = 3) -> sinkstream.Model:
        key = template, window, sequences
        if key not in loaded:
            folder = tmp_path_factory.mktemp("models") / "model"
            write_folder(tiny_folder("llama"), folder, *TEMPLATES[template])
            loaded[key] = sinkstream.load(
                folder, window=window, max_sequences=sequences, threads=1, prefill_chunk=16
            )
        return loaded[key]

    yield load
    for one in loaded.values():
        one.close()


def among(model: sinkstream.Model, template: str, seed: int, **options: Any) -> Any:
    """Return options with which every token is a letter or a tag, drawn with a seed."""
    assert model.tokenizer is not None
    ids = {
        i
        for text in ("x", "q", "j", *TAGS[template])
        for i in model.tokenizer.encode(text, add_special_tokens=False).ids
    }
    drawn = {"temperature": 100.0, "top_p": 1.0, "min_p": 0.0, "seed": seed, "max_tokens": 14}
    return {"logit_bias": dict.fromkeys(ids, 1e5), "ignore_eos": True, **drawn, **options}


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def bits(result: sinkstream.Result) -> tuple[list[int], list[float]]:
    return result.token_ids, result.logprobs


def check_conversation(
    model: sinkstream.Model, template: str, turns: int, limit: int | None = 14
) -> int:
    """Talk, and compare each reply with that to the whole conversation; return its thoughts."""
    messages: list[dict[str, str]] = []
    thoughts = 0
    with model.session() as session:
        for turn in range(turns):
            messages.append(said("user", f"the sea {turn}"))
            options = among(model, template, turn, max_tokens=limit or 14)
            if limit is None:
                options["stop_token_ids"], options["max_tokens"] = [2], None
                options["logit_bias"] = {**options["logit_bias"], 2: 1e5}
            result = session.stream(messages[-1]["content"], **options).result()
            ids = encode_chat(model._text, messages)
            with model.session() as alone:
                assert bits(alone.stream(ids[len(alone.token_ids) :], **options).result()) == bits(
                    result
                )
            messages.append(said("assistant", result.text))
            thoughts += len(result.thought)
        assert session.stats.turns == turns
    return thoughts


@pytest.mark.parametrize("template", sorted(TEMPLATES.keys() - {"kept"}))
def test_each_reply_is_that_to_the_conversation_without_thoughts(
    open_model: Open, template: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        thoughts = check_conversation(open_model(template), template, 5)
    assert thoughts > 0 or template == "written_as_text"


@pytest.mark.parametrize(
    ("template", "limit"), [("written", 14), ("opened", 14), ("opened", None), ("emptied", None)]
)
def test_that_is_so_after_the_window_has_moved(
    open_model: Open, template: str, limit: int | None
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check_conversation(open_model(template, window=124), template, 12, limit) > 0


def test_a_session_with_messages_continues_alike(open_model: Open) -> None:
    model = open_model("opened")
    with model.session("sink") as session:
        first = session.stream("the sea", **among(model, "opened", 1)).result()
        assert first.thought
        second = session.stream("and", **among(model, "opened", 2)).result()
        history = [said("user", "the sea"), said("assistant", first.text)]
        with model.session("sink", messages=history) as other:
            assert bits(other.stream("and", **among(model, "opened", 2)).result()) == bits(second)
            assert other.token_ids == session.token_ids


@pytest.mark.parametrize("limit", [1, 5])
def test_an_unfinished_thought_leaves_an_empty_reply(open_model: Open, limit: int) -> None:
    model = open_model("opened")
    options = among(model, "opened", 0, max_tokens=limit)
    options["logit_bias"] = dict.fromkeys(list(options["logit_bias"])[:1], 100000.0)
    with model.session() as session:
        result = session.stream("the sea", **options).result()
        session.append("and")
        messages = [said("user", "the sea"), said("assistant", result.text), said("user", "and")]
        if result.text == "":
            whole = encode_chat(model._text, messages, add_generation_prompt=False)
            assert session.token_ids == whole


def test_thoughts_are_kept_on_request(open_model: Open) -> None:
    model = open_model("opened")
    options = among(model, "opened", 1)
    with pytest.warns(UserWarning, match="begins replies differently"):
        session = model.session(thoughts="keep")
    with session:
        result = session.stream("the sea", **options).result()
        before = session.token_ids
        session.append("and")
        assert session.token_ids[: len(before)] == before
        assert result.thought in session.transcript


def test_a_template_that_keeps_thoughts_decides(open_model: Open) -> None:
    model = open_model("kept")
    seeds = (among(model, "kept", seed) for seed in range(50))
    hello = [said("user", "the sea")]
    options = next(one for one in seeds if model.generate(hello, **one).thought)
    with model.session() as session, model.session(thoughts="drop") as dropping:
        for one in (session, dropping):
            one.stream("the sea", **options).result()
        before = session.token_ids
        assert dropping.token_ids == before
        session.append("and")
        dropping.append("and")
        assert session.token_ids[: len(before)] == before
        assert len(dropping.token_ids) < len(session.token_ids)


def test_a_reply_without_thoughts_is_not_read_again(open_model: Open) -> None:
    model = open_model("written")
    options = among(model, "written", 1)
    letter = list(options["logit_bias"])[:1]
    options["logit_bias"] = dict.fromkeys([i for i in letter if i < 280], 1e5)
    with model.session() as session:
        assert session.stream("the sea", **options).result().thought == ""
        before = model.stats()["prompt_tokens"]
        session.append("and")
        appended = model.stats()["prompt_tokens"] - before
        session.append("and")
        assert model.stats()["prompt_tokens"] - before - appended <= appended + 3
        assert appended < 20


@pytest.mark.parametrize("window", [508, 60])
def test_turns_are_undone(open_model: Open, window: int) -> None:
    model = open_model("opened", window=window)
    with model.session() as session:
        for turn in range(3):
            session.stream("the sea", **among(model, "opened", turn)).result()
        with session.fork() as fork:  # both without the thoughts of the last turn
            before = fork.token_ids
        assert session.token_ids == before
        last = session.stream("and", **among(model, "opened", 7))
        last.result()
        last.cancel(keep="drop")
        assert session.token_ids == before
        assert session.stats.turns == 3
        running = session.stream("and", ignore_eos=True, seed=1)
        next(running, None)
        running.cancel(keep="drop")
        assert session.token_ids == before
        session.append("the sea")


def test_a_turn_that_was_read_again_is_undone(open_model: Open) -> None:
    model = open_model("opened")
    with model.session() as session:
        session.append("the sea")
        before = session.token_ids
        for limit in (14, None):  # taken back, and run in a fork
            options = among(model, "opened", 1, max_tokens=limit)
            stream = session.stream("and", **options)
            if limit is None:
                next(stream)
                stream.cancel()
            stream.result()
            session.fork().close()
            assert session.stats.turns == 1
            stream.cancel(keep="drop")
            assert (session.token_ids, session.stats.turns) == (before, 0)
            with pytest.raises(InvalidArgument, match="already been undone"):
                session.cancel(keep="drop")


def test_a_chat_has_room_for_its_commands(open_model: Open, tmp_path: Path) -> None:
    model = open_model("opened", window=60)
    chat = Conversations(model, None)
    commands: list[Callable[[], None]] = [
        partial(chat.start, None),
        chat.back,
        partial(chat.load, tmp_path / "x"),
        chat.fork,
        chat.undo,
    ]
    for command in commands:
        chat.fork()
        chat.current.session.save(tmp_path / "x")
        chat.current.last = chat.current.session.stream(
            "a", **among(model, "opened", 1, max_tokens=50)
        )
        chat.current.last.result()
        command()
    chat.current.session.close()
    chat.back()
    chat.current.session.close()
    assert chat._kept is not None
    chat._kept.session.close()


def test_a_fork_and_a_file_have_no_thoughts(open_model: Open, tmp_path: Path) -> None:
    model = open_model("opened")
    with model.session(thinking=None) as session:
        session.stream("the sea", **among(model, "opened", 1)).result()
        with session.fork() as fork:
            session.save(tmp_path / "x.session")
            with model.load_session(tmp_path / "x.session") as loaded:
                assert loaded.token_ids == fork.token_ids == session.token_ids
                assert loaded.stats.turns == fork.stats.turns == 1
                options = among(model, "opened", 2)
                expected = bits(fork.stream("and", **options).result())
                assert bits(loaded.stream("and", **options).result()) == expected
                fork.append("so")
                loaded.append("so")
                assert loaded.token_ids == fork.token_ids
                assert "</think>" not in loaded.transcript


def test_a_file_says_how_the_model_thinks(open_model: Open, tmp_path: Path) -> None:
    model = open_model("written")
    with pytest.warns(UserWarning, match="begins replies differently"):
        session = model.session(thinking=False, thoughts="keep")
    with session:
        session.stream("the sea", **among(model, "written", 1)).result()
        session.save(tmp_path / "x.session")
        session.append("so")
        with model.load_session(tmp_path / "x.session") as loaded:
            loaded.append("so")
            assert loaded.token_ids == session.token_ids
            assert "<think>" in loaded.transcript
            stream = loaded.stream("and", **among(model, "written", 1))
            stream.result()
            assert "<think>\n\n</think>\n\n" in loaded.transcript.rpartition("assistant")[2]


def test_thoughts_stay_where_there_is_no_memory(open_model: Open) -> None:
    model = open_model("opened", window=60, sequences=1)
    with model.session() as session:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for turn in range(8):
                session.stream("the sea", **among(model, "opened", turn)).result()
        (warning,) = caught
        assert "the thoughts of a reply stay in the conversation" in str(warning.message)
        assert session.stats.turns == 8


def test_a_reply_longer_than_the_window_may_be_cut_where_it_is_seen(open_model: Open) -> None:
    model = open_model("opened", window=60)
    options = among(model, "opened", 1, max_tokens=200)
    end = [i for i in options["logit_bias"] if i >= 280]
    letters = {i: 1e5 for i in options["logit_bias"] if i not in end}
    with model.session() as session:
        session.stream("the sea", **{**options, "logit_bias": letters}).result()
        with pytest.warns(UserWarning, match="the reply is longer than the window"):
            session.append("and")


def test_a_running_turn_is_not_disturbed(open_model: Open) -> None:
    model = open_model("opened")
    with model.session() as session:
        stream = session.stream("the sea", **among(model, "opened", 1, max_tokens=10**6))
        with pytest.raises(SessionBusy):
            session.append("and")
        with pytest.raises(SessionBusy):
            session.stream("and")
        stream.close()
        session.append("and")
        assert "</think>" not in session.transcript


def test_wrong_values_are_named(open_model: Open) -> None:
    model = open_model("written")
    with pytest.raises(InvalidArgument, match='`thoughts` must be "drop", "keep" or None'):
        model.session(thoughts="all")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="`thinking` must be None, but is 'low'"):
        model.session(thinking="low")
    with pytest.raises(InvalidArgument, match="`max_tokens` must be"), model.session() as session:
        session.stream("a", max_tokens=-1)


def test_a_reply_that_follows_a_grammar_is_text(open_model: Open) -> None:
    pytest.importorskip("llguidance", reason="needs the extra `structured`")
    model = open_model("opened")
    options = {"regex": "[xq]{5}", "seed": 1, "max_tokens": 9}
    assert len(model.generate([said("user", "the sea")], **options).text) == 5  # type: ignore[call-overload]
    with model.session() as session:
        result = session.stream("the sea", **options).result()  # type: ignore[arg-type]
        assert (len(result.text), result.thought, result.thought_tokens) == (5, "", 0)
        session.append("and")
        messages = [said("user", "the sea"), said("assistant", result.text), said("user", "and")]
        whole = encode_chat(model._text, messages, add_generation_prompt=False)
        assert session.token_ids == whole
