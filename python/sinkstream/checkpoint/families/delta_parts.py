"""What families with gated delta nets have in common: sizes, which layers attend, tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sinkstream.checkpoint.families.architecture import Value
from sinkstream.checkpoint.families.family import GgufDescription
from sinkstream.checkpoint.families.sizes import (
    MAX_HEADS,
    MAX_LAYERS,
    Sizes,
    gguf_rope,
    rms_norm_from_config,
    rms_norm_from_gguf,
)
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES, GGUF_NAMES, Fused
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import (
    Attention,
    Block,
    DecoderSpec,
    Dense,
    Experts,
    Recurrent,
    RopeSpec,
)

_MOST_TAPS = 64  # csrc/kernels/convolve.h
_MOST_KEY_DIM = 512  # csrc/kernels/recur.h
_MOST_HEAD_DIM = 1024
_INTERVAL = 4
"""Of the layers with attention, if a description does not say it."""
_PARTIAL = 0.25
"""What part of a head is rotated, likewise."""
HEAD_DIM = 256
"""Not derived from the hidden size."""


def layers_from_config(config: Fields, sizes: Sizes, feed_forward: Dense | Experts) -> list[Block]:
    """Return each layer's block: attention or a delta net, and this feed-forward."""
    config.must_be("attention_bias", False)
    config.must_be("attn_output_gate", True)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length, partial=_PARTIAL)
    block = Block(_attention(sizes, rope), feed_forward, rms_norm_from_config(config))
    attends = _attends_from_config(config, sizes.layers)
    return _with_delta_nets(block, _delta_net_from_config(config), attends)


def layers_from_gguf(
    file: GgufDescription, sizes: Sizes, feed_forward: Dense | Experts, *, in_turn: bool
) -> list[Block]:
    """Return the same of a GGUF file.

    `in_turn`: whether the architecture's files have the value heads of all key heads in turn.
    """
    attention = _attention(sizes, gguf_rope(file, sizes, "half"))
    block = Block(attention, feed_forward, rms_norm_from_gguf(file.metadata))
    attends = _attends_from_gguf(file.metadata, sizes.layers)
    return _with_delta_nets(block, _delta_net_from_gguf(file.metadata, in_turn), attends)


def _attention(sizes: Sizes, rope: RopeSpec) -> Attention:
    return sizes.attention(rope, qk_norm="head", output_gate=True)


def _delta_net_from_config(config: Fields) -> Recurrent:
    heads = config.whole("linear_num_value_heads", 1, MAX_HEADS, 32)
    key_heads = config.whole("linear_num_key_heads", 1, MAX_HEADS, 16)
    if heads % key_heads:
        raise config.error("linear_num_key_heads", f"divide the {heads} value heads", key_heads)
    return Recurrent(
        "delta_net",
        config.whole("linear_conv_kernel_dim", 2, _MOST_TAPS, 4),
        heads=heads,
        key_heads=key_heads,
        state_size=config.whole("linear_key_head_dim", 1, _MOST_KEY_DIM, 128),
        head_dim=config.whole("linear_value_head_dim", 1, _MOST_HEAD_DIM, 128),
    )


def _delta_net_from_gguf(metadata: Fields, in_turn: bool) -> Recurrent:
    heads = metadata.whole("ssm.time_step_rank", 1, MAX_HEADS)
    key_heads = metadata.whole("ssm.group_count", 1, MAX_HEADS)
    if heads % key_heads:
        raise metadata.error("ssm.group_count", f"divide the {heads} value heads", key_heads)
    width = metadata.whole("ssm.inner_size", 1, MAX_HEADS * _MOST_HEAD_DIM)
    if width % heads or width > heads * _MOST_HEAD_DIM:
        rule = f"be a multiple of the {heads} value heads, of up to {_MOST_HEAD_DIM} for each"
        raise metadata.error("ssm.inner_size", rule, width)
    return Recurrent(
        "delta_net",
        metadata.whole("ssm.conv_kernel", 2, _MOST_TAPS),
        heads=heads,
        key_heads=key_heads,
        state_size=metadata.whole("ssm.state_size", 1, _MOST_KEY_DIM),
        head_dim=width // heads,
        heads_in_turn=in_turn and heads > key_heads > 1,
    )


def _attends_from_config(config: Fields, layers: int) -> list[bool]:
    kinds = config.words("layer_types", layers, ("full_attention", "linear_attention"))
    if kinds is None:
        attends = _at_interval(config, layers)
    else:
        attends = [kind == "full_attention" for kind in kinds]
    if not any(attends):
        raise config.error("layer_types", "have attention in at least one layer")
    return attends


