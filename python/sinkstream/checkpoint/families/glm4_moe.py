"""GLM-4.5 and later: experts whose choice has a bias, one for every token, dense first layers."""

from __future__ import annotations

from typing import Any

from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.families.experts import (
    GGUF_FIELDS,
    GLM_FIELDS,
    PARTS,
    experts_from_config,
    experts_from_gguf,
    gguf_layers_with_experts,
    mixed_layers,
)
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.parts import biases_from_gguf
from sinkstream.checkpoint.families.sizes import (
    gguf_rope,
    rms_norm_from_config,
    rms_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES, GGUF_NAMES
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config
from sinkstream.checkpoint.spec import Block, DecoderSpec

_RULES: dict[str, Any] = {"score": "sigmoid", "choice_bias": True, "group_score": "sum_of_two",
                          "normalize_eps": 1e-20}  # fmt: skip


def _from_config(config: Fields) -> DecoderSpec:
    sizes = sizes_from_config(config)
    rope = rope_from_config(config, sizes.head_dim, sizes.trained_length, partial=0.5)
    qk_norm = "head" if config.flag("use_qk_norm", False) else "none"
    attention = sizes.attention(
        rope, qkv_bias=config.flag("attention_bias", False), qk_norm=qk_norm
    )
    block = Block(attention, sizes.dense(), rms_norm_from_config(config))
    normalize = config.flag("norm_topk_prob", True)
    scale = config.number("routed_scaling_factor", 1e-6, 1e6, 1.0)
    experts = experts_from_config(
        config.with_defaults({"n_shared_experts": 1, "topk_group": 1}), count="n_routed_experts",
        shared="n_shared_experts", groups=("n_group", "topk_group"), normalize=normalize,
        weight_scale=scale, **_RULES,
    )  # fmt: skip
    first = config.whole("first_k_dense_replace", 0, sizes.layers - 1, 1)
    layers = mixed_layers(block, experts, [i >= first for i in range(sizes.layers)])
    return sizes.spec("glm4_moe", block, layers=layers)


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    sizes = sizes_from_gguf(file, GGUF_FIELDS)
    qk_norm = "head" if "blk.0.attn_q_norm.weight" in file.tensors else "none"
    attention = sizes.attention(
        gguf_rope(file, sizes, "half"), qk_norm=qk_norm, **biases_from_gguf(file)
    )
    block = Block(attention, sizes.dense(), rms_norm_from_gguf(file.metadata))
    groups = ("expert_group_count", "expert_group_used_count")
    experts = experts_from_gguf(file, shared="expert_shared_count", groups=groups, **_RULES)
    layers = mixed_layers(block, experts, gguf_layers_with_experts(file, sizes.layers))
    return sizes.spec("glm4_moe", block, layers=layers)


FAMILY = Family(
    "glm4_moe",
    _from_config,
    _from_gguf,
    folder_names=FOLDER_NAMES.with_names({"choice_bias": "mlp.gate.e_score_correction_bias"})
    .with_modules({f"shared.{part}": f"mlp.shared_experts.{part}_proj" for part in PARTS})
    .with_unused("model.layers.{}.*"),  # it predicts further tokens
    gguf_names=GGUF_NAMES.with_names({"mlp_norm": "post_attention_norm.weight"}).with_unused(
        "blk.{}.*"
    ),
    written=Architecture("glm4moe", GLM_FIELDS),
    models="GLM-4.5-Air, GLM-4.5, GLM-4.6, GLM-4.7",
)
