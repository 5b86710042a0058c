"""Feed-forwards with experts: their sizes, and which layers have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from sinkstream.checkpoint.families.architecture import Value
from sinkstream.checkpoint.families.family import GgufDescription
from sinkstream.checkpoint.families.sizes import MAX_INTERMEDIATE, MAX_LAYERS
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import Block, DecoderSpec, Dense, Experts

MAX_EXPERTS = 1024
_SCALES = (1e-6, 1e6)

GGUF_FIELDS = (
    "expert_count", "expert_used_count", "expert_feed_forward_length",
    "expert_shared_feed_forward_length", "expert_weights_norm", "expert_weights_scale",
)  # fmt: skip
"""What `experts_from_gguf` reads, for `sizes_from_gguf`."""


def experts_from_config(
    config: Fields,
    size: str = "moe_intermediate_size",
    *,
    expert: Callable[[int], Dense] = Dense,
    **rules: Any,
) -> Experts:
    """Read the experts of a config.json.

    Args:
        config: Its fields.
        size: The name of an expert's width.
        expert: Makes an expert of a width.
        rules: Other fields of `Experts`.
    """
    config = config.renamed({"num_experts": ("num_local_experts",)})  # each family has had both
    experts = config.whole("num_experts", 1, MAX_EXPERTS)
    return Experts(
        experts,
        config.whole("num_experts_per_tok", 1, experts),
        expert(config.whole(size, 2, MAX_INTERMEDIATE)),
        **rules,
    )


def experts_from_gguf(
    file: GgufDescription,
    default_size: int | None = None,
    *,
    expert: Callable[[int], Dense] = Dense,
    **rules: Any,
) -> Experts:
    """Read the experts of GGUF metadata; llama.cpp's converter writes few of their rules.

    Args:
        file: Its metadata.
        default_size: The width of an expert, if the file leaves it out.
        expert: Makes an expert of a width.
        rules: Other fields of `Experts`.
    """
    metadata = file.metadata
    experts = metadata.whole("expert_count", 1, MAX_EXPERTS)
    chosen = metadata.whole("expert_used_count", 1, experts)
    size = metadata.whole("expert_feed_forward_length", 2, MAX_INTERMEDIATE, default_size)
    scale = metadata.number("expert_weights_scale", 0, _SCALES[1], 1.0)
    if metadata.has("expert_weights_norm"):
        rules["normalize"] = metadata.flag("expert_weights_norm")
    return Experts(experts, chosen, expert(size), **{"weight_scale": scale or 1.0, **rules})


def layers_with_experts(config: Fields) -> list[bool]:
    """Return whether each layer has experts, from Qwen's two fields."""
    layers = config.whole("num_hidden_layers", 1, MAX_LAYERS)
    step = config.whole("decoder_sparse_step", 1, MAX_LAYERS, 1)
    dense = config.indices("mlp_only_layers", layers)
    return [i not in dense and (i + 1) % step == 0 for i in range(layers)]


def mixed_layers(block: Block, experts: Experts, has_experts: Sequence[bool]) -> list[Block]:
    """Return each layer's block: `block`, or the same with experts."""
    with_experts = replace(block, feed_forward=experts)
    return [with_experts if has else block for has in has_experts]


def gguf_layers_with_experts(file: GgufDescription, layers: int) -> list[bool]:
    """Return whether each layer of a GGUF file has experts: those with a router."""
    return [f"blk.{i}.ffn_gate_inp.weight" in file.tensors for i in range(layers)]


def experts_of(spec: DecoderSpec) -> Experts:
    """Return the experts of a decoder, which are the same in all layers that have some."""
    found = (block.feed_forward for block in spec.blocks)
    return next(each for each in found if isinstance(each, Experts))


# What llama.cpp's converter writes.
COUNTS: dict[str, Value] = {
    "expert_count": lambda spec: experts_of(spec).experts,
    "expert_used_count": lambda spec: experts_of(spec).chosen,
}
SIZE: dict[str, Value] = {
    "expert_feed_forward_length": lambda spec: experts_of(spec).expert.intermediate_size
}
SHARED_SIZE: dict[str, Value] = {
    "expert_shared_feed_forward_length": lambda spec: experts_of(spec).shared_size
}
