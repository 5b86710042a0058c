"""A saved session is restored bit for bit, or refused with a sentence."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sinkstream._build import version
from sinkstream.errors import CheckpointError, InvalidArgument
from sinkstream.sessions import header
from sinkstream.sessions.file import read_session_file, write_session_file
from sinkstream.sessions.record import SessionState
from tests.python.sessions.records import assert_same, join, make_record, split


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return the file of a full int8 session, which has every tensor."""
    path = tmp_path / "talk.session"
    write_session_file(path, make_record("int8", pending=2))
    return path


@pytest.mark.parametrize("kv_dtype", ["float32", "float16", "bfloat16", "int8"])
@pytest.mark.parametrize(
    ("state", "live"),
    [
        (SessionState(0), 0),
        (SessionState(3), 3),
        (SessionState(24), 24),
        (SessionState(25), 24),
        (SessionState(1000, begin=990), 14),
        (SessionState(1000, begin=1000), 4),
        (SessionState(10_000_000, turns=40_000, system_tokens=12), 24),
    ],
)
@pytest.mark.parametrize("pending", [0, 1, 5])
def test_every_bit_comes_back(
    kv_dtype: str, state: SessionState, live: int, pending: int, tmp_path: Path
) -> None:
    record = make_record(kv_dtype, state, pending=pending)
    assert record.live == live
    path = tmp_path / "a.session"
    write_session_file(path, record)
    read = read_session_file(path)
    assert_same(record, read)
    assert read.created_by == f"sinkstream {version()}"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.session"]


@pytest.mark.parametrize("kv_dtype", ["float16", "int8"])
@pytest.mark.parametrize(
    ("windows", "lives"),
    [("8,0,8", [8, 24]), ("0,20,21", [24, 20, 24]), ("30,30,30", [24]), ("0,0,30", [24, 24])],
)
def test_each_group_of_layers_keeps_its_own_tokens(
    kv_dtype: str, windows: str, lives: list[int], tmp_path: Path
) -> None:
    record = make_record(kv_dtype, layer_windows=windows)
    path = tmp_path / "a.session"
    write_session_file(path, record)
    assert_same(record, read_session_file(path))
    found, _ = split(path.read_bytes())
    assert found["__metadata__"]["format_version"] == "2"
    assert [found[f"keys_values.{group}"]["shape"][3] for group in range(len(lives))] == lives
    path.write_bytes(join(*split(path.read_bytes())))
    assert_same(record, read_session_file(path))


@pytest.mark.parametrize(
    ("kv_dtype", "layers"),
    [
        ("float16", {}),
        ("int8", {"layer_windows": "8,0,8"}),
        ("float16", {"layer_shapes": "40,2x6,7"}),
        ("int8", {"layer_windows": "8,0,8", "layer_shapes": "2x6,1x16,2x6"}),
    ],
)
def test_a_conversation_comes_back_with_any_model(
    kv_dtype: str, layers: dict[str, str], tmp_path: Path
) -> None:
    record = make_record(kv_dtype, conversation=b'{"opening":[]}', **layers)
    path = tmp_path / "a.session"
    write_session_file(path, record)
    assert_same(record, read_session_file(path))
    header, tensors = split(path.read_bytes())
    assert header["__metadata__"]["format_version"] == "4"
    assert list(header)[-2:] == ["earlier_ids", "conversation"]
    header["__metadata__"]["vocab_size"] = str(int(record.earlier_ids.max()))  # type: ignore[union-attr]
    path.write_bytes(join(header, tensors))
    with pytest.raises(CheckpointError, match="_ids` must be in"):
        read_session_file(path)
    header["__metadata__"]["format_version"] = "3" if layers else "1"
    path.write_bytes(join(header, tensors))
    with pytest.raises(CheckpointError):
        read_session_file(path)


@pytest.mark.parametrize("windows", ["", "8,0", "8,0,8,0", "8,-1,0", "8,x,0", "0,0,0", "8,00,8"])
def test_windows_that_no_layers_have_are_refused(windows: str, tmp_path: Path) -> None:
    path = tmp_path / "talk.session"
    write_session_file(path, make_record(layer_windows="8,0,8"))
    header, tensors = split(path.read_bytes())
    header["__metadata__"]["layer_windows"] = windows
    path.write_bytes(join(header, tensors))
    with pytest.raises(CheckpointError, match=r"talk\.session: `layer_windows` must be 3 integers"):
        read_session_file(path)


