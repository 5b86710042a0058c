"""Quantized Hugging Face folders: every weight bit for bit, and a sentence for what is wrong."""

from __future__ import annotations

import json
import random
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file, save_file

from sinkstream import _core
from sinkstream.checkpoint.checkpoint import SPLIT_STORAGES, TensorsOnly
from sinkstream.checkpoint.open_tensors import open_tensors
from sinkstream.errors import CheckpointError
from sinkstream.loading import load as loading
from tests.data import quantized_folders as quantized
from tests.data import tiny
from tests.data.quantized_folders import SCHEMES, Scheme

TABLES = [name for name, supported in _core.kernel_tables() if supported]
AWQ, GPTQ = Scheme("awq"), Scheme("gptq", act_order=True)
PACKED = Scheme("packed")
BLOCKS = Scheme("fp8", bits=8, group=128, scale="float32")
Q = "model.layers.0.self_attn.q_proj"


def read(opened: TensorsOnly, threads: int = 2) -> _core.ModelBuilder:
    """Read all weights, as `load` does."""
    builder = _core.ModelBuilder(opened.spec.as_dict())
    try:
        loading._begin_to_read(builder, opened, threads)
        loading._finish_reading(builder, opened, None)
    finally:
        builder.stop_reading()
        opened.source.close()
    return builder


def numbers(
    builder: _core.ModelBuilder, weight: str, shape: tuple[int, ...], table: str = ""
) -> npt.NDArray[np.float32]:
    content = _core.testing.matrix_numbers(builder, weight, table)
    return np.frombuffer(content, np.float32).reshape(shape)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_every_weight_is_the_formats_formula_bit_for_bit(scheme: Scheme, tmp_path: Path) -> None:
    model = quantized.write(scheme, tmp_path / "model")
    opened = open_tensors(tmp_path / "model")
    tensors = {tensor.slot.name: tensor for tensor in opened.tensors}
    split = {name for name, tensor in tensors.items() if tensor.split is not None}
    layers = model.config["num_hidden_layers"]
    assert 0 < len(split) <= 7 * layers
    assert bool(scheme.ignore) == (len(split) < 7 * layers)
    builder = read(opened)
    for slot, tensor in tensors.items():
        if tensor.slot.cols == 1:
            continue
        module = tensor.tensor.removesuffix(".weight_packed").removesuffix(".qweight")
        weight = model.weights[module.removesuffix(".weight") + ".weight"]
        for table in TABLES:
            found = numbers(builder, slot, weight.shape, table)
            np.testing.assert_array_equal(found.view(np.uint32), weight.view(np.uint32), slot)


@pytest.mark.parametrize(
    ("scheme", "file_bits", "most"),
    [
        (Scheme("awq", group=128), 4.15625, 1.01),
        (Scheme("gptq", group=64), 4.3125, 1.02),
        (Scheme("gptq", group=32), 4.625, 1.03),
        (Scheme("packed", group=128, symmetric=True), 4.125, 1.02),
        (Scheme("packed", bits=8, group=-1, symmetric=True), 8, 1.03),
        (Scheme("gptq", bits=8, group=32), 8.75, 1.03),
        (Scheme("fp8", bits=8, group=128, scale="float32"), 8, 1.0313),
    ],
    ids=lambda value: value.name if isinstance(value, Scheme) else None,
)
def test_a_row_takes_little_more_than_in_the_file(
    scheme: Scheme, file_bits: float, most: float
) -> None:
    cols = 4096
    storage = "FP8" if scheme.method == "fp8" else f"INT{scheme.bits}"
    found = _core.split_row_bytes(storage, cols, cols if scheme.group == -1 else scheme.group)
    assert file_bits * cols / 8 <= found <= most * file_bits * cols / 8


def test_the_native_core_knows_every_split_storage() -> None:
    assert all(_core.split_row_bytes(storage, 64, 32) > 0 for storage in SPLIT_STORAGES)


Tensors = dict[str, torch.Tensor]


