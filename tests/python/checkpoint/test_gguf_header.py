"""The GGUF header reader equals the `gguf` package; on bad files its error is one sentence."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sinkstream.checkpoint.bounded_file import File
from sinkstream.checkpoint.formats import gguf_header as reader
from sinkstream.checkpoint.formats.gguf_header import GgufHeader, read_gguf_header
from sinkstream.errors import CheckpointError
from tests.python.checkpoint.gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I8,
    I64,
    STRING,
    U8,
    U32,
    U64,
    GgufBytes,
    GgufTensor,
    text,
)


def read(path: Path) -> GgufHeader:
    file = File(path)
    try:
        return read_gguf_header(file)
    finally:
        file.close()


def read_bytes(tmp_path: Path, content: bytes) -> GgufHeader:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return read(path)


def small_file() -> GgufBytes:
    file = GgufBytes().add("general.architecture", STRING, "llama").add("a.count", U32, 7)
    file.add_array("a.words", STRING, ["one", "", "zwölf"]).add_array("a.scores", F32, [0.5, -1.0])
    return file.add_tensor("first", (8, 3), bytes(96)).add_tensor("second", (5,), bytes(20))


def test_every_value_type_reads_as_the_gguf_package_reads_it(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "oracle.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("v.u8", 255)
    writer.add_int8("v.i8", -128)
    writer.add_uint16("v.u16", 65535)
    writer.add_int16("v.i16", -32768)
    writer.add_uint32("v.u32", 2**32 - 1)
    writer.add_int32("v.i32", -(2**31))
    writer.add_uint64("v.u64", 2**64 - 1)
    writer.add_int64("v.i64", -(2**63))
    writer.add_float32("v.f32", 0.1)
    writer.add_float64("v.f64", 0.1)
    writer.add_bool("v.yes", True)
    writer.add_bool("v.no", False)
    writer.add_string("v.text", "schön 🎉")
    writer.add_array("v.texts", ["a", "", "ß" * 300])
    writer.add_array("v.numbers", [1, -2, 3])
    writer.add_array("v.floats", [0.25, -1e30])
    writer.add_array("v.flags", [True, False])
    for kind in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"):
        block_type = gguf.GGMLQuantizationType[kind]
        values = np.linspace(-3, 3, 5 * 64, dtype=np.float32).reshape(5, 64)
        writer.add_tensor(kind, gguf.quants.quantize(values, block_type), raw_dtype=block_type)
    writer.add_tensor("vector", np.arange(7, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    assert_equals_oracle(path)


def assert_equals_oracle(path: Path) -> None:
    """Compare metadata, and every tensor's name, shape, type and bytes, with the gguf package."""
    import gguf

    oracle = gguf.GGUFReader(path)
    file = File(path)
    header = read_gguf_header(file)
    fields = {
        name: field.contents()
        for name, field in oracle.fields.items()
        if not name.startswith("GGUF.")
    }
    assert header.metadata == fields
    assert {name: type(value) for name, value in header.metadata.items()} == {
        name: type(value) for name, value in fields.items()
    }
    assert list(header.tensors) == [tensor.name for tensor in oracle.tensors]
    for tensor in oracle.tensors:
        ours = header.tensors[tensor.name]
        assert ours.shape == tuple(int(size) for size in tensor.shape[::-1])
        assert ours.kind == tensor.tensor_type.name
        content = file.read(ours.offset, int(tensor.n_bytes), tensor.name)
        assert content == tensor.data.tobytes()
    file.close()


@pytest.mark.full  # the package takes five seconds for 100,000 strings
def test_smollm2_reads_as_the_gguf_package_reads_it(smollm2: Path) -> None:
    assert_equals_oracle(smollm2)


@pytest.mark.parametrize("first_read", [1, 16, 100])
def test_a_header_that_is_read_in_pieces_reads_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_read: int
) -> None:
    whole = read_bytes(tmp_path, small_file().build()).metadata
    monkeypatch.setattr(reader, "_FIRST_READ_BYTES", first_read)
    assert read_bytes(tmp_path, small_file().build()).metadata == whole
    assert whole["a.words"] == ["one", "", "zwölf"]


def test_version_2_reads_like_version_3(tmp_path: Path) -> None:
    file = small_file()
    file.version = 2
    assert read_bytes(tmp_path, file.build()).metadata["a.count"] == 7


