"""What families with Mamba-2 have in common: sizes of its recurrence, the names of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sinkstream.checkpoint.families.architecture import Value
from sinkstream.checkpoint.families.sizes import MAX_HEADS
from sinkstream.checkpoint.families.weight_names import Fused
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import Block, DecoderSpec, Recurrent

_MOST_TAPS = 64  # csrc/kernels/convolve.h
_MOST_KEY_DIM = 512  # csrc/kernels/recur.h
_MOST_HEAD_DIM = 1024
_NO_LIMITS = ([0.0, math.inf], [0.0, {"__float__": "Infinity"}])
"""Of time steps, in JSON as Python writes it and as transformers does."""


def mamba_from_config(config: Fields) -> Recurrent:
    """Return the Mamba-2 of a config.json, with the fields' names of Granite 4 and Bamba."""
    config.must_be("mamba_proj_bias", False)
    if config.value("time_step_limit") not in (None, *_NO_LIMITS):
        raise config.error("time_step_limit", "have the limits 0 and infinity or be absent")
    heads = config.whole("mamba_n_heads", 1, MAX_HEADS, 128)
    groups = config.whole("mamba_n_groups", 1, MAX_HEADS, 1)
    if heads % groups:
        raise config.error("mamba_n_groups", f"divide the {heads} heads", groups)
    width = int(
        config.number("mamba_expand", 1e-3, 1e3, 2) * config.whole("hidden_size", 1, 1 << 20)
    )
    if width % heads:
        raise config.error("mamba_n_heads", f"divide the width {width}", heads)
    if config.value("mamba_d_head") != "auto":
        head_dim = config.whole("mamba_d_head", 1, _MOST_HEAD_DIM, width // heads)
        if head_dim * heads != width:
            rule = f"be {width // heads}, the width {width} of {heads} heads"
            raise config.error("mamba_d_head", rule, head_dim)
    return Recurrent(
        "mamba2",
        config.whole("mamba_d_conv", 2, _MOST_TAPS, 4),
        conv_bias=config.flag("mamba_conv_bias", True),
        heads=heads,
        key_heads=groups,
        state_size=config.whole("mamba_d_state", 1, _MOST_KEY_DIM, 256),
        head_dim=width // heads,
    )


def mamba_from_gguf(metadata: Fields, *, conv_bias: bool) -> Recurrent:
    """Return the Mamba-2 of GGUF metadata."""
    heads = metadata.whole("ssm.time_step_rank", 1, MAX_HEADS)
    groups = metadata.whole("ssm.group_count", 1, MAX_HEADS, 1)
    if heads % groups:
        raise metadata.error("ssm.group_count", f"divide the {heads} heads", groups)
    width = metadata.whole("ssm.inner_size", 1, MAX_HEADS * _MOST_HEAD_DIM)
    if width % heads or width > heads * _MOST_HEAD_DIM:
        rule = f"be a multiple of the {heads} heads, of up to {_MOST_HEAD_DIM} for each"
        raise metadata.error("ssm.inner_size", rule, width)
    return Recurrent(
        "mamba2",
        metadata.whole("ssm.conv_kernel", 2, _MOST_TAPS),
        conv_bias=conv_bias,
        heads=heads,
        key_heads=groups,
        state_size=metadata.whole("ssm.state_size", 1, _MOST_KEY_DIM),
        head_dim=width // heads,
    )


def with_mamba(block: Block, mamba: Recurrent, attends: Sequence[bool]) -> list[Block]:
    """Return each layer's block: `block`, or the same with Mamba-2."""
    recurs = replace(block, mixer=mamba)
    return [block if has_attention else recurs for has_attention in attends]


def _mamba(spec: DecoderSpec) -> Recurrent:
    return next(mixer for mixer in spec.mixers if isinstance(mixer, Recurrent))


GGUF_MAMBA: dict[str, Value] = {
    "ssm.conv_kernel": lambda spec: _mamba(spec).conv_size,
    "ssm.group_count": lambda spec: _mamba(spec).key_heads,
    "ssm.inner_size": lambda spec: _mamba(spec).heads * _mamba(spec).head_dim,
    "ssm.state_size": lambda spec: _mamba(spec).state_size,
    "ssm.time_step_rank": lambda spec: _mamba(spec).heads,
}
"""What llama.cpp's converter writes."""

ALL_PARTS = Fused(("state_gate", "conv_v", "conv_k", "conv_q", "step"))
"""The rows of Mamba-2's projection."""


def folder_names(module: str) -> dict[str, str]:
    """Return the names of tensors in folders, after the prefix of a layer."""
    return {
        "conv": f"{module}.conv1d.weight",
        "conv_bias": f"{module}.conv1d.bias",
        "conv_out": f"{module}.out_proj.weight",
        "rate": f"{module}.A_log",
        "skip": f"{module}.D",
        "state_norm": f"{module}.norm.weight",
        "step_bias": f"{module}.dt_bias",
    }


GGUF_NAMES_OF_MAMBA = {
    "conv": "ssm_conv1d.weight",
    "conv_bias": "ssm_conv1d.bias",
    "conv_out": "ssm_out.weight",
    "rate": "ssm_a",
    "skip": "ssm_d",
    "state_norm": "ssm_norm.weight",
    "step_bias": "ssm_dt.bias",
}
