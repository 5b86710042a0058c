"""Builds the models of `FAMILY_CONFIGS` with transformers, and saves them as folders."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.data.family_configs import FAMILY_CONFIGS
from tests.data.mxfp4_experts import round_experts, split_experts


def build_family(name: str, *, peak: float = 1.6, **changes: Any) -> transformers.PreTrainedModel:
    """Return the model of a variant in float32, with drawn weights; the same name, the same ones.

    Weights have a wide distribution, and norms and biases differ from 1 and 0, as in `tiny`.

    Args:
        name: In `FAMILY_CONFIGS`.
        peak: How much wider than the rest queries and keys are: larger scores make the softmax
            peaked, which also enlarges rounding errors.
        changes: Fields of the text model's config that get another value.
    """
    fields = dict(FAMILY_CONFIGS[name])
    is_wrapper = "text_config" in fields
    if is_wrapper:
        fields["text_config"] = {**fields["text_config"], **changes}
    else:
        fields |= changes
    config = transformers.AutoConfig.for_model(**fields)
    kind: Any = (
        transformers.AutoModelForImageTextToText
        if is_wrapper
        else transformers.AutoModelForCausalLM
    )
    # "sdpa" has no soft caps, and "eager" adds the biases of Falcon's ALiBi twice.
    attention = "sdpa" if config.model_type == "falcon" else "eager"
    model = kind.from_config(config, dtype=torch.float32, attn_implementation=attention).eval()
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    with torch.no_grad():
        for tensor, weight in (*model.named_parameters(), *_choice_biases(model)):
            weight.copy_(_drawn(tensor, weight, generator, peak))
        if config.model_type == "gpt_oss":
            round_experts(model)
    return model


def _choice_biases(model: transformers.PreTrainedModel) -> list[tuple[str, torch.Tensor]]:
    """Return the biases of routers that are not trained by gradients."""
    return [pair for pair in model.named_buffers() if pair[0].endswith("bias")]


def save_family(name: str, folder: Path, **changes: Any) -> transformers.PreTrainedModel:
    """Write the folder of a variant as transformers does, and return the model.

    `changes` are those of `build_family`.
    """
    model = build_family(name, **changes)
    model.save_pretrained(folder)
    if model.config.model_type == "gpt_oss":
        split_experts(folder)
    return model


def _drawn(
    tensor: str, weight: torch.Tensor, generator: torch.Generator, peak: float
) -> torch.Tensor:
    noise = torch.randn(weight.shape, generator=generator)
    if tensor.endswith("bias"):
        return 0.3 * noise
    if weight.dim() == 1:  # a norm: around what it is without training, which is 1 or 0
        return weight + 0.8 * (torch.rand(weight.shape, generator=generator) - 0.5)
    if "embed" in tensor or "wte" in tensor:
        return 0.3 * noise
    gain = peak if any(part in tensor for part in ("q_proj", "k_proj", "qkv", "query")) else 1.0
    return gain / weight.shape[-1] ** 0.5 * noise