def test_a_file_may_choose_its_alignment(tmp_path: Path) -> None:
    file = small_file()
    file.alignment = 256
    file.add("general.alignment", U32, 256)
    content = file.build()
    tensors = read_bytes(tmp_path, content).tensors
    assert tensors["second"].offset == tensors["first"].offset + 256 == len(content) - 256


def test_a_file_cut_at_any_byte_of_its_header_is_an_error(tmp_path: Path) -> None:
    content = small_file().build()
    path = tmp_path / "cut.gguf"
    for size in range(len(small_file().header())):
        path.write_bytes(content[:size])
        with pytest.raises(CheckpointError, match=r"^load: cut\.gguf"):
            read(path)


def test_a_file_cut_in_its_tensors_is_an_error_that_names_the_tensor(tmp_path: Path) -> None:
    content = small_file().build()
    path = tmp_path / "cut.gguf"
    end = len(content) - 12  # the last tensor's 20 bytes are padded to 32
    begin = end - 20 - 96
    for size in range(begin, end):
        path.write_bytes(content[:size])
        name = "first" if size < begin + 96 else "second"
        with pytest.raises(CheckpointError, match=f'tensor "{name}" of cut.gguf must end at byte'):
            read(path)


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="must be a GGUF file, but is empty"):
        read_bytes(tmp_path, b"")


@pytest.mark.parametrize("content", [b"PK\x03\x04" + bytes(100), b"\x80\x04\x95" + bytes(99)])
def test_a_foreign_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(CheckpointError, match='does not start with "GGUF"'):
        read_bytes(tmp_path, content)


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (1, "must have GGUF version 2 or 3, but has 1"),
        (4, "must have GGUF version 2 or 3, but has 4"),
        (3 << 24, "It is big-endian"),
    ],
)
def test_an_unknown_version_is_an_error(tmp_path: Path, version: int, sentence: str) -> None:
    file = small_file()
    file.version = version
    with pytest.raises(CheckpointError, match=sentence):
        read_bytes(tmp_path, file.build())


HOSTILE_COUNTS = [2**31, 2**32 + 1, 2**63 - 1, 2**63, 2**64 - 1]


@pytest.mark.parametrize("count", HOSTILE_COUNTS)
@pytest.mark.parametrize("field", ["tensor_count", "key_count"])
def test_a_hostile_count_is_refused_before_anything_is_read(
    tmp_path: Path, field: str, count: int
) -> None:
    file = small_file()
    setattr(file, field, count)
    with pytest.raises(CheckpointError, match=f"must be at most .* but is {count}"):
        read_bytes(tmp_path, file.build())


@pytest.mark.parametrize("count", HOSTILE_COUNTS)
@pytest.mark.parametrize("kind", [STRING, U8, F64])
def test_a_hostile_array_length_is_refused(tmp_path: Path, kind: int, count: int) -> None:
    file = GgufBytes()
    file.keys.append(("words", ARRAY, struct.pack("<IQ", kind, count)))
    with pytest.raises(CheckpointError, match='the length of metadata key "words" must be at most'):
        read_bytes(tmp_path, file.build())


@pytest.mark.parametrize("count", HOSTILE_COUNTS)
def test_a_hostile_text_length_is_refused(tmp_path: Path, count: int) -> None:
    file = GgufBytes()
    file.keys.append(("word", STRING, struct.pack("<Q", count)))
    with pytest.raises(CheckpointError, match='the length of metadata key "word" must be at most'):
        read_bytes(tmp_path, file.build())


@pytest.mark.parametrize("count", HOSTILE_COUNTS)
def test_a_hostile_text_length_inside_an_array_is_refused(tmp_path: Path, count: int) -> None:
    file = GgufBytes()
    encoded = struct.pack("<IQ", STRING, 2) + text("fine") + struct.pack("<Q", count)
    file.keys.append(("words", ARRAY, encoded))
    with pytest.raises(CheckpointError, match='metadata key "words"'):
        read_bytes(tmp_path, file.build())


def test_arrays_have_a_limit_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_ARRAY_ELEMENTS", 5)
    file = GgufBytes().add_array("a", U8, [1, 2, 3]).add_array("b", U8, [4, 5, 6])
    with pytest.raises(CheckpointError, match="must have at most 5 elements in total, but have 6"):
        read_bytes(tmp_path, file.build())


def test_a_header_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_HEADER_BYTES", 64)
    file = GgufBytes().add("a", U32, 1).add("b", U32, 2).add("c", U32, 3)
    with pytest.raises(CheckpointError, match="must have at most 64 bytes"):
        read_bytes(tmp_path, file.build())


