"""The families of models that can be loaded: one file each."""

from __future__ import annotations

from sinkstream.checkpoint.families import llama, qwen2, qwen3
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError

FAMILIES: dict[str, Family] = {
    family.name: family for family in (llama.FAMILY, qwen2.FAMILY, qwen3.FAMILY)
}
"""By `model_type` of config.json, which is also the architecture's name in GGUF."""


def find_family(name: str, where: str) -> Family:
    """Return the family of that name.

    Args:
        name: The checkpoint's word for it.
        where: Which field of which file says so, for the error.

    Raises:
        CheckpointError: There is none; the message lists those that there are.
    """
    if name not in FAMILIES:
        raise CheckpointError(
            f"load: {where} {quoted(name)}; supported are {', '.join(sorted(FAMILIES))}."
        )
    return FAMILIES[name]


__all__ = ["FAMILIES", "Family", "GgufDescription", "find_family"]
