"""Layers with windows of their own: as they were trained, however far a stream has come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

import sinkstream
from sinkstream.sessions.file import read_session_file
from tests.data import tiny
from tests.reference.hugging_face import from_hugging_face
from tests.reference.oracle import Oracle

NAME = "qwen2-windows"  # 32, none, 32
TOLERANCE = 1e-4  # relative to a text's largest logit


def some_ids(count: int) -> list[int]:
    return np.random.default_rng(7).integers(0, 307, count).tolist()  # type: ignore[no-any-return]


def logits_of(
    model: sinkstream.Model, ids: list[int], cache: sinkstream.Cache | None = None, chunk: int = 400
) -> npt.NDArray[np.float32]:
    parts = [
        model.forward(torch.tensor([ids[begin : begin + chunk]]), cache)[0].numpy()
        for begin in range(0, len(ids), chunk)
    ]
    return np.concatenate(parts)


def assert_close(found: npt.NDArray[np.float32], expected: npt.NDArray[np.floating]) -> None:
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.fixture
def folder(tiny_folder: Callable[[str], Path]) -> Path:
    return tiny_folder(NAME)


def load(folder: Path, **changes: object) -> sinkstream.Model:
    options = {
        "dtype": "float32", "kv_dtype": "float32", "sinks": 4, "window": 60, "threads": 1,
        "max_sequences": 3,
    }  # fmt: skip
    return sinkstream.load(folder, **{**options, **changes})  # type: ignore[arg-type]


def test_without_eviction_the_logits_are_transformers(folder: Path) -> None:
    """Those of a dense forward pass whose masks have the layers' windows."""
    ids = some_ids(330)
    expected = Oracle(folder).logits(ids)
    with load(folder) as model:
        assert model.spec.own_windows == (32, 0, 32)
        assert_close(logits_of(model, ids), expected)
        cache = model.new_cache(sinks=0, window=400)
        assert_close(logits_of(model, ids, cache, 47), expected)


@pytest.mark.parametrize(("sinks", "window"), [(4, 60), (2, 33), (3, 31)])
def test_far_past_every_window_the_logits_are_the_references(
    folder: Path, sinks: int, window: int
) -> None:
    ids = some_ids(400)
    built = tiny.build(NAME)
    reference = from_hugging_face(built.config, built.weights, [32, 0, 32])
    expected = reference.forward(ids, sinks, window)
    with load(folder) as model:
        cache = model.new_cache(sinks=sinks, window=window)
        assert_close(logits_of(model, ids, cache, 29), expected)


def test_chunks_threads_and_company_change_no_bit(folder: Path) -> None:
    ids = some_ids(300)
    with load(folder) as model:
        expected = logits_of(model, ids, model.new_cache())
        asked = [ids[:50], ids[50:90], ids[90:200]]
        alone = [model.generate(prompt, max_tokens=90, seed=3) for prompt in asked]
    for chunk, threads in ((1, 1), (33, 2), (200, 2)):
        with load(folder, threads=threads, prefill_chunk=chunk) as model:
            found = logits_of(model, ids, model.new_cache(), chunk)
            assert found.tobytes() == expected.tobytes()
            together = model.generate(asked, max_tokens=90, seed=3)
            assert [r.token_ids for r in together] == [r.token_ids for r in alone]


def say(session: sinkstream.Session, seed: int) -> list[int]:
    stream = session.stream(some_ids(9), max_tokens=12, seed=seed, temperature=1.0, ignore_eos=True)
    return stream.result().token_ids


@pytest.mark.parametrize("kv_dtype", ["float16", "int8"])
@pytest.mark.parametrize("turns", [1, 2, 8])
def test_a_fork_and_a_saved_session_continue_bit_for_bit(
    folder: Path, tmp_path: Path, kv_dtype: str, turns: int
) -> None:
    """Before any layer evicts, once the narrow ones do, and once all do."""
    path = tmp_path / "talk"
    with load(folder, kv_dtype=kv_dtype) as model:
        with model.session() as session:
            for seed in range(turns):
                say(session, seed)
            session.save(path)
            fork = session.fork()
            expected = [say(session, seed) for seed in range(20, 26)]
        assert [say(fork, seed) for seed in range(20, 26)] == expected
    with load(folder, kv_dtype=kv_dtype, threads=2) as model, model.load_session(path) as loaded:
        assert [say(loaded, seed) for seed in range(20, 26)] == expected


