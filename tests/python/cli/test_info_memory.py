"""The memory that `sinkstream info` states is what a loaded model takes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.checkpoint.open_tensors import open_tensors
from sinkstream.cli.common_options import Loading
from sinkstream.cli.info_facts import Facts, read_facts
from sinkstream.cli.info_memory import largest_window, probe, sizes_of
from sinkstream.devices import available_bytes
from sinkstream.errors import InvalidArgument
from sinkstream.loading.default_window import bytes_per_token, choose_window
from sinkstream.loading.load import check_options
from tests.data import quantized_folders, tiny
from tests.data.family_models import save_family
from tests.data.quantized_folders import SCHEMES, Scheme

OPTIONS: list[dict[str, Any]] = [
    {},
    {"kv_dtype": "int8", "window": 200, "max_sequences": 4},
    {"dtype": "float32", "kv_dtype": "float32", "sinks": 0, "window": 1, "threads": 1},
    {"prefill_chunk": 16, "window": 9000, "max_sequences": 1, "kv_dtype": "bfloat16"},
]


def check(path: str | Path, options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened = open_tensors(path, headers_only=True)
        opened.source.close()
        chosen = choose_window(check_options(**options), opened.spec, opened.tensors)
        probed = probe(opened.spec, chosen)
        sizes = sizes_of(opened.spec, opened.tensors, chosen, probed)
        with sinkstream.load(path, **options) as model:
            capacity, runtime = model.capacity, model.runtime
            per_token = model.bytes_read_per_token(0)
    assert probed.bytes_per_token == capacity.bytes_per_token
    kind = str(options.get("kv_dtype", "auto"))
    assert bytes_per_token(opened.spec, kind) == capacity.bytes_per_token
    assert sizes.sequence == capacity.bytes_per_sequence
    # Panels of some block formats are up to 4 % wider than the file's blocks: those of Q3_K.
    assert sizes.weights <= capacity.weight_bytes <= 1.04 * sizes.weights
    assert sizes.weights_per_token <= per_token <= 1.04 * sizes.weights_per_token
    assert sizes.scratch == pytest.approx(capacity.scratch_bytes, rel=0.1)
    names = {"device", "dtype", "kv_dtype", "served_by", "threads", "prefill_chunk", "kernels"}
    assert {name: getattr(probed, name) for name in names} == {
        name: runtime[name] for name in names
    }


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_a_folder_takes_what_info_says(
    tiny_folder: Callable[[str], Path], name: str, options: dict[str, Any]
) -> None:
    check(tiny_folder(name), options)


@pytest.mark.parametrize("name", ["granitemoe_swa", "qwen3_moe-dense-layers"])
def test_a_model_with_experts_takes_what_info_says(name: str, tmp_path: Path) -> None:
    config = save_family(name, tmp_path, num_local_experts=100, num_experts=100).config
    check(tmp_path, {})
    facts = read_facts(Loading(str(tmp_path)))
    assert isinstance(facts, Facts)
    found = facts.model
    assert (found.chosen_experts, found.experts) == (config.num_experts_per_tok, 100)
    assert found.active_parameters < found.parameters / 3
    with sinkstream.load(tmp_path) as model:
        capacity = model.capacity
        assert model.runtime["prefill_chunk"] == 1024
        assert capacity.weight_bytes_per_token == model.bytes_read_per_token(0)
        assert capacity.weight_bytes_per_token < capacity.weight_bytes / 3


def test_a_wide_expert_for_every_token_takes_what_info_says(tmp_path: Path) -> None:
    save_family("qwen2_moe", tmp_path, shared_expert_intermediate_size=2048)
    check(tmp_path, {})


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_a_quantized_folder_takes_what_info_says(scheme: Scheme, tmp_path: Path) -> None:
    quantized_folders.write(scheme, tmp_path)
    check(tmp_path, {"threads": 1})


def test_inputs_in_the_order_of_columns_take_what_info_says(tmp_path: Path) -> None:
    stated, taken = [], []
    for ordered in (False, True):
        path = tmp_path / str(ordered)
        quantized_folders.write(Scheme("gptq", act_order=ordered), path)
        opened = open_tensors(path, headers_only=True)
        opened.source.close()
        chosen = choose_window(check_options(threads=1), opened.spec, opened.tensors)
        probed = probe(opened.spec, chosen)
        stated.append(sizes_of(opened.spec, opened.tensors, chosen, probed).scratch)
        with sinkstream.load(path, threads=1) as model:
            taken.append(model.capacity.scratch_bytes)
    assert stated[1] - stated[0] == pytest.approx(taken[1] - taken[0], rel=0.05)


@pytest.mark.parametrize("storage", tiny.STORAGES)
def test_a_file_takes_what_info_says(tiny_gguf: Callable[[str, str], Path], storage: str) -> None:
    check(tiny_gguf(tiny.model_for(storage), storage), {})


def test_smollm2_takes_what_info_says(smollm2: Path) -> None:
    check(smollm2, {"max_sequences": 1})


def test_an_option_that_does_not_fit_the_machine_is_an_error(
    tiny_folder: Callable[[str], Path],
) -> None:
    opened = open_tensors(tiny_folder("llama"), headers_only=True)
    opened.source.close()
    with pytest.raises(InvalidArgument, match="`device` must be"):
        probe(opened.spec, check_options(device="cuda"))


def test_the_largest_window_is_the_last_that_fits(smollm2: Path) -> None:
    opened = open_tensors(smollm2)
    opened.source.close()
    spec, tensors = opened.spec, opened.tensors
    options = check_options(window=100, max_sequences=2)
    probed = probe(spec, options)

    def total(window: int) -> int:
        sizes = sizes_of(spec, tensors, options.with_window(window), probed)
        return sizes.weights + 2 * sizes.sequence + sizes.scratch

    for available in (total(1), total(1000), total(1000) - 1, total(8188) - 1):
        window = largest_window(spec, tensors, options, probed, available)
        assert total(window) <= available < total(window + 1)
    assert largest_window(spec, tensors, options, probed, total(1) - 1) == 0
    assert largest_window(spec, tensors, options, probed, 10**12) == spec.trained_length - 4


def test_the_machine_has_memory_left() -> None:
    assert available_bytes() > 1 << 20