def _attends_from_gguf(metadata: Fields, layers: int) -> list[bool]:
    blocks = metadata.whole("block_count", 1, MAX_LAYERS)
    recurrent = metadata.flags("attention.recurrent_layers", blocks)
    if recurrent is None:
        attends = _at_interval(metadata, layers)
    else:
        attends = [not each for each in recurrent[:layers]]
    if not any(attends):
        raise metadata.error("attention.recurrent_layers", "leave attention in one layer at least")
    return attends


def _at_interval(fields: Fields, layers: int) -> list[bool]:
    interval = fields.whole("full_attention_interval", 1, MAX_LAYERS, _INTERVAL)
    return [(layer + 1) % interval == 0 for layer in range(layers)]


def _with_delta_nets(block: Block, delta_net: Recurrent, attends: Sequence[bool]) -> list[Block]:
    recurs = replace(block, mixer=delta_net)
    return [block if has_attention else recurs for has_attention in attends]


def _delta_net(spec: DecoderSpec) -> Recurrent | None:
    return next((mixer for mixer in spec.mixers if isinstance(mixer, Recurrent)), None)


def _of_delta_net(name: str) -> Value:
    def value(spec: DecoderSpec) -> int | None:
        delta_net = _delta_net(spec)
        return None if delta_net is None else int(getattr(delta_net, name))

    return value


def _inner_size(spec: DecoderSpec) -> int | None:
    delta_net = _delta_net(spec)
    return None if delta_net is None else delta_net.heads * delta_net.head_dim


GGUF_DELTA_NETS: dict[str, Value] = {
    "attention.recurrent_layers": lambda spec: [
        not isinstance(mixer, Attention) for mixer in spec.mixers
    ],
    "full_attention_interval": lambda spec: _INTERVAL,
    "ssm.conv_kernel": _of_delta_net("conv_size"),
    "ssm.group_count": _of_delta_net("key_heads"),
    "ssm.inner_size": _inner_size,
    "ssm.state_size": _of_delta_net("state_size"),
    "ssm.time_step_rank": _of_delta_net("heads"),
}
"""What llama.cpp's converter writes."""

_CONVOLVED = Fused(("conv_q", "conv_k", "conv_v"))
"""The rows of one projection to all that is convolved."""
_QUERY_AND_GATE = Fused(("q", "output_gate"), "head")
"""The rows of a projection to queries: those of each head, and of its gate."""
SECTIONS: dict[str, Value] = {"rope.dimension_sections": lambda spec: [11, 11, 10, 0]}
"""Of the three positions of a token that images have; in a text they are the same."""

FOLDER_NAMES_OF_DELTA_NETS = (
    FOLDER_NAMES.with_modules(
        {
            "conv": "linear_attn.conv1d",
            "conv_out": "linear_attn.out_proj",
            "state_norm": "linear_attn.norm",
        }
    )
    .with_names({"rate": "linear_attn.A_log", "step_bias": "linear_attn.dt_bias"})
    .with_fused({"self_attn.q_proj.weight": _QUERY_AND_GATE})
    .with_added(1.0, ("attention_norm", "mlp_norm", "q_norm", "k_norm", "final_norm"))
    .with_logarithms("rate")
)
FOLDER_NAMES_OF_QWEN3_5 = FOLDER_NAMES_OF_DELTA_NETS.with_names(
    {
        "state_gate": "linear_attn.in_proj_z.weight",
        "step": "linear_attn.in_proj_a.weight",
        "strength": "linear_attn.in_proj_b.weight",
    }
).with_fused({"linear_attn.in_proj_qkv.weight": _CONVOLVED})
GGUF_NAMES_OF_DELTA_NETS = (
    GGUF_NAMES.with_modules(
        {
            "conv": "ssm_conv1d",
            "conv_out": "ssm_out",
            "state_gate": "attn_gate",
            "state_norm": "ssm_norm",
            "mlp_norm": "post_attention_norm",
        }
    )
    .with_names({"rate": "ssm_a", "step_bias": "ssm_dt.bias"})
    .with_fused({"attn_q.weight": _QUERY_AND_GATE, "attn_qkv.weight": _CONVOLVED})
    .with_unused("blk.{}.*")  # it predicts further tokens
)
GGUF_NAMES_OF_QWEN3_5 = GGUF_NAMES_OF_DELTA_NETS.with_names(
    {"step": "ssm_alpha.weight", "strength": "ssm_beta.weight"}
)
SHARED_EXPERT = {
    "shared.gate": "mlp.shared_expert.gate_proj.weight",
    "shared.up": "mlp.shared_expert.up_proj.weight",
    "shared.down": "mlp.shared_expert.down_proj.weight",
    "shared_gate": "mlp.shared_expert_gate.weight",
}
"""Of families with experts, in folders."""
