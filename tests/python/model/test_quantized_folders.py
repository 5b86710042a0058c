"""Models of quantized Hugging Face folders, compared with transformers on the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from sinkstream import _core
from tests.data import quantized_folders as quantized
from tests.data import tiny
from tests.data.family_models import save_family
from tests.data.quantized_folders import SCHEMES, Scheme
from tests.python.lanes import products
from tests.python.model.test_forward import assert_close, load, random_ids
from tests.reference.oracle import Oracle

TABLES = [name for name, supported in _core.kernel_tables() if supported]
EACH_TYPE = (
    Scheme("awq", group=64, model="llama-wide"),
    Scheme("gptq", bits=8, group=64, act_order=True, model="llama-wide"),
    Scheme("fp8", bits=8, group=128, scale="float32", model="llama-wide"),
)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_logits_equal_those_of_transformers_on_the_dequantized_weights(
    scheme: Scheme, tmp_path: Path, threads: int
) -> None:
    model = quantized.write(scheme, tmp_path / "quantized")
    oracle = Oracle(tiny.write_folder(model, tmp_path / "plain"))
    with load(tmp_path / "quantized", threads) as found:
        ids = random_ids(found.spec.vocab_size, 1, 90)
        assert_close(found.forward(ids)[0], oracle.logits(ids[0].tolist()), 1e-4)


@pytest.mark.parametrize(
    ("scheme", "table", "dtype", "error"),
    products(EACH_TYPE, TABLES, [("bfloat16", 0.1), ("float32", 1e-4), ("int16", 1e-3)]),
)
def test_every_table_computes_the_same_model_alone_and_in_a_batch(
    scheme: Scheme,
    table: str,
    dtype: Any,
    error: float,
    tmp_path: Path,
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SINKSTREAM_KERNELS", table)
    model = quantized.write(scheme, tmp_path / "quantized")
    oracle = Oracle(tiny.write_folder(model, tmp_path / "plain"))
    with load(tmp_path / "quantized", threads, dtype=dtype) as found:
        ids = random_ids(found.spec.vocab_size, 3, 40)
        together = found.forward(ids)
        for row in range(3):
            alone = found.forward(ids[row : row + 1])[0]
            assert torch.equal(together[row], alone)
        assert_close(together[0], oracle.logits(ids[0].tolist()), error)
        one = torch.cat([found.forward(ids[:1, : n + 1])[0, -1:] for n in range(3)])
        assert torch.equal(one, together[0, :3])


@pytest.mark.parametrize(
    "scheme",
    [
        Scheme("awq"),
        Scheme("gptq", act_order=True, symmetric=True),
        Scheme("packed", symmetric=True, scale="bfloat16"),
        Scheme("fp8", bits=8, group=0, scale="float32"),
    ],
    ids=lambda scheme: scheme.name,
)
def test_experts_are_the_same_model_quantized_as_dequantized(
    scheme: Scheme, tmp_path: Path, threads: int
) -> None:
    sizes = {"num_hidden_layers": 2, "moe_intermediate_size": 64}
    config = save_family("qwen3_moe", tmp_path / "whole", **sizes).config.to_dict()
    tensors = load_file(tmp_path / "whole" / "model.safetensors")
    weights = {name: tensor.numpy() for name, tensor in tensors.items()}
    whole = tiny.TinyModel("qwen3_moe", config, weights, None)
    stored = quantized.write(scheme, tmp_path / "quantized", whole)
    tiny.write_folder(stored, tmp_path / "plain")
    with load(tmp_path / "quantized", threads) as found, load(tmp_path / "plain", threads) as same:
        ids = random_ids(found.spec.vocab_size, 1, 90)
        assert_close(found.forward(ids)[0], same.forward(ids)[0].numpy(), 1e-4)


def test_what_is_quantized_in_the_folder_stays_as_it_is(tmp_path: Path, threads: int) -> None:
    quantized.write(Scheme("awq"), tmp_path / "awq")
    with (
        pytest.warns(
            UserWarning, match=r'"model.layers.0.self_attn.q_proj.qweight" \(INT4\) and 20 more are'
        ),
        load(tmp_path / "awq", threads, quantize="int8") as rounded,
    ):
        assert rounded.forward(random_ids(rounded.spec.vocab_size, 1, 5)).isfinite().all()


def test_the_order_of_columns_is_part_of_the_fingerprint(tmp_path: Path, threads: int) -> None:
    found = set()
    for ordered in (False, True):
        scheme = Scheme("gptq", group=-1, act_order=ordered)
        quantized.write(scheme, tmp_path / scheme.name)
        with load(tmp_path / scheme.name, threads) as model:
            found.add(model._native.fingerprint())
    assert len(found) == 1  # one group has one order
    for ordered in (False, True):
        scheme = Scheme("gptq", act_order=ordered)
        quantized.write(scheme, tmp_path / scheme.name)
        with load(tmp_path / scheme.name, threads) as model:
            found.add(model._native.fingerprint())
    assert len(found) == 3
