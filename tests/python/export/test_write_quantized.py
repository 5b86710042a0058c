"""`sinkstream quantize` writes what llama.cpp's quantizer writes, or nothing at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import libgguf
import numpy as np
import pytest
import torch

import sinkstream
from sinkstream.checkpoint.describe import FILE_TYPES, describe
from sinkstream.cli import main
from sinkstream.errors import CheckpointError, InvalidArgument
from sinkstream.export import write_quantized as module
from sinkstream.export.write_quantized import rounded_rows, write_quantized
from tests.data import tiny
from tests.data.family_gguf import write_family_gguf
from tests.data.family_models import build_family
from tests.python.checkpoint.split_files import write_parts


@pytest.fixture(scope="module")
def source(tiny_gguf: Callable[[str, str], Path]) -> Path:
    return tiny_gguf("llama-wide", "F16")


def read(path: Path) -> tuple[dict[str, Any], dict[str, gguf.ReaderTensor]]:
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    fields = {name: value for name, value in fields.items() if not name.startswith("GGUF.")}
    return fields, {tensor.name: tensor for tensor in reader.tensors}


@pytest.mark.parametrize("mix", ["Q4_K_M", "Q3_K_L", "IQ4_XS", "Q8_0"])
def test_the_file_is_the_source_with_rounded_matrices(
    source: Path, tmp_path: Path, mix: str
) -> None:
    seen: list[tuple[int, int]] = []
    target = tmp_path / "out.gguf"
    written = write_quantized(source, target, mix, threads=1, progress=lambda *at: seen.append(at))
    assert written.path == target
    assert written.bytes == target.stat().st_size < written.bytes_before
    assert seen == sorted(seen)
    assert seen[-1] == (written.bytes_before, written.bytes_before)
    (before, tensors), (after, rounded) = read(source), read(target)
    named = {"general.file_type", "general.quantization_version"}
    assert {k: v for k, v in after.items() if k not in named} == {
        k: v for k, v in before.items() if k not in named
    }
    assert FILE_TYPES[after["general.file_type"]] == describe(target).quantization == mix
    assert list(rounded) == list(tensors)
    for name, tensor in rounded.items():
        values = gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type)
        assert tensor.tensor_type.name == written.types[name]
        if values.ndim == 1:
            np.testing.assert_array_equal(tensor.data, tensors[name].data)
            continue
        kind = int(tensor.tensor_type)
        blocks = np.asarray(libgguf.quantize_rows(values, kind)).view(np.uint8)
        np.testing.assert_array_equal(tensor.data.view(np.uint8).reshape(blocks.shape), blocks)
        found = libgguf.dequantize_rows(blocks, kind).reshape(values.shape)
        assert np.abs(found - values).mean() < 0.2 * np.abs(values).mean()
    with sinkstream.load(target, window=60) as model:
        assert len(model.generate([1, 2, 3], max_tokens=4, ignore_eos=True).token_ids) == 4


@pytest.mark.parametrize("threads", [0, 2**70])
def test_an_impossible_number_of_threads_is_refused(
    source: Path, tmp_path: Path, threads: int
) -> None:
    with pytest.raises(InvalidArgument, match=r"^quantize: `threads` must be in \[1, 1024\], but"):
        write_quantized(source, tmp_path / "out.gguf", "Q4_0", threads=threads)


def test_the_number_of_threads_changes_nothing(source: Path, tmp_path: Path) -> None:
    for threads in (1, 3):
        write_quantized(source, tmp_path / str(threads), "Q4_0", threads=threads)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "3").read_bytes()


@pytest.mark.parametrize("kind", ["F32", "BF16"])
def test_other_sources_are_read(
    tiny_gguf: Callable[[str, str], Path], tmp_path: Path, kind: str
) -> None:
    target = tmp_path / "out.gguf"
    write_quantized(tiny_gguf("llama", kind), target, "Q8_0", threads=1)
    with (
        sinkstream.load(target) as model,
        sinkstream.load(tiny_gguf("llama", kind), quantize="int8") as rounded,
    ):
        assert model._native.fingerprint() == rounded._native.fingerprint()


@pytest.mark.parametrize("first_is_empty", [False, True], ids=["", "metadata alone first"])
def test_parts_become_one_file(tmp_path: Path, first_is_empty: bool) -> None:
    parts = write_parts(tmp_path, first_is_empty=first_is_empty)
    write_quantized(parts[1], tmp_path / "merged.gguf", "Q4_0", threads=1)
    metadata, tensors = read(tmp_path / "merged.gguf")
    assert not [name for name in metadata if name.startswith("split.")]
    assert metadata["general.architecture"] == "llama"
    assert tensors.keys() == {name for part in parts for name in read(part)[1]}


def test_a_file_that_exists_is_replaced_only_on_request(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    target.write_text("mine")
    with pytest.raises(InvalidArgument, match=r"must not exist, but .* does\. --force"):
        write_quantized(source, target, "Q4_0", threads=1)
    assert target.read_text() == "mine"
    write_quantized(source, target, "Q4_0", threads=1, replaces=True)
    assert describe(target).quantization == "Q4_0"


def test_a_file_may_replace_its_source(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "model.gguf"
    target.write_bytes(source.read_bytes())
    write_quantized(target, target, "Q4_0", threads=1, replaces=True)
    assert describe(target).quantization == "Q4_0"


def test_a_quantized_source_is_refused(
    tiny_gguf: Callable[[str, str], Path], tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r'or 32-bit, but "token_embd\.weight" is Q8_0'):
        write_quantized(tiny_gguf("llama", "Q8_0"), tmp_path / "out.gguf", "Q4_0")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e10])
def test_a_number_that_no_block_holds_is_an_error_and_leaves_no_file(
    tmp_path: Path, value: float
) -> None:
    model = tiny.build("llama-wide")
    model.weights["model.layers.1.mlp.up_proj.weight"][3, 5] = value
    path = tiny.write_gguf(model, tmp_path / "model.gguf", "F32")
    where = r'tensor "blk\.1\.ffn_up\.weight" of model\.gguf must hold finite'
    with pytest.raises(CheckpointError, match=where):
        write_quantized(path, tmp_path / "out.gguf", "Q4_K_M", threads=1)
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_no_file(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(module, "_write_tensors", fail)
    with pytest.raises(OSError, match="No space left"):
        write_quantized(source, tmp_path / "out.gguf", "Q4_0", threads=1)
    assert list(tmp_path.iterdir()) == []


def test_equal_types_are_copied() -> None:
    assert rounded_rows(b"\x00\x7c", "F16", 1, "F16") == b"\x00\x7c"


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("to", ["F32", "F16", "BF16"])
def test_numbers_of_16_bits_go_to_the_nearest_one(kind: str, to: str) -> None:
    types = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    numbers = torch.randn(4000, generator=torch.Generator().manual_seed(1)) * 100
    numbers[:4] = torch.tensor([0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8])  # ties of bfloat16
    stored = numbers.to(types[kind])
    found = rounded_rows(stored.view(torch.uint8).numpy().tobytes(), kind, 1, to)
    assert found == stored.to(types[to]).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    ("number", "to"),
    [(1e5, "F16"), (float("inf"), "F32"), (float("nan"), "BF16"), (3.4e38, "BF16")],
)
def test_a_number_without_a_near_one_is_refused(number: float, to: str) -> None:
    content = np.array([1, number], "<f4")
    kind = "F32"
    if to == "F32":
        content, kind = content.astype("<f2"), "F16"
    with pytest.raises(ValueError, match=f"finite numbers within the range of {to}"):
        rounded_rows(content.tobytes(), kind, 1, to)


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    model = tiny.build("llama-wide")
    path = tiny.write_gguf(model, tmp_path / "model.gguf", "F32")
    slow = (
        "import sys, time, sinkstream.export.write_quantized as w\n"
        "from sinkstream.cli import main\n"
        "w._pad = lambda *_: time.sleep(60)\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", slow, "quantize", str(path), str(tmp_path / "out.gguf")]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".*.part")) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in said
    assert list(tmp_path.iterdir()) == [path]


def test_the_command_writes_a_file_and_says_so(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.gguf"
    command = ("quantize", str(source), str(target), "--threads", "1", "--type")
    assert main([*command, "q8_0"]) == 0
    assert capfd.readouterr().out.startswith(f"{target}: Q8_0, ")
    assert main([*command, "Q9"]) == 2
    said = capfd.readouterr().err
    assert '"Q4_K_M"' in said
    assert 'but is "Q9".' in said


def test_tensors_that_hold_several_weights_stay_whole(
    tmp_path: Path, tiny_gguf: Callable[[str, str], Path]
) -> None:
    source, target = tiny_gguf("phi3", "F32"), tmp_path / "q.gguf"
    write_quantized(source, target, "Q8_0", threads=1)
    written = gguf.GGUFReader(target).tensors
    assert [t.name for t in written] == [t.name for t in gguf.GGUFReader(source).tensors]
    assert "blk.0.attn_qkv.weight" in [tensor.name for tensor in written]
    with sinkstream.load(target, window=60) as model:
        found = model._native.fingerprint()
    with sinkstream.load(tiny_gguf("phi3", "Q8_0"), window=60) as model:
        assert model._native.fingerprint() == found


@pytest.mark.parametrize("mix", ["Q4_K_M", "F16"])
@pytest.mark.parametrize("family", ["gpt_oss", "qwen2_moe"])
def test_routers_and_the_biases_of_experts_keep_their_type(
    tmp_path: Path, family: str, mix: str
) -> None:
    source = write_family_gguf(build_family(family, num_hidden_layers=2), tmp_path / "m.gguf")
    types = write_quantized(source, tmp_path / "q.gguf", mix, threads=1).types
    for name, kind in types.items():
        is_kept = name.endswith((".bias", "norm.weight", "sinks.weight")) or ".ffn_gate_inp" in name
        assert (kind == "F32") == is_kept, name
    with sinkstream.load(tmp_path / "q.gguf", window=60) as model:
        assert len(model.generate([1, 2, 3], max_tokens=4, ignore_eos=True).token_ids) == 4


def test_routers_of_a_folder_in_16_bits_are_written_in_32(tmp_path: Path) -> None:
    model = build_family("qwen2_moe", num_hidden_layers=2).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    write_quantized(tmp_path / "model", tmp_path / "q.gguf", "Q8_0", threads=1)
    _, tensors = read(tmp_path / "q.gguf")
    layer = model.model.layers[1].mlp
    for name, weight in (
        ("ffn_gate_inp", layer.gate.weight),
        ("ffn_gate_inp_shexp", layer.shared_expert_gate.weight[0]),
    ):
        tensor = tensors[f"blk.1.{name}.weight"]
        assert tensor.tensor_type.name == "F32"
        np.testing.assert_array_equal(tensor.data, weight.detach().float().numpy())
    assert tensors["blk.1.ffn_up_exps.weight"].tensor_type.name == "Q8_0"
