"""Llama, and models with its architecture: SmolLM2, TinyLlama, Llama 3."""

from __future__ import annotations

from sinkstream.checkpoint.families.family import (
    Family,
    GgufDescription,
    Switches,
    decoder_from_config,
    decoder_from_gguf,
    no_windows,
)
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import DecoderSpec


def _from_config(config: Fields) -> DecoderSpec:
    config.must_be("rope_interleaved", False)
    attention_bias = config.flag("attention_bias", False)
    switches = Switches(
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=config.flag("mlp_bias", False),
    )
    return decoder_from_config(config, "llama", switches, no_windows(config))


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    switches = Switches(
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
    )
    # The converter permutes the rows of q and k for llama only, not for the other families here.
    return decoder_from_gguf(file, "llama", "interleaved", switches)


FAMILY = Family("llama", _from_config, _from_gguf)
