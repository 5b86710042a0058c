"""A model's fingerprint: equal for equal weights, different if any bit differs."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

import sinkstream
from tests.data import tiny
from tests.python.conftest import WriteOnce


def fingerprint(path: Path, **options: object) -> str:
    with sinkstream.load(path, **options) as model:  # type: ignore[arg-type]
        found = model._native.fingerprint()
        assert model._native.fingerprint() == found
        return found


def test_it_is_the_models_and_not_the_loads(tiny_folder: WriteOnce) -> None:
    found = fingerprint(tiny_folder("llama"))
    assert len(found) == 32
    assert set(found) <= set("0123456789abcdef")
    assert fingerprint(tiny_folder("llama")) == found
    assert fingerprint(tiny_folder("llama-sharded")) == found
    assert fingerprint(tiny_folder("qwen3")) != found


# A saved session opens only with the fingerprint in it: a changed one makes all files unreadable.
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama", "5c3064aa85754785f9f9e7ca0d001e1c"),
        ("mistral", "66e1a377093d8a8c4a62facfd9245184"),
        ("phi3", "7e55132b44897ab0a56ac53f9df99156"),
        ("qwen2-windows", "c477e25896c98e0119f3f84d98f7e65d"),
        ("qwen2", "c85010d17fedf67144bec99dc895e888"),
        ("qwen3", "5ccfbe2fbe9ffec706f9640b2b24f22b"),
    ],
)
def test_fingerprints_do_not_change(name: str, expected: str, tiny_folder: WriteOnce) -> None:
    assert fingerprint(tiny_folder(name)) == expected


def test_neither_kernels_nor_types_nor_the_window_change_it(
    tiny_folder: WriteOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_folder("llama")
    found = fingerprint(path)
    assert fingerprint(path, dtype="bfloat16", kv_dtype="int8", sinks=2, window=9) == found
    monkeypatch.setenv("SINKSTREAM_KERNELS", "generic")
    assert fingerprint(path) == found


def test_every_weight_has_a_part_in_it(tmp_path: Path) -> None:
    model = tiny.build("llama")
    random = np.random.default_rng(3)
    seen = set()
    for name in (None, *model.weights):
        values = model.weights[name].reshape(-1) if name is not None else np.zeros(1, np.float32)
        at = int(random.integers(len(values)))
        kept = values[at].copy()
        (bits,) = struct.unpack("<I", kept.tobytes())
        values[at] = np.frombuffer(struct.pack("<I", bits ^ 1), np.float32)[0]
        seen.add(fingerprint(tiny.write_folder(model, tmp_path / str(len(seen)))))
        values[at] = kept
    assert len(seen) == len(model.weights) + 1


def test_a_closed_model_has_none(tiny_folder: WriteOnce) -> None:
    model = sinkstream.load(tiny_folder("llama"))
    model.close()
    with pytest.raises(sinkstream.EngineDead, match="fingerprint: the model is closed"):
        model._native.fingerprint()
