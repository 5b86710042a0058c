"""Saved sessions: a loaded one continues bit for bit; one of a different model is refused."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import sinkstream
from sinkstream import CapacityError, CheckpointError, EngineDead, InvalidArgument, SessionBusy
from tests.python.waiting import wait_until_idle

OPTIONS = {"sinks": 4, "window": 60, "threads": 1, "max_sequences": 3}


def load(folder: Path, **changes: object) -> sinkstream.Model:
    return sinkstream.load(folder, **{**OPTIONS, **changes})  # type: ignore[arg-type]


def talk(session: sinkstream.Session, seed: int, turns: int) -> list[tuple[list[int], list[float]]]:
    source = random.Random(seed)
    replies = []
    for turn in range(turns):
        ids = [source.randrange(3, 290) for _ in range(source.randrange(1, 20))]
        result = session.stream(
            ids, max_tokens=source.randrange(1, 9), seed=turn, temperature=1.0, ignore_eos=True
        ).result()
        replies.append((result.token_ids, result.logprobs))
    return replies


@pytest.mark.parametrize("kv_dtype", ["float32", "float16", "bfloat16", "int8"])
def test_goes_on_bit_for_bit_in_another_process_life(
    tiny_folder: Callable[[str], Path], tmp_path: Path, kv_dtype: str
) -> None:
    """Saved before the window is full, when it is, and long after; loaded by a new model."""
    folder = tiny_folder("llama")
    file = tmp_path / "talk.session"
    for turns in (1, 4, 30):
        with load(folder, kv_dtype=kv_dtype) as model, model.session() as session:
            talk(session, 1, turns)
            session.save(file)
            ids, stats = session.token_ids, session.stats
            expected = talk(session, 2, 12)
        with (
            load(folder, kv_dtype=kv_dtype, threads=2) as again,
            again.load_session(file) as loaded,
        ):
            assert (loaded.token_ids, loaded.stats) == (ids, stats)
            assert talk(loaded, 2, 12) == expected


@pytest.mark.parametrize("kv_dtype", ["float16", "int8"])
def test_saves_what_nothing_has_been_said_in(
    tiny_folder: Callable[[str], Path], tmp_path: Path, kv_dtype: str
) -> None:
    with load(tiny_folder("llama"), kv_dtype=kv_dtype) as model:
        with model.session() as session:
            session.save(tmp_path / "new")
            expected = talk(session, 3, 3)
        with model.load_session(tmp_path / "new") as loaded:
            assert talk(loaded, 3, 3) == expected


def test_keeps_sinks_of_its_own(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    with load(tiny_folder("llama")) as model:
        with model.session(sinks=9) as session:
            talk(session, 1, 20)
            session.save(tmp_path / "file")
            expected = talk(session, 2, 5)
        with model.load_session(tmp_path / "file") as loaded:
            assert (loaded.sinks, loaded.window) == (9, 55)
            assert talk(loaded, 2, 5) == expected


def test_others_go_on_while_a_session_is_saved_and_loaded(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    with load(tiny_folder("llama")) as model, model.session() as session:
        talk(session, 1, 5)
        fork = session.fork()  # it shares the saved session's pages
        expected = model.stream([5, 6], max_tokens=400, seed=1, ignore_eos=True).result()
        running = model.stream([5, 6], max_tokens=400, seed=1, ignore_eos=True)
        session.save(tmp_path / "file")
        talk(fork, 9, 3)
        fork.close()
        with model.load_session(tmp_path / "file") as loaded:
            assert talk(loaded, 2, 3) == talk(session, 2, 3)
        assert running.result().token_ids == expected.token_ids


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"kv_dtype": "float32"},
            r"kv_dtype is \W*float16\W* in the file and \W*float32\W* in the model",
        ),
        ({"window": 61}, r"is 64 \(4 \+ 60\) in the file and 65 \(4 \+ 61\) in the model"),
        ({"sinks": 8}, r"is 64 \(4 \+ 60\) in the file and 68 \(8 \+ 60\) in the model"),
    ],
)
def test_refuses_other_settings(
    tiny_folder: Callable[[str], Path], tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    folder = tiny_folder("llama")
    with load(folder) as model, model.session() as session:
        session.save(tmp_path / "file")
    with load(folder, **changes) as other, pytest.raises(CheckpointError, match=said):
        other.load_session(tmp_path / "file")


@pytest.mark.parametrize(
    ("saved_with", "loaded_with"),
    [
        ({}, {"window": 61}),
        ({}, {"sinks": 8}),
        ({}, {"sinks": 70}),  # more than the session holds in all
        ({"kv_dtype": "int8", "window": 50}, {}),
        ({"sinks": 0}, {"kv_dtype": "float32"}),
    ],
)
def test_the_settings_that_a_refusal_names_load_the_session(
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
    saved_with: dict[str, object],
    loaded_with: dict[str, object],
) -> None:
    folder = tiny_folder("llama")
    with load(folder, **saved_with) as model, model.session(sinks=9) as session:
        session.save(tmp_path / "file")
    with load(folder, **loaded_with) as other, pytest.raises(CheckpointError) as refused:
        other.load_session(tmp_path / "file")
    remedy = re.search(r"Load the model with `(.*)`\.$", str(refused.value))
    assert remedy is not None
    settings = ast.literal_eval(re.sub(r"(\w+)=", r'"\1": ', "{" + remedy[1] + "}"))
    with load(folder, **{**loaded_with, **settings}) as obeying:
        assert obeying.load_session(tmp_path / "file").sinks == 9


def test_refuses_another_model(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    with load(tiny_folder("llama")) as model, model.session() as session:
        session.save(tmp_path / "file")
    with load(tiny_folder("qwen3")) as other:
        with pytest.raises(CheckpointError, match=r"family is .* in the file and .* in the model"):
            other.load_session(tmp_path / "file")
        wait_until_idle(other)


def test_says_that_there_is_no_room(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    with load(tiny_folder("llama"), max_sequences=1) as model, model.session() as session:
        session.save(tmp_path / "file")
        with pytest.raises(CapacityError, match="a new session needs"):
            model.load_session(tmp_path / "file")
        assert talk(session, 1, 2)


def test_cannot_save_what_runs_or_is_closed(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    model = load(tiny_folder("llama"))
    session = model.session()
    running = session.stream([5], ignore_eos=True)
    with pytest.raises(SessionBusy):
        session.save(tmp_path / "file")
    running.close()
    session.save(tmp_path / "file")
    session.close()
    with pytest.raises(InvalidArgument, match="closed"):
        session.save(tmp_path / "other")
    model.close()
    with pytest.raises(EngineDead, match="closed"):
        model.load_session(tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_saves_and_loads_under_the_home_folder_and_through_a_link(
    tiny_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "kept").mkdir()
    (tmp_path / "link.session").symlink_to("kept/a.session")
    with load(tiny_folder("llama")) as model, model.session() as session:
        talk(session, 1, 2)
        session.save("~/link.session")
        assert (tmp_path / "link.session").is_symlink()
        assert (tmp_path / "kept" / "a.session").is_file()
        with model.load_session("~/link.session") as again:
            assert again.token_ids == session.token_ids
        (tmp_path / "kept" / "a.session").unlink()
        with pytest.raises(CheckpointError, match=r'link to "kept/a\.session", which'):
            model.load_session("~/link.session")
        with pytest.raises(OSError, match=r'to "~nosuch/a": No such .* There is no user "nosuch".'):
            session.save("~nosuch/a")
        with pytest.raises(CheckpointError, match=r'"a" cannot be .* There is no user "nosuch".'):
            model.load_session("~nosuch/a")


def test_a_missing_folder_is_an_os_error_and_the_session_goes_on(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    with load(tiny_folder("llama")) as model, model.session() as session:
        with pytest.raises(OSError, match="missing"):
            session.save(tmp_path / "missing" / "file")
        assert talk(session, 1, 1)


def test_a_conversation_of_messages_goes_on_where_it_stood(smollm2: Path, tmp_path: Path) -> None:
    with sinkstream.load(smollm2, window=252, threads=1) as model:
        with model.session("You are brief.") as session:
            session.stream("Name a colour.", temperature=0, max_tokens=6).result()
            session.save(tmp_path / "file")
            expected = session.stream("Another one.", temperature=0, max_tokens=6).result()
        with model.load_session(tmp_path / "file") as loaded:
            got = loaded.stream("Another one.", temperature=0, max_tokens=6).result()
        assert (got.token_ids, got.logprobs) == (expected.token_ids, expected.logprobs)
        assert got.stats.prompt_tokens == expected.stats.prompt_tokens
