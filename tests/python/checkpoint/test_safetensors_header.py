"""The safetensors header reader equals its package; on bad files its error is one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sinkstream.checkpoint.bounded_file import File
from sinkstream.checkpoint.checkpoint import TensorEntry
from sinkstream.checkpoint.formats import safetensors_header as reader
from sinkstream.checkpoint.formats.safetensors_header import read_safetensors_header
from sinkstream.errors import CheckpointError


def read(path: Path) -> dict[str, TensorEntry]:
    file = File(path)
    try:
        return read_safetensors_header(file)
    finally:
        file.close()


def read_bytes(tmp_path: Path, content: bytes) -> dict[str, TensorEntry]:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    return read(path)


def encoded(header: Any, content: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content


def entry(dtype: Any, shape: Any, begin: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


GOOD = {
    "__metadata__": {"format": "pt"},
    "second": entry("F16", [5], 24, 34),
    "first": entry("F32", [2, 3], 0, 24),
}


def test_a_file_reads_as_its_own_package_reads_it(tmp_path: Path) -> None:
    numpy_files = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "oracle.safetensors"
    tensors: dict[str, npt.NDArray[Any]] = {
        "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b.weight": np.arange(6, dtype=np.float16).reshape(2, 3),
        "scalar": np.array(2.5, dtype=np.float64),
        "empty": np.zeros((0, 4), dtype=np.float32),
        "buffer": np.arange(5, dtype=np.int64),
    }
    numpy_files.save_file(tensors, path, metadata={"format": "np"})
    file = File(path)
    entries = read_safetensors_header(file)
    assert set(entries) == set(tensors)
    for name, values in tensors.items():
        assert entries[name].shape == values.shape
        assert file.read(entries[name].offset, values.nbytes, name) == values.tobytes()
    file.close()


def test_a_file_cut_at_any_byte_is_an_error(tmp_path: Path) -> None:
    content = encoded(GOOD, bytes(34))
    assert len(read_bytes(tmp_path, content)) == 2
    for size in range(len(content)):
        with pytest.raises(CheckpointError, match=r"^load: .*model\.safetensors"):
            read_bytes(tmp_path, content[:size])


def test_a_file_cut_in_its_tensors_is_an_error_that_names_the_tensor(tmp_path: Path) -> None:
    content = encoded(GOOD, bytes(34))
    for missing in range(1, 35):
        name = "second" if missing <= 10 else "first"
        with pytest.raises(CheckpointError, match=f'tensor "{name}" of model.safetensors must end'):
            read_bytes(tmp_path, content[:-missing])


def test_the_header_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reader.MAX_HEADER_BYTES == 16 << 20
    monkeypatch.setattr(reader, "MAX_HEADER_BYTES", 100)
    with pytest.raises(CheckpointError, match="must have from 2 to 100 bytes"):
        read_bytes(tmp_path, encoded(GOOD, bytes(34)))


BROKEN: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "must be a safetensors file, but has only 0 bytes"),
    "a hostile header length": (b"\xff" * 8 + b"{}", f"but has {2**64 - 1}"),
    "no JSON": (encoded(b"hello world", b""), "must be valid JSON"),
    "no UTF-8": (encoded(b'{"\xff": 1}', b""), "must be valid JSON"),
    "nested too deeply": (encoded(b'{"a":' + b"[" * 100_000, b""), "nested too deeply"),
    "a list": (encoded([1], b""), r"must be a JSON object, but is \[1\]"),
    "a name twice": (
        encoded(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "a": 1}', bytes(4)),
        'the key "a" appears twice',
    ),
    "not a number": (encoded(b'{"a": NaN}', b""), "NaN is not a JSON number"),
    "a tensor that is not an object": (
        encoded({"a": 1}, b""),
        'tensor "a" .* must be described by',
    ),
    "a missing field": (encoded({"a": {"dtype": "F32", "shape": []}}, b""), "must be described by"),
    "an unknown dtype": (
        encoded({"a": entry("F128", [1], 0, 16)}, bytes(16)),
        'has dtype "F128"; the supported ones are BF16, BOOL',
    ),
    "a dtype that is not a string": (encoded({"a": entry([1], [1], 0, 4)}, bytes(4)), "has dtype"),
    "a negative size": (
        encoded({"a": entry("F32", [-1], 0, 4)}, bytes(4)),
        r"the shape of tensor \"a\" .* but is \[-1\]",
    ),
    "a size that is not a number": (
        encoded({"a": entry("F32", ["1"], 0, 4)}, bytes(4)),
        "must be a list of at most 8 sizes",
    ),
    "a size of true": (encoded({"a": entry("F32", [True], 0, 4)}, bytes(4)), "at most 8 sizes"),
    "a size of 2^63": (encoded({"a": entry("F32", [2**63], 0, 4)}, bytes(4)), "at most 8 sizes"),
    "nine dimensions": (encoded({"a": entry("F32", [1] * 9, 0, 4)}, bytes(4)), "at most 8 sizes"),
    "a product that overflows": (
        encoded({"a": entry("F32", [2**62, 4, 4], 0, 0)}, b""),
        f"that are {2**68} apart",
    ),
    "a reversed extent": (
        encoded({"a": entry("F32", [1], 4, 0)}, bytes(4)),
        r"must be two numbers that are 4 apart, as its shape \[1\] says, but are \[4, 0\]",
    ),
    "an extent unlike the shape": (
        encoded({"a": entry("F32", [2], 0, 4)}, bytes(4)),
        r"must be two numbers that are 8 apart",
    ),
    "three offsets": (
        encoded({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}, bytes(4)),
        "must be two numbers",
    ),
    "an overlap": (
        encoded({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, bytes(12)),
        'tensor "b" of model.safetensors must begin at byte 8 .* but begins at 4',
    ),
    "a gap": (
        encoded({"a": entry("F32", [1], 0, 4), "b": entry("F32", [1], 8, 12)}, bytes(12)),
        "must begin at byte 4 .* but begins at 8",
    ),
    "a gap at the start": (
        encoded({"a": entry("F32", [1], 4, 8)}, bytes(8)),
        "must begin at byte 0",
    ),
    "bytes after the last tensor": (
        encoded({"a": entry("F32", [1], 0, 4)}, bytes(5)),
        "must end with its last tensor at byte",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_header_is_an_error_that_says_what_is_wrong(tmp_path: Path, name: str) -> None:
    content, sentence = BROKEN[name]
    with pytest.raises(CheckpointError, match=sentence) as caught:
        read_bytes(tmp_path, content)
    assert str(caught.value).startswith("load: ")
    assert len(str(caught.value)) < 400


@settings(
    max_examples=300,
    deadline=1000,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_damaged_bytes_give_an_error_or_a_header_but_nothing_else(
    tmp_path: Path, data: st.DataObject
) -> None:
    content = bytearray(encoded(GOOD, bytes(34)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        piece = data.draw(st.binary(min_size=1, max_size=8))
        content[at : at + len(piece)] = piece
    try:
        entries = read_bytes(tmp_path, bytes(content))
    except CheckpointError as error:
        assert str(error).startswith("load: ")  # noqa: PT017 - no error is a good outcome too
    else:
        assert all(tensor.offset <= len(content) for tensor in entries.values())
