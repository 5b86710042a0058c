"""How llama.cpp describes a family in GGUF, as data: a name, fields, and what it reads.

Fields that all decoders have are in `export/model_from_folder.py`; those of rotation are in
`export/llama_cpp_form.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sinkstream.checkpoint.spec import Attention, DecoderSpec, RopeSpec

Value = Callable[[DecoderSpec], Any]
"""What a field says about a decoder; None: the field is left out."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """How GGUF represents a family."""

    name: str
    fields: Mapping[str, Value] = field(default_factory=dict)
    """Fields that not all decoders have."""
    bare_fields: Mapping[str, Value] = field(default_factory=dict)
    """Fields whose names do not begin with that of the architecture."""
    schemes: tuple[str, ...] = ()
    """Rotary schemes that llama.cpp reads for this family, next to default, linear and yarn."""
    has_log_multiplier: bool = False
    """Whether llama.cpp reads YaRN's second multiplier for this family."""
    pairs_adjoin: bool = False
    """Whether rows of queries and keys that rotate together adjoin; in folders they do not."""
    biases: tuple[str, ...] = ()
    """Parts whose biases llama.cpp reads; those of q, k and v it reads in all families."""
    needs: tuple[str, ...] = ()
    """Weights without which llama.cpp does not load the family, by their slots."""
    windows_at: int | None = None
    """The only number of layers with which llama.cpp applies their windows; None: any number."""
    ignores: tuple[str, ...] = ()
    """Weights for which llama.cpp has no place in this family, by their slots."""
    heads_fill: bool = False
    """Whether llama.cpp takes the heads together to be as wide as the hidden size."""

    @property
    def has_windows(self) -> bool:
        """Return whether llama.cpp reads the windows of layers in this family."""
        return "attention.sliding_window" in self.fields


def attention_of(spec: DecoderSpec) -> Attention:
    """Return what attention of all layers has in common, apart from windows and rotation."""
    return spec.attentions[0]


def rotating_ropes(spec: DecoderSpec) -> tuple[RopeSpec | None, RopeSpec | None]:
    """Return how layers with their own windows rotate, and how the others do; None if none does."""
    attentions = [attention for attention in spec.attentions if attention.rope.rotary_dim]
    local = next((each.rope for each in attentions if each.window), None)
    return local, next((each.rope for each in attentions if not each.window), None)


def base_of(frequencies: Sequence[float]) -> float:
    """Return the base of frequencies without a scheme; for a single pair, any base will do."""
    return frequencies[1] ** -len(frequencies) if len(frequencies) > 1 else 10_000.0


def _window(spec: DecoderSpec) -> int | None:
    return max(spec.own_windows, default=None)


def _local_base(spec: DecoderSpec) -> float | None:
    """Return the base of layers with windows, if they rotate differently from the others."""
    local, other = rotating_ropes(spec)
    return None if local is None or other is None else base_of(local.inverse_frequencies)


def _alibi_most(spec: DecoderSpec) -> float:
    """Return the negative exponent of the last slope that does not lie between others."""
    return -math.log2(attention_of(spec).slopes[(1 << (spec.heads.bit_length() - 1)) - 1])


ALL_BIASES = ("o", "gate", "up", "down")
"""The parts whose biases llama.cpp reads in some families only."""

# Fields that several families have.
WINDOW: dict[str, Value] = {"attention.sliding_window": _window}
WINDOW_OR_0: dict[str, Value] = {"attention.sliding_window": lambda spec: _window(spec) or 0}
WINDOW_PATTERN: dict[str, Value] = {
    "attention.sliding_window_pattern": lambda spec: [each > 0 for each in spec.own_windows] or None
}
LOCAL_BASE: dict[str, Value] = {"rope.freq_base_swa": _local_base}
ALIBI: dict[str, Value] = {"attention.max_alibi_bias": _alibi_most}
CLIP: dict[str, Value] = {"attention.clamp_kqv": lambda spec: attention_of(spec).clip or None}
LOGIT_CAP: dict[str, Value] = {"final_logit_softcapping": lambda spec: spec.logit_soft_cap or None}
PARALLEL: dict[str, Value] = {"use_parallel_residual": lambda spec: spec.blocks[0].parallel}
NO_SCHEME: dict[str, Value] = {"rope.scaling.type": lambda spec: "none"}  # unless it has one
