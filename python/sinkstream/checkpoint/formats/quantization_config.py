"""Reads how a Hugging Face folder is quantized: `quantization_config` of its config.json.

The tensors determine which matrices are quantized: matrices that the lists `modules_to_not_convert`
and `ignore` name are stored unquantized.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sinkstream.checkpoint.bounded_file import read_optional_json
from sinkstream.checkpoint.fields import Fields
from sinkstream.errors import CheckpointError

_OLD_GPTQ = "quantize_config.json"
_MAX_BYTES = 1 << 20
_MAX_GROUP = 1 << 20
_LISTS = ("modules_to_not_convert", "ignored_layers", "ignore")

_ORIGINAL = 'Load the original folder with quantize="int8" or "int4", or a GGUF file of the model.'
_OTHERS = (
    'Load an AWQ or GPTQ folder of the model, its original folder with quantize="int8" or "int4", '
    "or a GGUF file."
)
_REMEDIES = {
    "bitsandbytes": f"bitsandbytes quantizes at load time. {_ORIGINAL}",
    "aqlm": f"Codebooks are not supported. {_ORIGINAL}",
    "exl2": f"ExLlamaV2 files are only for ExLlamaV2's own kernels. {_ORIGINAL}",
    "exl3": f"ExLlamaV3 files are only for ExLlamaV3's own kernels. {_ORIGINAL}",
    "hqq": _OTHERS,
}


@dataclass(frozen=True, slots=True)
class FolderQuantization:
    """How the quantized matrices of a folder are stored."""

    kind: Literal["awq", "gptq", "packed", "fp8", "mxfp4"]
    bits: int | None = None
    """Of a code; None: the tensors' shapes say it, for each matrix."""
    group: int | None = None
    """Columns that share a scale; -1: all. None: the shapes say it."""
    has_zero_points: bool | None = None
    """Whether there is a tensor of zero points; None: wherever there is one."""
    has_order: bool = False
    """Whether columns must have an order (`desc_act`): a tensor with each column's group."""
    zero_point: int = 0
    """Added to every field of the words of zero points."""
    block: tuple[int, int] | None = None
    """Rows and columns that share a scale, where scales are a grid."""
    scale: str = "weight_scale"
    """The last part of the name of a scale tensor, as errors name a missing one."""


def read_quantization(folder: Path, config: Fields) -> FolderQuantization | None:
    """Return how a folder is quantized; None if it is not.

    Raises:
        CheckpointError: It is quantized in a way that is not supported, or its description is
            damaged.
    """
    fields = config.group("quantization_config") or config.group("compression_config")
    if fields is None:
        old = read_optional_json(folder / _OLD_GPTQ, _MAX_BYTES)
        if not old:
            return None
        fields = Fields({"quant_method": "gptq", **old}, _OLD_GPTQ)
    for name in _LISTS:
        _check_list(fields, name)
    method = _method(fields)
    reader = _READERS.get(method)
    if reader is None:
        rule = f"be one of {', '.join(sorted(_READERS))}"
        raise fields.error("quant_method", rule, method, _REMEDIES.get(method, _ORIGINAL))
    return reader(fields)


def _method(fields: Fields) -> str:
    if fields.value("load_in_4bit") or fields.value("load_in_8bit"):
        return "bitsandbytes"
    if not fields.has("quant_method") and fields.has("config_groups"):
        return "compressed-tensors"
    return fields.word("quant_method").lower()


def _check_list(fields: Fields, name: str) -> None:
    value = fields.value(name)
    if value is not None and not (
        isinstance(value, list) and all(isinstance(item, str) for item in value)
    ):
        raise fields.error(name, "be a list of names", value)


def _bits(fields: Fields, name: str, allowed: tuple[int, ...]) -> int:
    bits = fields.whole(name, 1, 64)
    if bits not in allowed:
        rule = f"be {' or '.join(map(str, allowed))}"
        raise fields.error(name, rule, bits, _ORIGINAL)
    return bits


def _group(fields: Fields, default: int | None = None, name: str = "group_size") -> int:
    group = fields.whole(name, -1, _MAX_GROUP, default)
    if group == 0:
        raise fields.error(name, "be -1 or at least 1", group)
    return group


def _read_awq(fields: Fields) -> FolderQuantization:
    name = "version" if fields.has("version") else "format"
    version = fields.word(name, "gemm").lower()
    if version != "gemm":
        raise fields.error(name, 'be "gemm"', version, "Convert the folder to that version.")
    if not fields.flag("zero_point", True):
        raise fields.error("zero_point", "be true", False)
    return FolderQuantization(
        "awq",
        bits=_bits(fields, "bits" if fields.has("bits") else "w_bit", (4,)),
        group=_group(fields, 128, "group_size" if fields.has("group_size") else "q_group_size"),
        has_zero_points=True,
        scale="scales",
    )


