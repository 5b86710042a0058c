"""Opening complete GGUF files: the description, its tensors, and reading them."""

from __future__ import annotations

import os
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sinkstream.checkpoint.bounded_file import File
from sinkstream.checkpoint.families import ARCHITECTURES
from sinkstream.checkpoint.formats.gguf_header import read_gguf_header
from sinkstream.checkpoint.spec import weight_slots
from sinkstream.errors import CheckpointError
from sinkstream.loading.open_checkpoint import open_checkpoint
from tests.data import tiny
from tests.python.checkpoint.gguf_bytes import F32, I32, STRING, U32, GgufBytes, llama_bytes

TinyGguf = Callable[[str, str], Path]


def test_smollm2_is_described_correctly(smollm2: Path) -> None:
    checkpoint = open_checkpoint(smollm2)
    spec = checkpoint.spec
    assert (spec.layers, spec.hidden_size, spec.heads, spec.kv_heads) == (30, 576, 9, 3)
    assert (spec.head_dim, spec.intermediate_size, spec.vocab_size) == (64, 1536, 49152)
    assert spec.trained_length == 8192
    assert spec.final_norm.eps == pytest.approx(1e-5)
    assert spec.ropes[0].pairing == "interleaved"
    assert spec.ropes[0].inverse_frequencies[1] == pytest.approx(100_000 ** (-1 / 32), rel=1e-12)
    assert spec.tie_embeddings
    (block,) = spec.blocks
    assert not any((block.attention.qkv_bias, block.attention.output_bias, block.dense.bias))
    assert block.attention.qk_norm == "none"
    assert [tensor.slot for tensor in checkpoint.tensors] == list(weight_slots(spec))
    assert checkpoint.tensors[0].storage == "Q8_0"
    assert checkpoint.text.tokenizer is not None
    assert checkpoint.text.tokenizer.get_vocab_size() == 49152
    assert 2 in checkpoint.text.end_token_ids
    checkpoint.source.close()


def test_the_header_of_smollm2_reads_in_under_a_second(smollm2: Path) -> None:
    import time

    def once() -> float:
        begin = time.perf_counter()
        file = File(smollm2)
        read_gguf_header(file)
        file.close()
        return time.perf_counter() - begin

    assert min(once() for _ in range(5)) < 1  # it takes about 0.1 s, the gguf package 1.8 s


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_rows_read_are_the_rows_written(tiny_gguf: TinyGguf, family: str) -> None:
    checkpoint = open_checkpoint(tiny_gguf(family, "F32"))
    weights = tiny.build(family).weights
    names = {"embedding": "model.embed_tokens.weight", "layers.1.down": "model.layers.1.mlp."}
    for tensor in checkpoint.tensors:
        for slot, start in names.items():
            if tensor.slot.name != slot:
                continue
            wanted = next(value for name, value in weights.items() if name.startswith(start)
                          and value.shape == (tensor.slot.rows, tensor.slot.cols))  # fmt: skip
            content = checkpoint.source.read_rows(tensor, 3, tensor.slot.rows)
            found = np.frombuffer(content, np.float32).reshape(-1, tensor.slot.cols)
            np.testing.assert_array_equal(found, wanted[3:])
    checkpoint.source.close()


@pytest.mark.parametrize("storage", tiny.STORAGES)
def test_every_storage_opens(tiny_gguf: TinyGguf, storage: str) -> None:
    checkpoint = open_checkpoint(tiny_gguf(tiny.model_for(storage), storage))
    assert {tensor.storage for tensor in checkpoint.tensors} == {"F32", storage}
    checkpoint.source.close()


