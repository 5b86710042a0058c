"""The tiny checkpoints are valid for other readers: tests the writers before our readers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.data import tiny
from tests.reference.oracle import Oracle


# Not qwen3: transformers' GGUF loader uses its default head_dim instead of the file's.
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_transformers_reads_the_same_model_from_gguf_and_from_the_folder(
    name: str,
    tiny_folder: Callable[[str], Path],
    tiny_gguf: Callable[[str, str], Path],
) -> None:
    file = tiny_gguf(name, "F32")
    ids = list(range(100))
    np.testing.assert_array_equal(
        Oracle(file.parent, gguf_file=file.name).logits(ids), Oracle(tiny_folder(name)).logits(ids)
    )


@pytest.mark.parametrize("storage", tiny.STORAGES)
def test_gguf_holds_every_weight_as_it_says(
    storage: str, tiny_gguf: Callable[[str, str], Path]
) -> None:
    name = tiny.model_for(storage)
    tensors = gguf.GGUFReader(tiny_gguf(name, storage)).tensors
    kinds = {tensor.name: tensor.tensor_type.name for tensor in tensors}
    drawn = tiny.build(name)
    assert len(kinds) == len(drawn.weights)
    assert kinds["blk.1.ffn_down.weight"] == storage
    assert kinds["token_embd.weight"] == storage
    assert kinds["output_norm.weight"] == "F32"
    # The rounding error is no larger than the storage type's.
    stored = tiny.as_stored(drawn, storage).weights["model.layers.0.mlp.up_proj.weight"]
    exact = drawn.weights["model.layers.0.mlp.up_proj.weight"]
    error = np.abs(stored - exact).max() / np.abs(exact).max()
    bits = {"F32": 24, "F16": 11, "BF16": 8, "Q8_0": 8, "Q4_0": 3, "Q4_1": 4, "Q5_0": 4, "Q5_1": 5,
            "IQ4_NL": 3, "MXFP4": 2, "Q2_K": 1, "Q3_K": 2, "Q4_K": 3, "Q5_K": 4, "Q6_K": 5,
            "IQ4_XS": 3}[storage]  # fmt: skip
    assert error <= 2.0**-bits * 1.01


def test_the_same_name_gives_the_same_weights_and_another_name_others() -> None:
    one, two = tiny.build("llama").weights, tiny.build("llama").weights
    assert all(np.array_equal(one[name], two[name]) for name in one)
    other = tiny.build("llama-yarn").weights
    assert not np.array_equal(one["lm_head.weight"], other["lm_head.weight"])


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_tokenizer_file_round_trips_any_text(name: str, tiny_folder: Callable[[str], Path]) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_folder(name) / "tokenizer.json"))
    assert tokenizer.get_vocab_size() < tiny.CONFIGS[name][0]["vocab_size"]
    text = "The sink and the window, 1234 of them.\n\tÄrger 漢字 🙂"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode(" and").tokens == ["Ġand"]
    assert tokenizer.encode("<|im_end|>").ids == [2]