def _read_gptq(fields: Fields) -> FolderQuantization:
    name = "checkpoint_format" if fields.has("checkpoint_format") else "format"
    version = fields.word(name, "gptq").lower()
    if version not in ("gptq", "gptq_v2"):
        rule = 'be "gptq" or "gptq_v2"'
        raise fields.error(name, rule, version, "Save the model again in one of these formats.")
    by_shapes = fields.has("dynamic")  # its modules have bits and groups of their own
    bits, group = _bits(fields, "bits", (4, 8)), _group(fields, -1)
    return FolderQuantization(
        "gptq",
        bits=None if by_shapes else bits,
        group=None if by_shapes else group,
        has_zero_points=True,
        has_order=fields.flag("desc_act", False),
        zero_point=0 if version == "gptq_v2" else 1,
        scale="scales",
    )


def _read_fp8(fields: Fields) -> FolderQuantization:
    numbers = fields.word("fmt", "e4m3")
    if numbers not in ("e4m3", "float8_e4m3fn"):
        raise fields.error("fmt", 'be "e4m3"', numbers, _ORIGINAL)
    block = _sizes(fields, "weight_block_size")
    return FolderQuantization("fp8", block=block, scale="weight_scale_inv")


def _read_fbgemm(fields: Fields) -> FolderQuantization:
    return FolderQuantization("fp8")


def _read_mxfp4(fields: Fields) -> FolderQuantization:
    return FolderQuantization("mxfp4", scale="scales")


def _sizes(fields: Fields, name: str) -> tuple[int, int] | None:
    value = fields.value(name)
    if value is None:
        return None
    if (
        not isinstance(value, list)
        or len(value) != 2
        or not all(type(size) is int and 1 <= size <= _MAX_GROUP for size in value)
    ):
        raise fields.error(name, f"be two integers from 1 to {_MAX_GROUP}", value)
    return value[0], value[1]


_COMPRESSED = ("float-quantized", "mixed-precision", "naive-quantized", "pack-quantized")


def _read_compressed(fields: Fields) -> FolderQuantization:
    _check_format(fields)
    sparsity = fields.group("sparsity_config")
    if sparsity is not None:
        sparsity.must_be("format", "dense", _ORIGINAL)
    groups = fields.group("config_groups")
    if groups is None:
        raise fields.error("config_groups", "be an object with at least one group")
    found = [_read_group(groups, name) for name in groups.names()]
    kinds = {one.kind for one in found}
    if not kinds:
        raise fields.error("config_groups", "be an object with at least one group")
    if len(kinds) > 1:
        raise CheckpointError(
            f"load: {fields.where}: `{fields.name('config_groups')}` must have the same type of "
            f'weights in all groups, but has both "float" and "int". {_ORIGINAL}'
        )
    first = found[0]
    if all(one == first for one in found):
        return first
    zero_points = {one.has_zero_points for one in found}
    return FolderQuantization(
        first.kind,
        has_zero_points=first.has_zero_points if len(zero_points) == 1 else None,
        has_order=all(one.has_order for one in found),
        block=first.block,
    )


def _check_format(fields: Fields) -> None:
    found = fields.word("format")
    if found not in _COMPRESSED:
        raise fields.error("format", f"be one of {', '.join(_COMPRESSED)}", found, _ORIGINAL)


def _read_group(groups: Fields, name: str) -> FolderQuantization:
    group = groups.group(name)
    weights = None if group is None else group.group("weights")
    if group is None or weights is None:
        raise groups.error(name, "describe the quantization of weights")
    if group.has("format"):
        _check_format(group)
    kind = weights.word("type", "int")
    if kind == "float":
        _bits(weights, "num_bits", (8,))
        return FolderQuantization("fp8", block=_sizes(weights, "block_structure"))
    if kind != "int":
        raise weights.error("type", 'be "int" or "float"', kind)
    size = _group(weights, -1)
    strategy = weights.word("strategy", "channel" if size == -1 else "group")
    if strategy not in ("channel", "group"):
        raise weights.error("strategy", 'be "channel" or "group"', strategy, _ORIGINAL)
    order = weights.value("actorder")
    return FolderQuantization(
        "packed",
        bits=_bits(weights, "num_bits", (4, 8)),
        group=-1 if strategy == "channel" else size,
        has_zero_points=not weights.flag("symmetric", True),
        has_order=order is True or order in ("group", "dynamic"),
    )


_READERS = {
    "awq": _read_awq,
    "compressed-tensors": _read_compressed,
    "fbgemm_fp8": _read_fbgemm,
    "fp8": _read_fp8,
    "gptq": _read_gptq,
    "mxfp4": _read_mxfp4,
}
