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
PARTS = ("gate", "up", "down")
"""The matrices of an expert."""
_SCALES = (1e-6, 1e6)

GGUF_FIELDS = ("expert_count",)
"""What families with experts read, and others must not have, for `sizes_from_gguf`."""
_GATING = {"softmax": 1, "sigmoid": 2, "softmax_of_chosen": 3}
"""llama.cpp's numbers for a router's scores."""


def experts_from_config(
    config: Fields,
    size: str = "moe_intermediate_size",
    *,
    count: str = "num_local_experts",
    chosen: str = "num_experts_per_tok",
    shared: str = "",
    groups: tuple[str, str] | None = None,
    expert: Callable[[int], Dense] = Dense,
    **rules: Any,
) -> Experts:
    """Read the experts of a config.json.

    Args:
        config: Its fields.
        size: The name of an expert's width; it and `chosen` may have a number for each layer.
        count: Another name of "num_experts".
        chosen: Another name of "num_experts_per_tok".
        shared: The name of the number of experts that every token goes through; empty: none.
        groups: The names of the number of groups, and of those that a token uses; None: one.
        expert: Makes an expert of a width.
        rules: Other fields of `Experts`.
    """
    config = config.renamed({"num_experts": (count,), "num_experts_per_tok": (chosen,)})
    experts = config.whole("num_experts", 1, MAX_EXPERTS)
    layers = config.whole("num_hidden_layers", 1, MAX_LAYERS)
    used = config.per_layer("num_experts_per_tok", layers, 1, experts)
    width = config.per_layer(size, layers, 2, MAX_INTERMEDIATE)
    found = Experts(experts, used, expert(width), **rules)
    return _with_parts(found, config, shared, groups)


def _with_parts(
    experts: Experts, fields: Fields, shared: str, groups: tuple[str, str] | None
) -> Experts:
    """Read the experts that every token goes through, as a single wider one, and the groups."""
    if shared:
        count = fields.whole(shared, 0, MAX_EXPERTS)
        experts = replace(experts, shared_size=count * experts.expert.intermediate_size)
    if groups is None:
        return experts
    count_name, used_name = groups
    count = fields.whole(count_name, 0, experts.experts, 1) or 1  # llama.cpp: 0 means one, too
    if experts.experts % count:
        raise fields.error(count_name, f"divide the {experts.experts} experts", count)
    used = fields.whole(used_name, 0, count, count) or count
    if used * (experts.experts // count) < experts.chosen:
        rule = f"leave at least the {experts.chosen} experts that a token uses"
        raise fields.error(used_name, rule, used)
    return replace(experts, groups=count, chosen_groups=used)


def experts_from_gguf(
    file: GgufDescription,
    default_size: int | None = None,
    *,
    chosen_size: int = 0,
    shared: str = "",
    groups: tuple[str, str] | None = None,
    expert: Callable[[int], Dense] = Dense,
    **rules: Any,
) -> Experts:
    """Read the experts of GGUF metadata; llama.cpp's converter writes few of their rules.

    Args:
        file: Its metadata.
        default_size: The width of an expert, if the file leaves it out.
        chosen_size: Instead, the width of all that a token uses, as llama.cpp reads some families.
        shared: As for `experts_from_config`.
        groups: As for `experts_from_config`.
        expert: Makes an expert of a width.
        rules: Other fields of `Experts`.
    """
    metadata = file.metadata
    layers = metadata.whole("block_count", 1, MAX_LAYERS)
    experts = metadata.whole("expert_count", 1, MAX_EXPERTS)
    chosen = metadata.per_layer("expert_used_count", layers, 1, experts)
    length, default_size = "expert_feed_forward_length", default_size or chosen_size // chosen
    size = metadata.per_layer(length, layers, 2, MAX_INTERMEDIATE, default_size or None)
    metadata.must_be("expert_gating_func", _GATING[rules.get("score", "softmax")])
    scale = metadata.number("expert_weights_scale", 0, _SCALES[1], 1.0)
    if metadata.has("expert_weights_norm"):
        rules["normalize"] = metadata.flag("expert_weights_norm")
    found = Experts(experts, chosen, expert(size), **{"weight_scale": scale or 1.0, **rules})
    return _with_parts(found, metadata, shared, groups)


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


def _leading_dense(spec: DecoderSpec) -> int:
    """Return how many of the first layers have no experts."""
    dense = [spec.blocks[kind].experts is None for kind in spec.block_of_layer]
    return dense.index(False)


# What llama.cpp's converter writes.
COUNTS: dict[str, Value] = {
    "expert_count": lambda spec: experts_of(spec).experts,
    "expert_used_count": lambda spec: experts_of(spec).chosen,
}
SIZE: dict[str, Value] = {
    "expert_feed_forward_length": lambda spec: experts_of(spec).expert.intermediate_size
}
SHARED_SIZE: dict[str, Value] = {
    "expert_shared_feed_forward_length": lambda spec: experts_of(spec).shared_size or None
}
SHARED_COUNT: dict[str, Value] = {
    "expert_shared_count": lambda spec: (
        experts_of(spec).shared_size // experts_of(spec).expert.intermediate_size
    )
}
LEADING: dict[str, Value] = {"leading_dense_block_count": _leading_dense}
STEP: dict[str, Value] = {"interleave_moe_layer_step": lambda spec: 1}
GATING: dict[str, Value] = {"expert_gating_func": lambda spec: _GATING[experts_of(spec).score]}
GLM_FIELDS: dict[str, Value] = {
    **COUNTS,
    **SIZE,
    **SHARED_COUNT,
    **LEADING,
    **GATING,
    "nextn_predict_layers": lambda spec: 0,
    "expert_group_count": lambda spec: experts_of(spec).groups,
    "expert_group_used_count": lambda spec: experts_of(spec).chosen_groups,
    "expert_weights_norm": lambda spec: experts_of(spec).normalize,
    "expert_weights_scale": lambda spec: experts_of(spec).weight_scale,
}