@pytest.mark.parametrize("kv_dtype", ["float16", "int8"])
@pytest.mark.parametrize(
    ("windows", "shapes", "kept"),
    [
        ("8,0,8", "2x6,1x16,2x6", [(2, 2, 8, 6), (1, 1, 24, 16)]),
        ("", "2x6,1x16,2x6", [(2, 2, 24, 6), (1, 1, 24, 16)]),
        ("8,8,0", "2x6,1x16,1x16", [(1, 2, 8, 6), (1, 1, 8, 16), (1, 1, 24, 16)]),
        ("", "40,2x6,7", [(1, 2, 24, 6)]),
    ],
)
def test_layers_of_different_shapes_and_states_come_back(
    kv_dtype: str,
    windows: str,
    shapes: str,
    kept: list[tuple[int, int, int, int]],
    tmp_path: Path,
) -> None:
    record = make_record(kv_dtype, layer_windows=windows, layer_shapes=shapes)
    path = tmp_path / "a.session"
    write_session_file(path, record)
    assert_same(record, read_session_file(path))
    found, _ = split(path.read_bytes())
    assert found["__metadata__"]["format_version"] == "3"
    for group, (layers, heads, live, dim) in enumerate(kept):
        assert found[f"keys_values.{group}"]["shape"] == [layers, 2, heads, live, dim]
    assert found.get("states", {}).get("shape") == ([47] if "40" in shapes else None)
    path.write_bytes(join(*split(path.read_bytes())))
    assert_same(record, read_session_file(path))


@pytest.mark.parametrize(
    "shapes", ["", "2x6,40", "2x6,2x6,2x6", "40,41,42", "2x6,0,2x6", "2x6,x6,2x6", "2x6,-1,2x6"]
)
def test_shapes_that_no_layers_have_are_refused(shapes: str, tmp_path: Path) -> None:
    path = tmp_path / "talk.session"
    write_session_file(path, make_record(layer_shapes="2x6,40,2x6"))
    header, tensors = split(path.read_bytes())
    header["__metadata__"]["layer_shapes"] = shapes
    path.write_bytes(join(header, tensors))
    with pytest.raises(CheckpointError, match=r"talk\.session: `layer_shapes` must be 3 sizes"):
        read_session_file(path)


def test_states_of_another_size_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "talk.session"
    record = make_record(layer_shapes="2x6,40,2x6")
    with pytest.raises(InvalidArgument, match="`states` must have 40 bytes of uint8"):
        write_session_file(path, replace(record, states=None))
    write_session_file(path, record)
    header, tensors = split(path.read_bytes())
    header["__metadata__"]["layer_shapes"] = "2x6,41,2x6"
    path.write_bytes(join(header, tensors))
    with pytest.raises(CheckpointError, match=r'tensor "states" must be U8 \[41\] to match'):
        read_session_file(path)


