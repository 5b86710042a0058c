"""Transformers as an independent decoder, in float32 or in float64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers

from tests.reference.rope import Array


class _Rotary(torch.nn.Module):
    """Angles in float64; transformers always computes them in float32."""

    def __init__(self, inverse_frequencies: Array, attention_factor: float) -> None:
        super().__init__()
        self.inverse_frequencies = torch.from_numpy(inverse_frequencies)
        self.attention_factor = attention_factor

    def forward(
        self, x: torch.Tensor, position_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].double() * self.inverse_frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos() * self.attention_factor, angles.sin() * self.attention_factor


class Oracle:
    """A model of transformers, loaded by transformers."""

    def __init__(self, folder: Path, *, gguf_file: str | None = None) -> None:
        options: dict[str, Any] = {} if gguf_file is None else {"gguf_file": gguf_file}
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", **options
        )

    def in_float64(self, inverse_frequencies: Array, attention_factor: float = 1.0) -> Oracle:
        """Widen the model, and replace the two modules that would still round to float32."""
        self.model.double()
        self.model.model.rotary_emb = _Rotary(inverse_frequencies, attention_factor)
        norms = [
            (name, module)
            for name, module in self.model.named_modules()
            if type(module).__name__.endswith("RMSNorm")
        ]
        for name, module in norms:
            size, eps = module.weight.shape, module.variance_epsilon
            wide = torch.nn.RMSNorm(size, eps, dtype=torch.float64)
            wide.weight = module.weight
            self.model.set_submodule(name, wide)
        return self

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Return the logits [tokens, vocab] of one text, in the model's type."""
        with torch.inference_mode():
            found = self.model(torch.tensor([list(ids)]), use_cache=False).logits[0]
        return cast(np.ndarray, found.numpy())
