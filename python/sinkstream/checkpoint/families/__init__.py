"""The model families that can be loaded, one file each."""

from __future__ import annotations

from sinkstream.checkpoint.families import llama, mistral, phi3, qwen2, qwen3
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (llama.FAMILY, mistral.FAMILY, phi3.FAMILY, qwen2.FAMILY, qwen3.FAMILY)
}
"""By `model_type` of config.json, which is also the architecture name in GGUF."""


def find_family(name: str, where: str) -> Family:
    """Return the family with this name.

    Args:
        name: The name in the checkpoint.
        where: The file and field that it comes from, for the error.

    Raises:
        CheckpointError: The family is not supported; the message lists those that are.
    """
    if name not in FAMILIES:
        raise CheckpointError(
            f"load: {where} {quoted(name)}; supported are {', '.join(sorted(FAMILIES))}."
        )
    return FAMILIES[name]


__all__ = ["FAMILIES", "Family", "GgufDescription", "find_family"]
