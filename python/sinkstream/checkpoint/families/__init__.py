"""The model families that can be loaded, one file each."""

from __future__ import annotations

from collections.abc import Mapping

from sinkstream.checkpoint.families import (
    apertus,
    arcee,
    cohere,
    cohere2,
    ernie4_5,
    ernie4_5_moe,
    exaone4,
    falcon,
    gemma,
    gemma2,
    gemma3_text,
    glm4,
    glm4_moe,
    gpt_neox,
    gpt_oss,
    granite,
    granite_swa,
    granitemoe,
    granitemoe_swa,
    hunyuan_v1_dense,
    hunyuan_v1_moe,
    lfm2,
    llama,
    mellum,
    minimax_m2,
    ministral3,
    mistral,
    mixtral,
    mpt,
    nemotron,
    olmo2,
    olmo3,
    olmoe,
    phi3,
    phimoe,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    seed_oss,
    smollm3,
    stablelm,
    starcoder2,
)
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        apertus.FAMILY,
        arcee.FAMILY,
        cohere.FAMILY,
        cohere2.FAMILY,
        ernie4_5.FAMILY,
        ernie4_5_moe.FAMILY,
        exaone4.FAMILY,
        falcon.FAMILY,
        gemma.FAMILY,
        gemma2.FAMILY,
        gemma3_text.FAMILY,
        glm4.FAMILY,
        glm4_moe.FAMILY,
        gpt_neox.FAMILY,
        gpt_oss.FAMILY,
        granite.FAMILY,
        granite_swa.FAMILY,
        granitemoe.FAMILY,
        granitemoe_swa.FAMILY,
        hunyuan_v1_dense.FAMILY,
        hunyuan_v1_moe.FAMILY,
        lfm2.FAMILY,
        llama.FAMILY,
        mellum.FAMILY,
        minimax_m2.FAMILY,
        ministral3.FAMILY,
        mistral.FAMILY,
        mixtral.FAMILY,
        mpt.FAMILY,
        nemotron.FAMILY,
        olmo2.FAMILY,
        olmo3.FAMILY,
        olmoe.FAMILY,
        phi3.FAMILY,
        phimoe.FAMILY,
        qwen2.FAMILY,
        qwen2_moe.FAMILY,
        qwen3.FAMILY,
        qwen3_moe.FAMILY,
        seed_oss.FAMILY,
        smollm3.FAMILY,
        stablelm.FAMILY,
        starcoder2.FAMILY,
    )
}
"""By `model_type` of config.json."""

ARCHITECTURES: dict[str, Family] = {
    name: family for family in FAMILIES.values() for name in family.gguf_architectures
}
"""By architecture of GGUF."""

_TEXTS = {name: family for family in FAMILIES.values() for name in family.text_of}

# Model types and architectures whose layers have parts that no decoder here has yet.
_EXPERTS = ("deepseek2", "deepseek_v2", "deepseek_v3", "dots1")
_RECURRENT = (
    "falcon-h1", "falcon_h1", "falcon_mamba", "granitehybrid", "granitemoehybrid", "jamba",
    "lfm2_moe", "lfm2moe", "lfm3", "mamba", "mamba2", "nemotron_h", "qwen35", "qwen35moe",
    "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "qwen3next",
    "recurrent_gemma", "rwkv7",
)  # fmt: skip
_SHAPES = ("gemma3n", "gemma3n_text", "gemma4", "gemma4_text")
_PLANNED = {
    **dict.fromkeys(_EXPERTS, "experts of another kind"),
    **dict.fromkeys(_RECURRENT, "recurrent layers"),
    **dict.fromkeys(_SHAPES, "heads of different sizes"),
}


def find_family(name: str, where: str, families: Mapping[str, Family] = FAMILIES) -> Family:
    """Return the family with this name.

    Args:
        name: The name in the checkpoint.
        where: The file and field that it comes from, for the error.
        families: `FAMILIES`, or `ARCHITECTURES` for a GGUF file.

    Raises:
        CheckpointError: The family is not supported. The message lists those that are, or names the
            part that is planned.
    """
    if families is FAMILIES:
        families = {**FAMILIES, **_TEXTS}
    if name in _PLANNED and name not in families:
        raise CheckpointError(
            f"load: {where} {quoted(name)}, which has {_PLANNED[name]}. Such models are not "
            "supported yet, but support for them is planned."
        )
    if name not in families:
        raise CheckpointError(
            f"load: {where} {quoted(name)}; the supported ones are {', '.join(sorted(families))}."
        )
    return families[name]


__all__ = ["ARCHITECTURES", "FAMILIES", "Family", "GgufDescription", "find_family"]