def test_a_file_without_a_tokenizer_opens(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(llama_bytes().write(tmp_path / "m.gguf"))
    assert checkpoint.text.tokenizer is None
    assert checkpoint.spec.tie_embeddings
    checkpoint.source.close()


def test_sampling_defaults_come_from_the_metadata(tmp_path: Path) -> None:
    file = llama_bytes().add("general.sampling.temp", F32, 0.5)
    file.add("general.sampling.top_k", U32, 20)
    checkpoint = open_checkpoint(file.write(tmp_path / "m.gguf"))
    assert checkpoint.generation == {"temperature": 0.5, "top_k": 20}
    checkpoint.source.close()


@pytest.mark.parametrize(
    ("name", "kind", "value", "expected", "sentence"),
    [
        ("top_k", I32, -1, {"top_k": 0}, "It is read as 0."),
        ("temp", F32, float("nan"), {}, "but is nan. It is ignored."),
        ("temp", F32, float("inf"), {}, "but is inf. It is ignored."),
        ("temp", STRING, "0.7", {}, 'but is "0.7". It is ignored.'),
        ("min_p", F32, 2.0, {"min_p": 1.0}, "It is read as 1."),
        ("penalty_repeat", F32, 0.0, {}, "but is 0.0. It is ignored."),
    ],
)
def test_sampling_defaults_out_of_range_cause_a_warning(
    tmp_path: Path, name: str, kind: int, value: Any, expected: dict[str, Any], sentence: str
) -> None:
    file = llama_bytes().add(f"general.sampling.{name}", kind, value)
    with pytest.warns(UserWarning, match=f"`general.sampling.{name}` must be .*{sentence}"):
        checkpoint = open_checkpoint(file.write(tmp_path / "m.gguf"))
    assert checkpoint.generation == expected
    checkpoint.source.close()


def test_rope_freqs_divide_the_frequencies(tmp_path: Path) -> None:
    plain = open_checkpoint(llama_bytes().write(tmp_path / "plain.gguf"))
    divisors = struct.pack("<8f", *[1.0] * 4, *[8.0] * 4)
    file = llama_bytes().add_tensor("rope_freqs.weight", (8,), divisors)
    scaled = open_checkpoint(file.write(tmp_path / "scaled.gguf"))
    before, after = (c.spec.ropes[0].inverse_frequencies for c in (plain, scaled))
    assert after == before[:4] + tuple(value / 8 for value in before[4:])
    plain.source.close()
    scaled.source.close()


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_divisors_out_of_range_are_refused(tmp_path: Path, value: float) -> None:
    file = llama_bytes().add_tensor("rope_freqs.weight", (8,), struct.pack("<8f", *[value] * 8))
    with pytest.raises(CheckpointError, match=r'tensor "rope_freqs.weight" must hold numbers from'):
        open_checkpoint(file.write(tmp_path / "m.gguf"))


def test_every_mismatch_is_listed_at_once(tmp_path: Path) -> None:
    file = llama_bytes()
    by_name = {tensor.name: tensor for tensor in file.tensors}
    by_name["token_embd.weight"].sizes = (5, 32)
    by_name["blk.0.ffn_norm.weight"].name = "blk.0.odd.weight"
    by_name["output_norm.weight"].block_type = 8
    by_name["output_norm.weight"].content = bytes(34)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(file.write(tmp_path / "m.gguf"))
    assert str(caught.value) == (
        "load: m.gguf does not match its own description in 4 places:\n"
        '  tensor "token_embd.weight" must have shape [5, 32], but has [32, 5]\n'
        '  tensor "blk.0.ffn_norm.weight" of shape [32] is missing\n'
        '  tensor "output_norm.weight" must be stored as one of BF16, F16, F32, but is Q8_0\n'
        '  tensor "blk.0.odd.weight" of shape [32] belongs to no weight of a llama decoder with '
        "1 layers"
    )


def test_a_file_without_weights_says_so(tmp_path: Path) -> None:
    file = llama_bytes()
    file.tensors = []
    with pytest.raises(CheckpointError, match=r"m\.gguf must hold the model's weights, but has no"):
        open_checkpoint(file.write(tmp_path / "m.gguf"))


def test_a_long_list_of_mismatches_is_cut_at_twenty(tmp_path: Path) -> None:
    file = llama_bytes(layers=4)
    file.tensors = file.tensors[:1]
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(file.write(tmp_path / "m.gguf"))
    lines = str(caught.value).splitlines()
    assert len(lines) == 1 + 20 + 1
    assert "37 places" in lines[0]
    assert lines[-1] == "  and 17 more"


def test_a_single_mismatch_is_one_sentence(tmp_path: Path) -> None:
    file = llama_bytes().add_tensor("output.bias", (4, 2), bytes(32))
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(file.write(tmp_path / "m.gguf"))
    assert str(caught.value) == (
        'load: m.gguf: tensor "output.bias" of shape [2, 4] belongs to no weight of a llama '
        "decoder with 1 layers."
    )


@pytest.mark.parametrize("name", ["cls.weight", "blk.1.attn_q.weight", "vx.blk.0.ln.bias"])
def test_a_tensor_outside_the_decoder_causes_a_warning(tmp_path: Path, name: str) -> None:
    file = llama_bytes().add_tensor(name, (4, 2), bytes(32))
    with pytest.warns(UserWarning, match="m.gguf: tensor") as caught:
        open_checkpoint(file.write(tmp_path / "m.gguf")).source.close()
    assert str(caught[0].message) == (
        f'load: m.gguf: tensor "{name}" of shape [2, 4] belongs to no weight of a llama decoder '
        "with 1 layers. It is not read."
    )


def test_tensors_for_images_and_sound_cause_one_warning(tmp_path: Path) -> None:
    file = llama_bytes()
    for name in ("mm.0.weight", "v.blk.0.ln.bias", "a.blk.0.ln.bias"):
        file.add_tensor(name, (4, 2), bytes(32))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        open_checkpoint(file.write(tmp_path / "m.gguf")).source.close()
    assert [str(warning.message) for warning in caught] == [
        'load: m.gguf: tensor "mm.0.weight" and 2 more are for images or sound and are not '
        "read. The model takes only text."
    ]


@pytest.mark.parametrize("name", ["blk.1.nextn.eh_proj.weight", "blk.0.nextn.enorm.weight"])
def test_tensors_that_predict_further_tokens_are_ignored(tmp_path: Path, name: str) -> None:
    file = llama_bytes().add_tensor(name, (4, 2), bytes(32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_checkpoint(file.write(tmp_path / "m.gguf")).source.close()


@pytest.mark.parametrize(
    "name", ["blk.0.attn_q.bias.x", "blk.x", "output_norm.bias", "position_embd.weight",
             "token_embd_norm.weight"]
)  # fmt: skip
def test_a_tensor_that_llama_cpp_would_compute_with_is_refused(tmp_path: Path, name: str) -> None:
    file = llama_bytes().add_tensor(name, (4, 2), bytes(32))
    with pytest.raises(CheckpointError, match=f'tensor "{name}" of shape .* belongs to no weight'):
        open_checkpoint(file.write(tmp_path / "m.gguf"))


def test_an_output_head_of_its_own_is_used(tmp_path: Path) -> None:
    head = np.arange(160, dtype=np.float32).tobytes()
    file = llama_bytes().add_tensor("output.weight", (32, 5), head)
    checkpoint = open_checkpoint(file.write(tmp_path / "m.gguf"))
    assert not checkpoint.spec.tie_embeddings
    assert checkpoint.source.read_rows(checkpoint.tensors[-1], 0, 5) == head
    checkpoint.source.close()


def test_an_unknown_architecture_is_an_error_that_lists_the_known(tmp_path: Path) -> None:
    file = GgufBytes().add("general.architecture", STRING, "gpt2")
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(file.write(tmp_path / "m.gguf"))
    known = ", ".join(sorted(ARCHITECTURES))
    sentence = f'load: m.gguf has architecture "gpt2"; the supported ones are {known}.'
    assert str(caught.value) == sentence


def test_a_file_without_an_architecture_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"`general.architecture` must be a string, but is miss"
    ):
        open_checkpoint(GgufBytes().write(tmp_path / "m.gguf"))


def test_an_adapter_is_refused_by_name(tmp_path: Path) -> None:
    file = GgufBytes().add("general.architecture", STRING, "llama")
    file.add("general.type", STRING, "adapter").add_tensor("blk.0.attn_q.weight.lora_a", (4,), b"")
    file.tensors[0].content = bytes(16)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(file.write(tmp_path / "m.gguf"))
    assert str(caught.value) == (
        "load: m.gguf must be a model, but is a LoRA adapter. Merge the adapter into its "
        "model first."
    )


@pytest.mark.parametrize("count", [0, 1])
def test_a_file_merged_from_parts_opens(tmp_path: Path, count: int) -> None:
    file = llama_bytes().add("split.no", U32, 0).add("split.count", U32, count)
    file.add("split.tensors.count", U32, 12)
    open_checkpoint(file.write(tmp_path / "m.gguf")).source.close()


def test_sizes_of_every_layer_open(tmp_path: Path) -> None:
    file = llama_bytes(layers=2)
    file.keys = [key for key in file.keys if key[0] != "llama.attention.head_count_kv"]
    file.add_array("llama.attention.head_count_kv", U32, [1, 1])
    checkpoint = open_checkpoint(file.write(tmp_path / "m.gguf"))
    assert checkpoint.spec.kv_heads == 1
    checkpoint.source.close()


def test_a_tokenizer_larger_than_the_vocabulary_is_an_error(tmp_path: Path) -> None:
    from tests.data.tiny_tokenizer import TinyTokenizer

    model = tiny.TinyModel("wide", *_narrow_vocabulary(), TinyTokenizer("smollm"))
    path = tiny.write_gguf(model, tmp_path / "m.gguf")
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert str(caught.value) == (
        "load: the tokenizer's ids must be in [0, 128), the model's vocabulary, but 285 is not. "
        "The model has a vocabulary of 128 tokens, the tokenizer one of 286."
    )


def _narrow_vocabulary() -> tuple[dict[str, object], tiny.Weights]:
    model = tiny.build("llama-one-layer")
    weights = {
        name: value[:128] if value.shape[0] == model.config["vocab_size"] else value
        for name, value in model.weights.items()
    }
    return {**model.config, "vocab_size": 128}, weights


def test_a_file_that_shrinks_while_it_is_read_is_an_error_that_names_the_tensor(
    tmp_path: Path,
) -> None:
    path = llama_bytes().write(tmp_path / "m.gguf")
    checkpoint = open_checkpoint(path)
    os.truncate(path, path.stat().st_size - 64)
    for tensor in checkpoint.tensors[:-1]:
        checkpoint.source.read_rows(tensor, 0, tensor.slot.rows)
    with pytest.raises(CheckpointError, match=r'm.gguf must hold 128 bytes for tensor "output_nor'):
        checkpoint.source.read_rows(checkpoint.tensors[-1], 0, 32)
    checkpoint.source.close()


def test_a_closed_checkpoint_says_so(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(llama_bytes().write(tmp_path / "m.gguf"))
    checkpoint.source.close()
    checkpoint.source.close()
    with pytest.raises(CheckpointError, match=r"m.gguf is closed"):
        checkpoint.source.read_rows(checkpoint.tensors[0], 0, 1)


@pytest.mark.parametrize(("begin", "end"), [(-1, 1), (0, 6), (3, 2), (5, 2**63)])
def test_rows_outside_the_tensor_are_refused(tmp_path: Path, begin: int, end: int) -> None:
    checkpoint = open_checkpoint(llama_bytes().write(tmp_path / "m.gguf"))
    with pytest.raises(CheckpointError, match=r"must lie in \[0, 5\]"):
        checkpoint.source.read_rows(checkpoint.tensors[0], begin, end)
    checkpoint.source.close()


def test_a_failed_opening_leaves_no_file_open(tmp_path: Path) -> None:
    file = llama_bytes().add_tensor("output.bias", (4, 2), bytes(32))
    path = file.write(tmp_path / "m.gguf")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(CheckpointError):
            open_checkpoint(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
