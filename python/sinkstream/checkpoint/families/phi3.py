"""Phi-3 and Phi-4: queries, keys and values are one tensor, and so are gate and up."""

from __future__ import annotations

from sinkstream.checkpoint.families.family import (
    Family,
    GgufDescription,
    Switches,
    decoder_from_config,
    decoder_from_gguf,
    one_window,
)
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES, GGUF_NAMES, Fused
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.spec import DecoderSpec
from sinkstream.errors import CheckpointError

_QKV, _GATE_UP = Fused(("q", "k", "v")), Fused(("gate", "up"))
_LONGROPE = "rope_factors_long.weight"


def _from_config(config: Fields) -> DecoderSpec:
    return decoder_from_config(config, "phi3", Switches(), one_window(config, None))


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    if _LONGROPE in file.tensors:
        raise CheckpointError(
            f"load: {file.metadata.where} must have one list of rotary frequencies, but has "
            f"{quoted(_LONGROPE)}: its frequencies depend on the length of the text."
        )
    return decoder_from_gguf(file, "phi3", "half", Switches(), has_windows=True)


FAMILY = Family(
    "phi3",
    _from_config,
    _from_gguf,
    FOLDER_NAMES.with_fused(
        {"self_attn.qkv_proj.weight": _QKV, "mlp.gate_up_proj.weight": _GATE_UP}
    ),
    GGUF_NAMES.with_fused({"attn_qkv.weight": _QKV, "ffn_up.weight": _GATE_UP}),
)
