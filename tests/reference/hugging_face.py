"""The decoder of a llama-like checkpoint, from its config.json and its tensors alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.reference.decoder import Decoder
from tests.reference.rope import Array, rope_from_config

_SLOTS = {
    "model.embed_tokens": "embedding",
    "model.norm": "final_norm",
    "lm_head": "output",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "mlp_norm",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}


def from_hugging_face(
    config: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    own_windows: Sequence[int] = (),
) -> Decoder:
    """Return the decoder of a llama, mistral, phi3, qwen2 or qwen3.

    The tensors that are present decide whether q, k and v have biases, whether q and k are
    normalized, and whether there is a separate output matrix.

    Args:
        config: The content of config.json.
        tensors: Under their Hugging Face names; they are widened to float64.
        own_windows: Of each layer, 0 for none; empty if no layer has one.
    """
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    weights = slot_weights(tensors, kv_heads * head_dim)
    norm = SimpleNamespace(kind="rms", eps=config["rms_norm_eps"], bias=False)
    blocks = [
        SimpleNamespace(
            mixer=SimpleNamespace(
                kind="attention",
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                rope=rope_from_config(config, head_dim),
                scale=head_dim**-0.5,
                window=window,
                soft_cap=0,
                slopes=(),
                qk_norm="head" if "layers.0.q_norm" in weights else "none",
                qkv_bias="layers.0.q_bias" in weights,
                output_bias=False,
                clip=0,
                temperature=0,
                temperature_length=1,
                sink_logits=False,
            ),
            feed_forward=SimpleNamespace(kind="dense", activation="silu", gated=True, bias=False),
            norm=norm,
            attention_norm=True,
            mlp_norm=True,
            attention_post_norm=False,
            mlp_post_norm=False,
            parallel=False,
            residual_scale=1,
        )
        for window in own_windows or [0] * config["num_hidden_layers"]
    ]
    spec = SimpleNamespace(
        blocks=blocks,
        block_of_layer=range(len(blocks)),
        final_norm=norm,
        tie_embeddings="output" not in weights,
        embedding_scale=1,
        logit_scale=1,
        logit_bias=False,
        logit_soft_cap=0,
    )
    return Decoder(spec, weights)


def slot_weights(tensors: Mapping[str, np.ndarray], kv: int) -> dict[str, Array]:
    """Return the tensors in float64, under the names of weight slots.

    Args:
        tensors: Under their Hugging Face names.
        kv: The rows of k, and of v.
    """
    weights: dict[str, Array] = {}
    for name, tensor in tensors.items():
        for part, rows in _separate(name, np.asarray(tensor, np.float64), kv).items():
            stem, kind = part.rsplit(".", 1)
            at, tail = "", stem
            if stem.startswith("model.layers."):
                _, _, layer, tail = stem.split(".", 3)
                at = f"layers.{layer}."
            weights[at + _SLOTS[tail] + ("_bias" if kind == "bias" else "")] = rows
    return weights


def _separate(name: str, tensor: Array, kv: int) -> dict[str, Array]:
    """Cut a fused tensor into q, k and v, with `kv` rows each in the last two, or gate and up."""
    if "qkv_proj" in name:
        parts = np.split(tensor, [len(tensor) - 2 * kv, len(tensor) - kv])
        return {name.replace("qkv", part): rows for part, rows in zip("qkv", parts, strict=True)}
    if "gate_up_proj" in name:
        gate, up = np.split(tensor, 2)
        return {name.replace("gate_up", "gate"): gate, name.replace("gate_up", "up"): up}
    return {name: tensor}
