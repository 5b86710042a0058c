"""What headers say, whether or not a checkpoint loads; compared with the `gguf` package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from sinkstream.checkpoint.describe import FILE_TYPES, TypeShare, describe, describe_opened
from sinkstream.checkpoint.open_tensors import open_tensors
from sinkstream.loading.open_checkpoint import open_checkpoint
from tests.data import tiny
from tests.python.checkpoint.gguf_bytes import (
    ARRAY,
    STRING,
    U32,
    GgufBytes,
    GgufTensor,
    array,
    llama_bytes,
)
from tests.python.checkpoint.split_files import write_parts


@pytest.mark.parametrize("storage", tiny.STORAGES)
def test_types_are_those_of_the_tensors(
    tiny_gguf: Callable[[str, str], Path], storage: str
) -> None:
    path = tiny_gguf(tiny.model_for(storage), storage)
    found = describe(path)
    expected: dict[str, TypeShare] = {}
    for tensor in gguf.GGUFReader(path).tensors:
        share = expected.get(tensor.tensor_type.name, TypeShare(0, 0, 0))
        expected[tensor.tensor_type.name] = TypeShare(
            share.tensors + 1, share.numbers + int(tensor.n_elements), share.bytes + tensor.n_bytes
        )
    assert found.types == expected
    checkpoint = open_checkpoint(path)
    checkpoint.source.close()
    assert found.parameters == sum(t.slot.rows * t.slot.cols for t in checkpoint.tensors)
    assert found.family == "llama"
    assert found.quantization == storage
    assert found.file_bytes == path.stat().st_size
    assert str(found.tokenizer).startswith("gpt2 (")


@pytest.mark.parametrize("name", ["llama", "llama-sharded", "qwen3"])
def test_a_folder_says_the_same(tiny_folder: Callable[[str], Path], name: str) -> None:
    folder = tiny_folder(name)
    found = describe(folder)
    assert found.family == name.removesuffix("-sharded")
    assert found.file_bytes == sum(p.stat().st_size for p in folder.glob("*.safetensors"))
    assert found.quantization == next(iter(found.types))
    assert (found.tokenizer == "tokenizer.json") == (folder / "tokenizer.json").exists()


@pytest.mark.parametrize("name", ["llama", "qwen3", "llama.gguf"])
def test_an_open_checkpoint_is_described_the_same(
    tiny_folder: Callable[[str], Path], tiny_gguf: Callable[[str, str], Path], name: str
) -> None:
    path = tiny_gguf("llama", "Q8_0") if name.endswith("gguf") else tiny_folder(name)
    opened = open_tensors(path)
    opened.source.close()
    assert describe_opened(opened) == describe(path)


def test_all_parts_count(tmp_path: Path) -> None:
    parts = write_parts(tmp_path)
    whole = describe(llama_bytes().write(tmp_path / "w.gguf"))
    found = describe(parts[1])
    assert found.types == whole.types
    assert found.family == "llama"
    assert found.file_bytes == sum(part.stat().st_size for part in parts)


def test_file_types_have_the_names_of_llama_cpp() -> None:
    named = {
        kind.value: kind.name.removeprefix("MOSTLY_").removeprefix("ALL_").removesuffix("_MOE")
        for kind in gguf.LlamaFileType
    }
    assert {number: named.get(number) for number in FILE_TYPES} == FILE_TYPES


def test_a_type_that_cannot_be_loaded_is_measured_by_its_place(tmp_path: Path) -> None:
    file = GgufBytes().add("general.architecture", STRING, "gemma3")
    file.add("general.file_type", U32, 19)
    file.tensors = [
        GgufTensor("a", (256, 3), bytes(66 * 3 + 26), block_type=16),
        GgufTensor("b", (256,), bytes(66), block_type=16),
        GgufTensor("c", (8,), bytes(32), block_type=99),
    ]
    found = describe(file.write(tmp_path / "m.gguf"))
    assert (found.family, found.quantization) == ("gemma3", "IQ2_XXS")
    assert found.types["IQ2_XXS"] == TypeShare(2, 1024, 224 + 96)
    assert found.types["type 99"].tensors == 1


@pytest.mark.parametrize("content", [b"", b"GGUF", b"x" * 100, b"GGUF\x03" + b"\xff" * 60])
def test_a_file_that_is_none_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    found = describe(tmp_path / "m.gguf")
    assert (found.family, found.quantization, found.types) == (None, None, {})
    assert found.file_bytes == len(content)


@pytest.mark.parametrize("kept", [600, 900, -1])
def test_a_file_that_is_cut_says_what_it_begins_with(tmp_path: Path, kept: int) -> None:
    file = llama_bytes().add("general.file_type", U32, 15)
    content = file.build()[:kept]
    (tmp_path / "m.gguf").write_bytes(content)
    found = describe(tmp_path / "m.gguf")
    assert found.family == "llama"
    assert found.file_bytes == len(content)
    if kept == -1:
        assert found.quantization == "Q4_K_M"
        assert found.types["F32"].tensors == len(file.tensors)


def test_odd_values_are_left_out(tmp_path: Path) -> None:
    file = (
        llama_bytes().add("general.file_type", STRING, "Q4_0").add("tokenizer.ggml.model", U32, 1)
    )
    file.keys[0] = ("general.architecture", ARRAY, array(STRING, ["llama"]))
    found = describe(file.write(tmp_path / "m.gguf"))
    assert (found.family, found.quantization, found.tokenizer) == (None, "F32", None)


def test_an_empty_folder_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "awq"}}')
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    found = describe(tmp_path)
    assert (found.family, found.quantization, found.types) == (None, "awq", {})