def test_the_header_of_the_largest_vocabularies_is_within_the_limit() -> None:
    # 262,144 tokens with types and scores, and 514,000 merges, as long as SmolLM2's.
    needed = 262_144 * (16 + 4 + 4) + 514_000 * 17
    assert needed < reader.MAX_HEADER_BYTES // 4 == 16 << 20
    assert reader.MAX_ARRAY_ELEMENTS > 3 * 262_144 + 514_000


def entries(count: int) -> dict[str, GgufBytes]:
    """Give the smallest file with `count` keys, and the smallest one with `count` tensors."""
    keys = GgufBytes(keys=[(f"{i:x}", U8, b"\0") for i in range(count)])
    tensors = GgufBytes(alignment=1).add("general.alignment", U32, 1)
    tensors.tensors = [GgufTensor(f"{i:x}", (1,), b"\0\0\0\0") for i in range(count)]
    return {"the number of metadata keys": keys, "the number of tensors": tensors}


@pytest.mark.parametrize("what", ["the number of metadata keys", "the number of tensors"])
def test_there_is_a_limit_to_keys_and_to_tensors(tmp_path: Path, what: str) -> None:
    most = reader.MAX_ENTRIES
    assert most == 1 << 14
    read_bytes(tmp_path, entries(most)[what].build())
    with pytest.raises(CheckpointError, match=f"{what} must be at most {most}, but is {most + 1}."):
        read_bytes(tmp_path, entries(most + 1)[what].build())


def test_real_files_stay_far_below_the_limits(smollm2: Path) -> None:
    header = read(smollm2)
    assert 20 < len(header.metadata) < reader.MAX_ENTRIES // 50
    assert 100 < len(header.tensors) < reader.MAX_ENTRIES // 50
    begin = min(tensor.offset for tensor in header.tensors.values())
    assert 1 << 20 < begin < reader.MAX_HEADER_BYTES // 10


