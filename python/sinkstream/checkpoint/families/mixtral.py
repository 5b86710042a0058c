"""Mixtral: llama's layers with experts; the weights of the chosen ones add up to 1."""

from __future__ import annotations

from dataclasses import replace

from sinkstream.checkpoint.families.experts import COUNTS, experts_from_config
from sinkstream.checkpoint.families.family import Family
from sinkstream.checkpoint.families.llama import FAMILY as LLAMA
from sinkstream.checkpoint.families.sizes import rms_norm_from_config, sizes_from_config
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES
from sinkstream.checkpoint.families.windows import one_window
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import Block, DecoderSpec


def _from_config(config: Fields) -> DecoderSpec:
    sizes = sizes_from_config(config)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length, base=1e6)
    experts = experts_from_config(config, "intermediate_size", normalize=True)
    block = Block(sizes.attention(rope), experts, rms_norm_from_config(config))
    return sizes.spec("mixtral", block, one_window(config, None))


EXPERT_NAMES = {
    "router": "block_sparse_moe.gate.weight",
    "experts.*.gate": "block_sparse_moe.experts.*.w1.weight",
    "experts.*.up": "block_sparse_moe.experts.*.w3.weight",
    "experts.*.down": "block_sparse_moe.experts.*.w2.weight",
}
"""Names in folders, also of MiniMax-M2."""

FAMILY = Family(
    "mixtral",
    _from_config,
    LLAMA.spec_from_gguf,
    folder_names=FOLDER_NAMES.with_names(EXPERT_NAMES),
    written=replace(LLAMA.written, fields=COUNTS),
    architectures=(),
    models="Mixtral 8x7B, Mixtral 8x22B",
)
