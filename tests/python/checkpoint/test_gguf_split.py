"""GGUF files in parts: any part names the model, and an incomplete set is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

import sinkstream
from sinkstream.checkpoint.formats.gguf import MAX_PARTS, existing_parts, part_name
from sinkstream.errors import CheckpointError
from sinkstream.loading.open_checkpoint import open_checkpoint
from tests.data import tiny
from tests.python.checkpoint.gguf_bytes import STRING, U16, GgufBytes, llama_bytes
from tests.python.checkpoint.split_files import set_key, split, write_parts

Change = Callable[[list[GgufBytes]], object]


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def refusal(path: Path) -> str:
    before = open_files()
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert open_files() == before
    return str(caught.value)


def rewrite_in_parts(whole: Path, folder: Path, tensors: int) -> list[Path]:
    """Split a file with the `gguf` package, as llama.cpp's converters do."""
    reader = gguf.GGUFReader(whole)
    writer = gguf.GGUFWriter(folder / "m.gguf", "llama", split_max_tensors=tensors)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = field.contents()
        kind = field.types[0]
        sub = field.types[1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, kind, sub)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.asarray(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("*.gguf"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_gguf(tiny.build("llama"), tmp_path_factory.mktemp("whole") / "w.gguf", "Q8_0")


def test_a_model_in_parts_is_the_model_in_one_file(whole: Path, tmp_path: Path) -> None:
    parts = rewrite_in_parts(whole, tmp_path, 5)
    assert len(parts) > 3
    with sinkstream.load(whole, max_sequences=1) as one:
        ids = one.generate("the cat", max_tokens=12, temperature=0).token_ids
        for part in parts:  # whichever is named
            with sinkstream.load(part, max_sequences=1) as other:
                assert other.path == str(parts[0])
                assert other.capacity == one.capacity
                assert other._native.fingerprint() == one._native.fingerprint()
        with sinkstream.load(parts[-1], max_sequences=1) as other:
            assert other.generate("the cat", max_tokens=12, temperature=0).token_ids == ids
            assert other.tokenizer is not None


@pytest.mark.parametrize("first_is_empty", [False, True])
def test_every_part_opens_the_set_and_closes_it(tmp_path: Path, first_is_empty: bool) -> None:
    before = open_files()
    for part in write_parts(tmp_path, first_is_empty=first_is_empty):
        checkpoint = open_checkpoint(part)
        assert len(checkpoint.tensors) == len(llama_bytes().tensors)
        for tensor in checkpoint.tensors:
            checkpoint.source.read_rows(tensor, 0, tensor.slot.rows)
        checkpoint.source.close()
        assert open_files() == before


def test_a_link_with_another_name_finds_the_parts(tmp_path: Path) -> None:
    parts = write_parts(tmp_path)
    (tmp_path / "model.gguf").symlink_to(parts[1])
    open_checkpoint(tmp_path / "model.gguf").source.close()


def test_links_with_the_names_of_parts_are_followed(tmp_path: Path) -> None:
    """As in a snapshot of the Hugging Face cache, whose files are named by their digest."""
    (tmp_path / "blobs").mkdir()
    for part in write_parts(tmp_path):
        blob = tmp_path / "blobs" / str(hash(part.name))
        part.rename(blob)
        part.symlink_to(blob)
    open_checkpoint(tmp_path / "m-00002-of-00003.gguf").source.close()


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    parts = write_parts(tmp_path)
    parts[1].unlink()
    for part in (parts[0], parts[2]):
        assert refusal(part) == (
            f"load: all 3 parts of {part.name} must be in its folder, but m-00002-of-00003.gguf "
            "is missing."
        )


def test_many_missing_parts_are_counted(tmp_path: Path) -> None:
    first, *others = write_parts(tmp_path, 9)
    for part in others:
        part.unlink()
    assert refusal(first).endswith(
        "but m-00002-of-00009.gguf, m-00003-of-00009.gguf, m-00004-of-00009.gguf and 5 more are "
        "missing."
    )


def test_a_dangling_link_is_named(tmp_path: Path) -> None:
    parts = write_parts(tmp_path)
    parts[1].unlink()
    parts[1].symlink_to("gone")
    assert '"m-00002-of-00003.gguf" must be a regular file, but is a link to "gone"' in refusal(
        parts[0]
    )


@pytest.mark.parametrize("kept", [0, 3, 40, -32])
def test_a_truncated_part_is_named(tmp_path: Path, kept: int) -> None:
    parts = write_parts(tmp_path)
    os.truncate(parts[1], kept if kept >= 0 else parts[1].stat().st_size + kept)
    assert "m-00002-of-00003.gguf" in refusal(parts[0])


def test_parts_that_have_changed_names_are_out_of_order(tmp_path: Path) -> None:
    _, second, third = write_parts(tmp_path)
    second.rename(tmp_path / "x")
    third.rename(second)
    (tmp_path / "x").rename(third)
    assert refusal(second) == (
        "load: m-00002-of-00003.gguf: `split.no` must be 1, as the name says, but is 2. The parts "
        "are out of order."
    )


def _of_other_total(parts: list[GgufBytes]) -> None:
    set_key(parts[2], "split.tensors.count", U16, 13)


def _with_wrong_total(parts: list[GgufBytes]) -> None:
    for part in parts:
        set_key(part, "split.tensors.count", U16, 13)


def _of_other_name(parts: list[GgufBytes]) -> None:
    parts[0].add("general.name", STRING, "a")
    parts[2].add("general.name", STRING, "b")


def _of_other_count(parts: list[GgufBytes]) -> None:
    set_key(parts[1], "split.count", U16, 4)


def _with_a_repeated_tensor(parts: list[GgufBytes]) -> None:
    parts[2].tensors.append(parts[0].tensors[0])


def _without_its_number(parts: list[GgufBytes]) -> None:
    parts[1].keys = [key for key in parts[1].keys if key[0] != "split.no"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            _of_other_total,
            "m-00003-of-00003.gguf: `split.tensors.count` must be 11, as in m-00001-of-00003.gguf, "
            "but is 13. The parts belong to different models.",
        ),
        (
            _with_wrong_total,
            "m-00001-of-00003.gguf: `split.tensors.count` must be 11, the number of tensors in all "
            "3 parts, but is 13.",
        ),
        (
            _of_other_name,
            'm-00003-of-00003.gguf: `general.name` must be "a", as in m-00001-of-00003.gguf, but '
            'is "b". The parts belong to different models.',
        ),
        (
            _of_other_count,
            "m-00002-of-00003.gguf: `split.count` must be 3, as the name says, but is 4.",
        ),
        (
            _with_a_repeated_tensor,
            'tensor "token_embd.weight" is both in m-00001-of-00003.gguf and in '
            "m-00003-of-00003.gguf. The parts belong to different models.",
        ),
        (
            _without_its_number,
            "m-00002-of-00003.gguf: `split.no` must be an integer from 0 to 99999, but is missing.",
        ),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    tmp_path: Path, change: Change, sentence: str
) -> None:
    assert refusal(write_parts(tmp_path, change=change)[0]) == f"load: {sentence}"


def test_a_part_of_another_model_lacks_tensors(tmp_path: Path) -> None:
    def exchange(parts: list[GgufBytes]) -> None:
        parts[2].tensors = split(llama_bytes(layers=2), 3)[2].tensors[: len(parts[2].tensors)]

    assert "blk.1." in refusal(write_parts(tmp_path, change=exchange)[0])


def test_a_part_whose_name_does_not_lead_to_the_others_is_refused(tmp_path: Path) -> None:
    part = write_parts(tmp_path)[1].rename(tmp_path / "m.gguf")
    assert refusal(part) == (
        "load: the name of m.gguf must end in -00002-of-00003.gguf, but does not. It is "
        "one of several parts, and the others are found by their names."
    )


def test_too_many_parts_are_refused(tmp_path: Path) -> None:
    count = MAX_PARTS + 1
    part = split(llama_bytes(), count)[0]
    path = part.write(tmp_path / f"m-00001-of-{count:05}.gguf")
    assert f"must be one of at most {MAX_PARTS} parts, but is one of {count}" in refusal(path)


@pytest.mark.parametrize(
    "name", ["m.gguf", "m-1-of-3.gguf", "m-00001-of-00003.bin", "m-00001-of-00003.gguf.part"]
)
def test_other_names_are_not_those_of_parts(name: str) -> None:
    assert part_name(name) is None


def test_the_parts_that_exist_are_listed_in_order(tmp_path: Path) -> None:
    parts = write_parts(tmp_path)
    assert existing_parts(parts[2]) == parts
    parts[0].unlink()
    assert existing_parts(parts[2]) == parts[1:]
    assert existing_parts(tmp_path / "m.gguf") == [tmp_path / "m.gguf"]
