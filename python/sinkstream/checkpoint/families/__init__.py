"""The model families that can be loaded, one file each."""

from __future__ import annotations

from collections.abc import Mapping

from sinkstream.checkpoint.families import (
    cohere2,
    exaone4,
    falcon,
    gemma2,
    gemma3_text,
    glm4,
    gpt_neox,
    granite,
    llama,
    ministral3,
    mistral,
    mpt,
    olmo2,
    olmo3,
    phi3,
    qwen2,
    qwen3,
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
        cohere2.FAMILY,
        exaone4.FAMILY,
        falcon.FAMILY,
        gemma2.FAMILY,
        gemma3_text.FAMILY,
        glm4.FAMILY,
        gpt_neox.FAMILY,
        granite.FAMILY,
        llama.FAMILY,
        ministral3.FAMILY,
        mistral.FAMILY,
        mpt.FAMILY,
        olmo2.FAMILY,
        olmo3.FAMILY,
        phi3.FAMILY,
        qwen2.FAMILY,
        qwen3.FAMILY,
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


def find_family(name: str, where: str, families: Mapping[str, Family] = FAMILIES) -> Family:
    """Return the family with this name.

    Args:
        name: The name in the checkpoint.
        where: The file and field that it comes from, for the error.
        families: `FAMILIES`, or `ARCHITECTURES` for a GGUF file.

    Raises:
        CheckpointError: The family is not supported; the message lists those that are.
    """
    if name not in families:
        raise CheckpointError(
            f"load: {where} {quoted(name)}; supported are {', '.join(sorted(families))}."
        )
    return families[name]


__all__ = ["ARCHITECTURES", "FAMILIES", "Family", "GgufDescription", "find_family"]