def refusal(
    path: Path, scheme: Scheme, damage: Callable[[Tensors, dict[str, Any]], Any] | None
) -> str:
    """Write a folder, damage its tensors or its config, and return the error."""
    quantized.write(scheme, path)
    tensors, config = (
        load_file(path / "model.safetensors"),
        json.loads((path / "config.json").read_text()),
    )
    if damage is not None:
        damage(tensors, config)
    save_file({name: t.contiguous() for name, t in tensors.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError) as caught:
        read(open_tensors(path))
    return str(caught.value)


def without(name: str) -> Callable[[Tensors, dict[str, Any]], Any]:
    return lambda tensors, config: tensors.pop(name)


def put(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return lambda tensors, config: tensors.update({name: change(tensors[name])})


def describe(**fields: Any) -> Any:
    return lambda tensors, config: config["quantization_config"].update(fields)


def with_one(value: float, index: tuple[int, ...] = (0, 0)) -> Any:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.clone()
        changed[index] = value
        return changed

    return change


BAD_TENSORS = [
    (AWQ, without(Q + ".scales"), rf'tensor "{Q}.scales" of shape \[3, 96\] is missing'),
    (AWQ, without(Q + ".qweight"), rf'tensor "{Q}.qweight" of shape \[96, 12\] is missing'),
    (AWQ, without(Q + ".qzeros"), rf'tensor "{Q}.qzeros" of shape \[3, 12\] is missing'),
    (AWQ, put(Q + ".qweight", lambda t: t[:64]),
     r'q_proj.qweight" must have shape \[96, 12\], but has \[64, 12\]'),
    (AWQ, put(Q + ".scales", lambda t: t[:2]), r'scales" must have shape \[3, 96\], but has \[2'),
    (AWQ, put(Q + ".scales", lambda t: t.float()), r'scales" must be stored as BF16 or F16, but i'),
    (AWQ, put(Q + ".qweight", lambda t: t.short()), r'qweight" must be stored as I32, but is I16'),
    (AWQ, put(Q + ".scales", with_one(float("nan"))), r'"layers.0.q" must have finite scales, but'),
    (AWQ, put(Q + ".scales", with_one(float("inf"), (2, 95))), r'layers.0.q" must have finite sca'),
    (GPTQ, without(Q + ".g_idx"), rf'tensor "{Q}.g_idx" of shape \[96\] is missing'),
    (GPTQ, put(Q + ".g_idx", with_one(3, (5,))),
     r'q_proj.g_idx" must hold groups from 0 to 2, but holds 3'),
    (GPTQ, put(Q + ".g_idx", with_one(-1, (5,))), r'must hold groups from 0 to 2, but holds -1'),
    (GPTQ, put(Q + ".g_idx", lambda t: torch.zeros_like(t)),
     r'q_proj.g_idx" must give 32 columns to each group, but gives 96 to group 0'),
    (GPTQ, put(Q + ".g_idx", lambda t: t[:-1]), r'g_idx" must have shape \[96\], but has \[95\]'),
    (GPTQ, put(Q + ".g_idx", lambda t: t.long()), r'g_idx" must be stored as I32, but is I64'),
    (PACKED, without(Q + ".weight_scale"), rf'tensor "{Q}.weight_scale" of shape \[96, 3\] is mis'),
    (PACKED, without(Q + ".weight_zero_point"), r'weight_zero_point" of shape \[12, 3\] is missin'),
    (PACKED, without(Q + ".weight_shape"), r'weight_shape" of shape \[2\] is missing'),
    (PACKED, put(Q + ".weight_shape", lambda t: t + 1),
     r'weight_shape" must hold \[96, 96\], but holds \[97, 97\]'),
    (BLOCKS, without(Q + ".weight_scale_inv"), rf'"{Q}.weight_scale_inv" of shape \[1, 1\] is mis'),
    (Scheme("fp8_packed", bits=8, group=-1, scale="float32"), without(Q + ".weight_scale"),
     rf'tensor "{Q}.weight_scale" of shape \[96, 1\] is missing'),
    (BLOCKS, put(Q + ".weight_scale_inv", lambda t: t.repeat(2, 2)),
     r'weight_scale_inv" must have shape \[1, 1\], but has \[2, 2\]'),
    (BLOCKS, put(Q + ".weight_scale_inv", with_one(float("inf"))), r'must have finite scales and'),
    (BLOCKS, put(Q + ".weight", with_one(float("nan"), (95, 95))), r'finite scales and numbers'),
    (BLOCKS, put(Q + ".weight", lambda t: t.float().to(torch.float8_e5m2)),
     r'q_proj.weight" must be stored as F8_E4M3, but is F8_E5M2'),
]  # fmt: skip


@pytest.mark.parametrize(("scheme", "damage", "sentence"), BAD_TENSORS)
def test_what_is_wrong_with_a_tensor_is_said(
    scheme: Scheme, damage: Any, sentence: str, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = refusal(tmp_path, scheme, damage)
    assert re.search(sentence, found), found


_ORIGINAL = r'Load the original folder with quantize="int8" or "int4", or a GGUF file'
BAD_CONFIGS = [
    (AWQ, describe(quant_method="bitsandbytes"),
     r'`quant_method` must be one of awq, compressed-tensors, fbgemm_fp8, fp8, gptq, mxfp4, '
     rf'but is.*bitsandbytes quantizes at load time. {_ORIGINAL}'),
    (AWQ, describe(quant_method=None, load_in_4bit=True), r'bitsandbytes quantizes at load time'),
    (AWQ, describe(quant_method="hqq"), r'but is "hqq". Load an AWQ or GPTQ folder of the model'),
    (AWQ, describe(quant_method="aqlm"), rf'"aqlm". Codebooks are not supported. {_ORIGINAL}'),
    (AWQ, describe(quant_method="exl2"), r'V2 files are only for ExLlamaV2.s own kernels'),
    (AWQ, describe(quant_method="exl3"), r'V3 files are only for ExLlamaV3.s own kernels'),
    (AWQ, describe(quant_method="vptq"), rf'but is "vptq". {_ORIGINAL}'),
    (AWQ, describe(quant_method=None), r'`quant_method` must be a string, but is missing'),
    (AWQ, describe(bits=3), r'`bits` must be 4, but is 3'),
    (AWQ, describe(version="gemv"), r'`version` must be "gemm", but is "gemv"'),
    (AWQ, describe(zero_point=False), r'`zero_point` must be true, but is false'),
    (AWQ, describe(group_size=48), r'must have a group size that is a multiple of 32 and divides'),
    (AWQ, describe(group_size=64), r'divides its 96 columns, but has groups of 64'),
    (AWQ, describe(group_size=0), r'`group_size` must be -1 or at least 1, but is 0'),
    (AWQ, describe(group_size=None, q_group_size=0), r'`q_group_size` must be -1 or at least 1, '),
    (AWQ, describe(modules_to_not_convert="lm_head"), r'must be a list of names, but is "lm_head"'),
    (GPTQ, describe(bits=3), r'`bits` must be 4 or 8, but is 3'),
    (GPTQ, describe(bits=2), r'`bits` must be 4 or 8, but is 2'),
    (GPTQ, describe(checkpoint_format="marlin"), r'must be "gptq" or "gptq_v2", but is "marlin"'),
    (GPTQ, describe(bits=8), r'qweight" must have shape \[24, 96\], but has \[12, 96\]'),
    (PACKED, describe(format="marlin-24"), r'`format` must be one of float-quantized, mixed-prec'),
    (PACKED, describe(sparsity_config={"format": "sparse-24-bitmask"}), r'must be "dense" or abse'),
    (PACKED, describe(config_groups={}), r'`config_groups` must be an object with at least one gr'),
    (PACKED, describe(config_groups={"group_0": {"weights": {"num_bits": 3, "type": "int"}}}),
     r'`num_bits` must be 4 or 8, but is 3'),
    (PACKED, describe(config_groups={"group_0": {"weights": {"num_bits": 4, "type": "float"}}}),
     r'`num_bits` must be 8, but is 4'),
    (PACKED, describe(config_groups={"a": {"weights": {"num_bits": 4, "type": "int"}},
                                     "b": {"weights": {"num_bits": 8, "type": "float"}}}),
     r'same type of weights in all groups, but has both "float" and "int". Load the original'),
    (PACKED, describe(config_groups={"a": None}), r'must be an object with at least one group'),
    (PACKED, describe(config_groups={"group_0": {}}), r'`group_0` must describe the quantizatio'),
    (PACKED, describe(ignore=[1]), r'`ignore` must be a list of names, but is \[1\]'),
    (BLOCKS, describe(weight_block_size=[128]), r'must be two integers from 1 to'),
    (BLOCKS, describe(fmt="e5m2"), r'`fmt` must be "e4m3", but is "e5m2"'),
]  # fmt: skip


@pytest.mark.parametrize(("scheme", "damage", "sentence"), BAD_CONFIGS)
def test_what_is_wrong_with_a_config_is_said(
    scheme: Scheme, damage: Any, sentence: str, tmp_path: Path
) -> None:
    found = refusal(tmp_path, scheme, damage)
    assert re.search(sentence, found), found


def test_a_family_whose_tensors_hold_several_weights_is_refused(tmp_path: Path) -> None:
    folder = tiny.write_folder(tiny.build("phi3"), tmp_path / "phi3")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="tensors of this family hold several weights"):
        open_tensors(folder)


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    quantized.write(GPTQ, tmp_path)
    opened = open_tensors(tmp_path)
    weights = tmp_path / "model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size - 20_000)
    with pytest.raises(CheckpointError, match=r"must hold 960 bytes for tensor .*\.scales"):
        read(opened, threads=1)  # several do not agree on what is missing first


def test_a_folder_with_the_old_file_of_gptq_loads(tmp_path: Path) -> None:
    model = quantized.write(GPTQ, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    old = config.pop("quantization_config")
    del old["quant_method"], old["checkpoint_format"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "quantize_config.json").write_text(json.dumps(old))
    weight = model.weights[Q + ".weight"]
    found = numbers(read(open_tensors(tmp_path)), "layers.0.q", weight.shape)
    np.testing.assert_array_equal(found, weight)


def test_modules_may_have_bits_and_groups_of_their_own(tmp_path: Path) -> None:
    """As `dynamic` of GPTQModel and several `config_groups` of compressed-tensors say."""
    one = quantized.write(Scheme("gptq", act_order=True), tmp_path / "one")
    other = quantized.write(Scheme("gptq", bits=8, group=-1), tmp_path / "other")
    tensors = load_file(tmp_path / "one/model.safetensors")
    others = load_file(tmp_path / "other/model.safetensors")
    tensors |= {name: tensor for name, tensor in others.items() if ".mlp." in name}
    save_file(tensors, tmp_path / "one/model.safetensors")
    config = json.loads((tmp_path / "one/config.json").read_text())
    config["quantization_config"]["dynamic"] = {"+:.*mlp.*": {"bits": 8, "group_size": -1}}
    (tmp_path / "one/config.json").write_text(json.dumps(config))
    builder = read(open_tensors(tmp_path / "one"))
    up = "model.layers.1.mlp.up_proj.weight"
    for slot, name, model in (("layers.0.q", Q + ".weight", one), ("layers.1.up", up, other)):
        weight = model.weights[name]
        np.testing.assert_array_equal(numbers(builder, slot, weight.shape), weight)


# ---- random damage ----

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 3, 16, 33, 64, 2**40, 0.5, "x", "gptq", "group", [], [1], [128, 128], {},
    {"a": 1},
)  # fmt: skip


def damage_tensor(draw: random.Random, tensors: Tensors) -> None:
    """Drop, retype, reshape or overwrite a tensor."""
    name = draw.choice(sorted(tensors))
    tensor = tensors[name]
    kinds = (torch.int32, torch.int64, torch.float16, torch.float32, torch.bfloat16, torch.int8,
             torch.float8_e4m3fn)  # fmt: skip
    way = draw.randrange(7)
    if way == 0:
        del tensors[name]
    elif way == 1:
        tensors[name] = tensor.to(torch.float32).to(draw.choice(kinds))
    elif way == 2:
        tensors[name] = tensor[: draw.randrange(len(tensor) + 1)] if tensor.ndim else tensor
    elif way == 3:
        tensors[name] = tensor.reshape(-1)
    elif way == 4:
        tensors[name] = tensor.T.contiguous() if tensor.ndim == 2 else tensor.reshape(1, -1)
    elif way == 5:
        content = tensor.reshape(-1).view(torch.uint8).clone()
        if len(content):
            content[draw.randrange(len(content))] = draw.randrange(256)
        tensors[name] = content.view(tensor.dtype).reshape(tensor.shape)
    else:
        tensors[name + draw.choice((".scales", ".weight", "x"))] = tensor.clone()


def damage_config(draw: random.Random, config: dict[str, Any]) -> None:
    """Change a field of `quantization_config`, at any depth."""
    fields = config["quantization_config"]
    while True:
        name = draw.choice(sorted(fields))
        if isinstance(fields[name], dict) and fields[name] and draw.random() < 0.8:
            fields = fields[name]
            continue
        fields[name] = draw.choice(ODD)
        return


def fuzz(cases: range, folder: Path) -> list[str]:
    """Damage folders at random. Return the errors of those that do not load."""
    errors = []
    for case in cases:
        draw = random.Random(case)
        scheme = SCHEMES[case % len(SCHEMES)]
        _, tensors, config = quantized.build(scheme)
        for _ in range(draw.choice((1, 1, 2))):
            if draw.random() < 0.6:
                damage_tensor(draw, tensors)
            else:
                damage_config(draw, config)
        path = folder / "model"
        path.mkdir(exist_ok=True)
        (path / "config.json").write_text(json.dumps(config))
        save_file({name: t.contiguous() for name, t in tensors.items()}, path / "model.safetensors")
        try:
            read(open_tensors(path), threads=1)
        except CheckpointError as error:
            errors.append(str(error))
    return errors


@pytest.mark.filterwarnings("ignore")
def test_random_damage_is_read_or_refused_by_a_sentence(tmp_path: Path) -> None:
    errors = fuzz(range(60), tmp_path)
    assert 20 < len(errors) < 56
    assert all(re.match(r"load: .*[.\w)\]]$", error, re.DOTALL) for error in errors)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ten_thousand_damaged_folders(tmp_path: Path) -> None:
    assert len(fuzz(range(1000, 11_000), tmp_path)) > 3000