@pytest.mark.parametrize("sizes", [(2**63, 2), (2**32, 2**32), (2**63, 2**63, 2**63, 2**63)])
def test_a_shape_whose_product_overflows_is_refused(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    file = GgufBytes().add_tensor("huge", sizes, bytes(32))
    with pytest.raises(CheckpointError, match=r'tensor "huge" of model.gguf must end at byte'):
        read_bytes(tmp_path, file.build())


def broken(change: Callable[[GgufBytes], Any]) -> GgufBytes:
    file = small_file()
    change(file)
    return file


BROKEN = {
    "a key twice": (
        broken(lambda f: f.add("a.count", U32, 8)),
        'has the metadata key "a.count" twice',
    ),
    "a tensor twice": (
        broken(lambda f: f.add_tensor("first", (5,), bytes(20))),
        'tensor "first" of model.gguf is declared twice',
    ),
    "tensors that overlap": (
        broken(lambda f: setattr(f.tensors[1], "offset", 64)),
        'tensor "second" of model.gguf must begin at byte 96 .* but begins at 64',
    ),
    "a gap between tensors": (
        broken(lambda f: setattr(f.tensors[1], "offset", 128)),
        "must begin at byte 96 of the tensor data, .* but begins at 128",
    ),
    "a tensor that is not aligned": (
        broken(lambda f: setattr(f.tensors[1], "offset", 100)),
        "must begin at byte 96 of the tensor data, .* but begins at 100",
    ),
    "a hostile offset": (
        broken(lambda f: setattr(f.tensors[1], "offset", 2**64 - 1)),
        f"but begins at {2**64 - 1}",
    ),
    "bytes after the last tensor": (
        broken(lambda f: setattr(f, "tail", bytes(33))),
        "must end with its last tensor at byte",
    ),
    "an alignment of 0": (
        broken(lambda f: f.add("general.alignment", U32, 0)),
        "`general.alignment` must be a power of two .* but is 0",
    ),
    "an alignment of 48": (
        broken(lambda f: f.add("general.alignment", U32, 48)),
        "`general.alignment` must be a power of two .* but is 48",
    ),
    "a huge alignment": (
        broken(lambda f: f.add("general.alignment", U64, 2**40)),
        "`general.alignment` must be a power of two of at most 1048576",
    ),
    "an alignment of another type": (
        broken(lambda f: f.add("general.alignment", STRING, "32")),
        '`general.alignment` must be a power of two .* but is "32"',
    ),
    "an array of arrays": (
        broken(lambda f: f.keys.append(("nested", ARRAY, struct.pack("<IQ", ARRAY, 0)))),
        "no arrays of arrays",
    ),
    "an unknown value type": (
        broken(lambda f: f.keys.append(("odd", 13, bytes(8)))),
        'the type of metadata key "odd" must be one of .* but is 13',
    ),
    "a flag of 2": (
        broken(lambda f: f.keys.append(("odd", BOOL, b"\x02"))),
        'metadata key "odd" must be true or false',
    ),
    "a key that is not UTF-8": (
        broken(lambda f: f.add(b"\xff\xfe", I8, 1)),
        "a metadata key must be UTF-8 text",
    ),
    "an array element that is not UTF-8": (
        broken(lambda f: f.add_array("bad", STRING, ["a", b"b\xe2\x28"])),
        'element 1 of metadata key "bad" must be UTF-8 text, but byte 1 is not',
    ),
    "a scalar tensor": (
        broken(lambda f: f.add_tensor("odd", (), bytes(4))),
        'tensor "odd" of model.gguf must have 1 to 4 dimensions, but has 0',
    ),
    "a tensor of five dimensions": (
        broken(lambda f: f.add_tensor("odd", (1, 1, 1, 1, 1), bytes(4))),
        "must have 1 to 4 dimensions, but has 5",
    ),
    "an empty tensor": (
        broken(lambda f: f.add_tensor("odd", (4, 0), b"")),
        r'tensor "odd" .* but has shape \[0, 4\]',
    ),
    "rows that are not a multiple of the block size": (
        broken(lambda f: f.tensors.append(GgufTensor("odd", (40, 2), bytes(68), block_type=8))),
        r"row length that is a positive multiple of 32, but has shape \[2, 40\]",
    ),
    "an unknown block type": (
        broken(lambda f: f.tensors.append(GgufTensor("odd", (32,), bytes(20), block_type=77))),
        'tensor "odd" of model.gguf has block type number 77; '
        "the supported ones are BF16, F16, F32, IQ4_NL, IQ4_XS, MXFP4, Q2_K, .*, Q8_0[.]$",
    ),
    **{
        f"the block type {name}": (
            broken(
                lambda f, number=number: f.tensors.append(
                    GgufTensor("odd", (256,), bytes(144), block_type=number)
                )
            ),
            f'tensor "odd" of model.gguf has block type {name}; .*, Q8_0[.] Use a {file} file',
        )
        for number, name, file in [
            (16, "IQ2_XXS", "Q2_K"),
            (21, "IQ3_S", "Q3_K_M or IQ4_XS"),
            (29, "IQ1_M", "Q2_K"),
            (33, "Q4_0_8_8", "Q4_0"),
            (34, "TQ1_0", "Q2_K"),
            (40, "NVFP4", "Q4_K_M"),
        ]
    },
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_header_is_an_error_that_says_what_is_wrong(tmp_path: Path, name: str) -> None:
    file, sentence = BROKEN[name]
    with pytest.raises(CheckpointError, match=sentence) as caught:
        read_bytes(tmp_path, file.build())
    assert str(caught.value).startswith("load: ")


def test_control_characters_of_names_are_escaped_in_errors(tmp_path: Path) -> None:
    file = small_file().add_tensor("\x1b[2Jgone\n" + "x" * 500, (4, 0), b"")
    with pytest.raises(CheckpointError) as caught:
        read_bytes(tmp_path, file.build())
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 300


@settings(
    max_examples=300,
    deadline=1000,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_damaged_bytes_give_an_error_or_a_header_but_nothing_else(
    tmp_path: Path, data: st.DataObject
) -> None:
    content = bytearray(small_file().build())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        piece = data.draw(st.binary(min_size=1, max_size=8))
        content[at : at + len(piece)] = piece
    try:
        header = read_bytes(tmp_path, bytes(content))
    except CheckpointError as error:
        assert str(error).startswith("load: ")  # noqa: PT017 - no error is a good outcome too
    else:
        assert all(tensor.offset < len(content) for tensor in header.tensors.values())


def test_a_64_bit_value_keeps_all_its_bits(tmp_path: Path) -> None:
    file = GgufBytes().add("least", I64, -(2**63)).add("most", U64, 2**64 - 1)
    file.add_tensor("t", (1,), bytes(4))
    assert read_bytes(tmp_path, file.build()).metadata == {"least": -(2**63), "most": 2**64 - 1}