def test_a_reply_is_taken_back_also_when_layers_have_evicted(folder: Path) -> None:
    with load(folder) as model, model.session() as session:
        first = session.stream(some_ids(5), max_tokens=9, seed=1, ignore_eos=True)
        expected = first.result().token_ids
        first.cancel(keep="drop")
        again = session.stream(some_ids(5), max_tokens=9, seed=1, ignore_eos=True)
        assert again.result().token_ids == expected
        later = session.stream(some_ids(30), max_tokens=9, seed=1, ignore_eos=True)
        expected = later.result().token_ids
        later.cancel(keep="drop")
        again = session.stream(some_ids(30), max_tokens=9, seed=1, ignore_eos=True)
        assert again.result().token_ids == expected


def test_where_all_layers_have_windows_nothing_else_is_kept(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    ids = [token % 131 for token in some_ids(200)]
    folder = tiny_folder("qwen3-all-windows")
    expected = Oracle(folder).logits(ids)
    with load(folder) as model:
        assert (model.capacity.sinks, model.capacity.window) == (0, 32)
        assert_close(logits_of(model, ids, model.new_cache(), 29), expected)
        with model.session() as session:
            stream = session.stream(ids, max_tokens=9, seed=1)
            stream.result()
            assert stream.stats.live_tokens == 32
            session.save(tmp_path / "talk")
            continued = session.stream(ids[:3], max_tokens=9, seed=1).result().token_ids
        with model.load_session(tmp_path / "talk") as loaded:
            again = loaded.stream(ids[:3], max_tokens=9, seed=1).result().token_ids
            assert again == continued


@pytest.mark.parametrize("name", ["mistral", "mistral-windows", "phi3", "phi3-windows"])
def test_a_family_is_transformers_and_far_past_its_window_the_reference(
    name: str, tiny_folder: Callable[[str], Path]
) -> None:
    ids = [token % 293 for token in some_ids(360)]
    built = tiny.build(name)
    own_windows = [40] * 3 if name.endswith("-windows") else []
    reference = from_hugging_face(built.config, built.weights, own_windows)
    with load(tiny_folder(name)) as model:
        assert_close(logits_of(model, ids), Oracle(tiny_folder(name)).logits(ids))
        # Wider than its window: no sinks. Narrower, or without one: sinks and window.
        for window in (60, 30):
            cache = model.new_cache(sinks=4, window=window)
            expected = reference.forward(ids, 4, window)
            assert_close(logits_of(model, ids, cache, 50), expected)


def test_a_layer_with_its_own_window_takes_no_more_memory(
    folder: Path, tiny_folder: Callable[[str], Path]
) -> None:
    with load(folder, window=1000) as windows, load(tiny_folder("qwen2"), window=1000) as full:
        page = 64 * full.capacity.bytes_per_token // 2  # of one layer
        assert windows.capacity.bytes_per_sequence == (
            full.capacity.bytes_per_sequence // 2 + 2 * 2 * page
        )


def test_the_file_of_a_session_says_what_its_layers_keep(folder: Path, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    path = tmp_path / "talk"
    with load(folder, kv_dtype="int8") as model, model.session() as session:
        for seed in range(6):
            say(session, seed)
        session.save(path)
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata()["format_version"] == "4"
        assert file.metadata()["layer_windows"] == "32,0,32"
        assert file.get_tensor("keys_values.0").shape == (2, 2, 1, 32, 32)
        assert file.get_tensor("keys_values.1").shape == (1, 2, 1, 64, 32)
        assert file.get_tensor("scales.1").shape == (1, 2, 1, 64)
    assert len(read_session_file(path).token_ids) == 64
