"""How llama.cpp describes each family, as data: a name, fields, and what of a decoder it reads.

Fields that all decoders have are in `from_folder.py`; rotation fields are in `rope_metadata.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sinkstream.checkpoint.spec import Attention, DecoderSpec
from sinkstream.export.rope_metadata import base_of, rotating_ropes

Value = Callable[[DecoderSpec], Any]
"""What a field says about a decoder; None: the field is left out."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """How GGUF represents a family."""

    name: str
    fields: Mapping[str, Value] = field(default_factory=dict)
    """Fields that not all decoders have."""
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


def _attention(spec: DecoderSpec) -> Attention:
    return spec.blocks[0].attention


def _is_parallel(spec: DecoderSpec) -> bool:
    return spec.blocks[0].parallel


def _window(spec: DecoderSpec) -> int | None:
    return max(spec.own_windows, default=None)


def _local_base(spec: DecoderSpec) -> float | None:
    """Return the base of layers with windows, if they rotate differently from the others."""
    local, other = rotating_ropes(spec)
    return None if local is None or other is None else base_of(local.inverse_frequencies)


def _alibi_most(spec: DecoderSpec) -> float:
    """Return the negative exponent of the last slope that does not lie between others."""
    return -math.log2(_attention(spec).slopes[(1 << (spec.heads.bit_length() - 1)) - 1])


def _of_temperature(spec: DecoderSpec) -> int | None:
    attention = _attention(spec)
    return attention.temperature_length if attention.temperature else None


_ALL_BIASES = ("o", "gate", "up", "down")
_WINDOWS: dict[str, Value] = {"attention.sliding_window": _window}
_WINDOW_OR_0: dict[str, Value] = {"attention.sliding_window": lambda spec: _window(spec) or 0}
_PATTERN: dict[str, Value] = {
    "attention.sliding_window_pattern": lambda spec: [each > 0 for each in spec.own_windows] or None
}
_LOCAL_BASE: dict[str, Value] = {"rope.freq_base_swa": _local_base}
_LOGIT_CAP: dict[str, Value] = {"final_logit_softcapping": lambda spec: spec.logit_soft_cap or None}
_PARALLEL: dict[str, Value] = {"use_parallel_residual": _is_parallel}

_LLAMA = Architecture("llama", schemes=("llama3",), pairs_adjoin=True, biases=_ALL_BIASES)
_OLMO = Architecture(
    "olmo2", {**_WINDOWS, **_PATTERN, **_LOCAL_BASE}, needs=("output",), heads_fill=True
)

ARCHITECTURES: dict[str, Architecture] = {
    "cohere2": Architecture(
        "cohere2",
        {
            **_WINDOWS,
            "logit_scale": lambda spec: spec.logit_scale,
            "rope.scaling.type": lambda spec: "none",
        },
        ignores=("output",),
        heads_fill=True,
    ),
    "exaone4": Architecture(
        "exaone4",
        {**_WINDOWS, **_PATTERN},
        schemes=("llama3",),
        windows_at=64,
        heads_fill=True,
    ),
    # How the rows of queries, keys and values lie: the files say it, though all are alike.
    "falcon": Architecture(
        "falcon", {"tensor_data_layout": lambda spec: "jploski"}, heads_fill=True
    ),
    "gemma2": Architecture(
        "gemma2",
        {
            **_WINDOWS,
            **_LOGIT_CAP,
            "attn_logit_softcapping": lambda spec: _attention(spec).soft_cap or None,
        },
        ignores=("output",),
    ),
    "gemma3_text": Architecture("gemma3", {**_WINDOWS, **_LOCAL_BASE, **_LOGIT_CAP}),
    "glm4": Architecture("glm4"),
    "gpt_neox": Architecture(
        "gptneox",
        _PARALLEL,
        biases=_ALL_BIASES,
        needs=("output", "layers.0.q_bias", "layers.0.o_bias"),
        heads_fill=True,
    ),
    "granite": Architecture(
        "granite",
        {
            "attention.scale": lambda spec: _attention(spec).scale,
            "embedding_scale": lambda spec: spec.embedding_scale,
            "logit_scale": lambda spec: 1 / spec.logit_scale,
            "residual_scale": lambda spec: spec.blocks[0].residual_scale,
        },
        schemes=("llama3",),
        pairs_adjoin=True,
        biases=_ALL_BIASES,
    ),
    "llama": _LLAMA,
    "ministral3": Architecture(
        "mistral3",
        {
            "attention.temperature_scale": lambda spec: _attention(spec).temperature or None,
            "rope.scaling.original_context_length": _of_temperature,
        },
        schemes=("llama3",),
        has_log_multiplier=True,
        pairs_adjoin=True,
    ),
    "mistral": _LLAMA,
    "mpt": Architecture(
        "mpt",
        {
            "attention.clamp_kqv": lambda spec: _attention(spec).clip or None,
            "attention.max_alibi_bias": _alibi_most,
        },
        heads_fill=True,
    ),
    # The converter writes epsilon under both names; a linear or YaRN scheme replaces "none".
    "nemotron": Architecture(
        "nemotron",
        {
            "attention.layer_norm_rms_epsilon": lambda spec: spec.final_norm.eps,
            "rope.scaling.type": lambda spec: "none",
        },
        biases=_ALL_BIASES,
        needs=("output",),
        heads_fill=True,
    ),
    "olmo2": _OLMO,
    "olmo3": _OLMO,
    "phi3": Architecture("phi3", _WINDOW_OR_0, schemes=("longrope",), heads_fill=True),
    "qwen2": Architecture("qwen2", heads_fill=True),
    "qwen3": Architecture("qwen3"),
    "smollm3": Architecture("smollm3", pairs_adjoin=True),
    "stablelm": Architecture("stablelm", _PARALLEL, needs=("output",), heads_fill=True),
    # llama.cpp neither writes nor applies the window; without the field, files have that of 4,096.
    "starcoder2": Architecture(
        "starcoder2",
        _WINDOW_OR_0,
        biases=_ALL_BIASES,
        needs=("layers.0.o_bias", "layers.0.down_bias"),
        heads_fill=True,
    ),
}
"""By family."""