def test_only_the_owner_may_read_it_whatever_lay_there_before(tmp_path: Path) -> None:
    path = tmp_path / "a.session"
    path.write_text("old")
    path.chmod(0o666)
    write_session_file(path, make_record())
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_file_is_what_the_safetensors_package_reads(saved: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    record = read_session_file(saved)
    with safetensors.safe_open(saved, "np") as file:
        assert file.metadata()["format"] == "sinkstream session"
        assert set(file.keys()) == {"keys_values", "scales", "token_ids", "pending_ids"}
        keys_values = file.get_tensor("keys_values")
        assert keys_values.shape == (3, 2, 2, 24, 6)
        assert keys_values.tobytes() == record.keys_values.tobytes()
        assert file.get_tensor("scales").tobytes() == record.scales.tobytes()  # type: ignore[union-attr]
        assert (file.get_tensor("token_ids") == record.token_ids).all()
        assert (file.get_tensor("pending_ids") == record.pending_ids).all()


def test_a_file_that_was_put_together_by_its_description_is_read(saved: Path) -> None:
    saved.write_bytes(join(*split(saved.read_bytes())))
    assert_same(read_session_file(saved), make_record("int8", pending=2))


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "talk.session"
    write_session_file(path, make_record("int8", kv_heads=20, layers=4))
    content = path.read_bytes()
    header_bytes = 8 + int.from_bytes(content[:8], "little")
    cuts = {*range(header_bytes + 2), *range(0, len(content), 1024), len(content) - 1}
    assert len(content) > 30 * 1024
    for cut in sorted(cuts):
        path.write_bytes(content[:cut])
        with pytest.raises(CheckpointError, match=r"^load_session: .*talk\.session"):
            read_session_file(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(CheckpointError, match="must end with its last tensor"):
        read_session_file(path)


def test_two_thousand_flipped_bits_are_refused(saved: Path) -> None:
    content = saved.read_bytes()
    header_bits = 8 * (8 + int.from_bytes(content[:8], "little"))
    random = np.random.default_rng(5)
    in_header = random.integers(0, header_bits, 1000)
    anywhere = random.integers(0, 8 * len(content), 1000)
    for bit in (int(bit) for bit in np.concatenate([in_header, anywhere])):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        saved.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"^load_session: .*talk\.session"):
            read_session_file(saved)


@pytest.mark.parametrize(
    ("key", "value"),
    [("turns", "8"), ("fingerprint", "f" * 32), ("created_by", "someone else"), ("fields", "{}")],
)
def test_edited_metadata_does_not_have_the_checksum(key: str, value: str, saved: Path) -> None:
    header, tensors = split(saved.read_bytes())
    header["__metadata__"][key] = value
    saved.write_bytes(join(header, tensors, checksum=False))
    with pytest.raises(CheckpointError, match=r"talk\.session must have the checksum .* edited"):
        read_session_file(saved)


def test_another_version_is_refused_by_name(saved: Path) -> None:
    header, tensors = split(saved.read_bytes())
    header["__metadata__"]["format_version"] = "5"
    header["__metadata__"]["created_by"] = "sinkstream 9.0"
    header["__metadata__"]["something_new"] = "1"
    saved.write_bytes(join(header, tensors))
    with pytest.raises(
        CheckpointError,
        match=f"talk.session must have format version 1, 2, 3 or 4, which sinkstream "
        f'{version()} reads, but has "5", written by "sinkstream 9.0"',
    ):
        read_session_file(saved)


def test_another_kind_of_safetensors_file_is_refused(saved: Path) -> None:
    header, tensors = split(saved.read_bytes())
    for metadata in (None, {}, {"format": "pt"}, "sinkstream session"):
        header["__metadata__"] = metadata
        saved.write_bytes(join(header, tensors, checksum=False))
        with pytest.raises(CheckpointError, match='must be a saved session, of format "sinkstream'):
            read_session_file(saved)


def _set(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["__metadata__"].__setitem__(key, value)


LIES: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "no length": (lambda header: header["__metadata__"].pop("length"), "the keys of version 1"),
    "a key too many": (_set("more", "1"), r"differs in \['more'\]"),
    "a number that is not a string": (_set("turns", 7), r"differs in \['turns'\]"),
    "a number with a sign": (_set("length", "-1"), "`length` must be an integer"),
    "a number with a zero before it": (_set("turns", "07"), '`turns` .* but is "07"'),
    "digits of another script": (_set("turns", "٧"), "`turns` must be an integer"),
    "a number without end": (_set("turns", "9" * 5000), "`turns` must be an integer"),
    "more than an endless sequence": (
        _set("length", str(2**59 + 1)),
        "`length` must be an integer",
    ),
    "no window": (_set("window", "0"), r"`window` must be an integer in \[1,"),
    "no layers": (_set("layers", "0"), r"`layers` must be an integer in \[1,"),
    "layers that fit no machine": (_set("layers", str(2**59)), 'tensor "keys_values" must be I8'),
    "another type": (_set("kv_dtype", "float64"), '`kv_dtype` must be one of .* "float64"'),
    "a type without scales": (_set("kv_dtype", "float16"), "must be F16 .* but is I8"),
    "another window": (_set("window", "21"), r"must be I8 \[3, 2, 2, 25, 6\] to match the"),
    "another length": (_set("length", "10"), 'tensor "keys_values" must be'),
    "a cut after the end": (_set("begin", "1001"), "`begin` must be at most `length`, 1000"),
    "ids past the vocabulary": (_set("vocab_size", "100"), r"`token_ids` must be in \[0, 99\]"),
    "a checksum in capitals": (
        _set("checksum", "A" * 64),
        "`checksum` must be 64 lowercase hexadecimal",
    ),
    "fields that are no JSON": (_set("fields", "{"), "`fields` of talk.session must be valid JSON"),
    "a field that is a list": (_set("fields", '{"a":[]}'), '"a" is'),
    "a field that is a bool": (_set("fields", '{"a":true}'), '"a" is true'),
    "a tensor less": (
        lambda header: header.__setitem__("ids", header.pop("pending_ids")),
        'tensor "ids" must be absent',
    ),
    "ids of another type": (
        lambda header: header["token_ids"].__setitem__("dtype", "U32"),
        r'tensor "token_ids" must be I32 \[24\] to match .* but is U32 \[24\]',
    ),
    "ids without a dimension": (
        lambda header: header["pending_ids"].update(dtype="F64", shape=[]),
        r'tensor "pending_ids" must be I32 \[0\]',
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_file_whose_checksum_is_right_is_not_believed_either(lie: str, saved: Path) -> None:
    header, tensors = split(saved.read_bytes())
    change, message = LIES[lie]
    change(header)
    saved.write_bytes(join(header, tensors, checksum=lie != "a checksum in capitals"))
    with pytest.raises(CheckpointError, match=message) as raised:
        read_session_file(saved)
    assert "talk.session" in str(raised.value)
    assert len(str(raised.value)) < 600


def test_a_checksum_that_is_written_in_another_way_is_refused(saved: Path) -> None:
    content = saved.read_bytes()
    header, tensors = split(content)
    digits = header["__metadata__"]["checksum"]
    escaped = f"\\u{ord(digits[0]):04x}{digits[1:]}"  # the same string in JSON
    text = content[8 : len(content) - len(tensors)].replace(digits.encode(), escaped.encode())
    saved.write_bytes(len(text).to_bytes(8, "little") + text + tensors)
    with pytest.raises(CheckpointError, match="`checksum` must be 64 lowercase hexadecimal digits"):
        read_session_file(saved)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match='load_session: file "none" cannot be opened: No such'
    ):
        read_session_file(tmp_path / "none")
    for path in (tmp_path, f"{tmp_path}/"):
        with pytest.raises(CheckpointError) as caught:
            read_session_file(path)
        assert str(caught.value) == (
            f'load_session: "{tmp_path.name}" must be a regular file, but is not.'
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keys_values": np.zeros(10, np.uint8)}, r"`keys_values` must have \d+ bytes of uint8"),
        ({"token_ids": np.zeros(24, np.int64)}, "`token_ids` must have 96 bytes of int32"),
        ({"scales": None}, "`scales` must have 1152 bytes of float32 to match .* but has None"),
        ({"state": SessionState(3)}, "`keys_values` must have"),
    ],
)
def test_a_record_that_contradicts_itself_is_not_written(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        write_session_file(tmp_path / "a", replace(make_record("int8"), **change))
    scales = np.zeros(1, np.float32)
    with pytest.raises(InvalidArgument, match="`scales` must be None for a cache of float16"):
        write_session_file(tmp_path / "a", replace(make_record(), scales=scales))
    assert list(tmp_path.iterdir()) == []


def test_fields_are_strings_and_integers_that_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for fields in ({"a": True}, {"a": 1.5}, {"a": None}, {1: "a"}):
        with pytest.raises(
            TypeError, match="save: `fields` must map strings to strings or integers"
        ):
            write_session_file(tmp_path / "a", replace(make_record(), fields=fields))  # type: ignore[arg-type]
    monkeypatch.setattr(header, "MAX_HEADER_BYTES", 2000)
    with pytest.raises(InvalidArgument, match="save: `fields` must fit into a header of 2000"):
        write_session_file(tmp_path / "a", replace(make_record(), fields={"a": "b" * 2000}))
    assert list(tmp_path.iterdir()) == []


def test_fields_may_look_like_the_rest_of_the_header(tmp_path: Path) -> None:
    fields: dict[str, str | int] = {
        "checksum": "0" * 64,
        "x": f'"checksum":"{"0" * 64}"',
        "y": json.dumps(f'"checksum":"{"0" * 64}"'),
    }
    path = tmp_path / "a.session"
    write_session_file(path, replace(make_record(), fields=fields))
    assert read_session_file(path).fields == fields


def test_memory_in_addition_to_the_cache_stays_small(tmp_path: Path) -> None:
    record = make_record("float16", SessionState(10_000), window=4092, layers=8, head_dim=128)
    size = record.keys_values.nbytes
    assert size > 30 << 20
    path = tmp_path / "a.session"
    tracemalloc.start()
    try:
        write_session_file(path, record)
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
        tracemalloc.reset_peak()
        read_session_file(path)
        assert tracemalloc.get_traced_memory()[1] < size + (20 << 20)
    finally:
        tracemalloc.stop()


def test_a_text_is_not_a_saved_session(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello world, this is text", encoding="utf-8")
    with pytest.raises(CheckpointError) as raised:
        read_session_file(tmp_path / "a.txt")
    assert str(raised.value) == (
        "load_session: a.txt must be a saved session, but is incomplete or another kind of file."
    )
