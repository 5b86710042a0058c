"""Tiny transformers models, and the same weights for the literal protocol."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.reference.attention import PLAIN, Read, Scores, alibi
from tests.reference.rope import Array, Rope, rope_from_config

VOCAB = 101
# Heads that are rotated in part, as a whole, and not at all: what `make test` runs where the rest
# of a family does not matter.
FEW = {"gpt_neox", "llama", "mpt"}
UNTURNED = Rope(np.zeros(0))
_LLAMA = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
_FALCON = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 256,
    "bias": True,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_LLAMA},
    "llama-llama3": {
        "model_type": "llama",
        **_LLAMA,
        "rope_parameters": {"rope_theta": 1e4, **_LLAMA3},
    },
    "llama-yarn": {
        "model_type": "llama",
        **_LLAMA,
        "rope_parameters": {"rope_theta": 1e4, **_YARN},
    },
    "mistral": {"model_type": "mistral", **_LLAMA, "sliding_window": None},
    "qwen2": {"model_type": "qwen2", **_LLAMA},
    "qwen3": {"model_type": "qwen3", **_LLAMA, "head_dim": 16},
    "gpt_neox": {
        "model_type": "gpt_neox",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
        "rotary_pct": 0.25,
    },
    "gpt_neox-sequential": {
        "model_type": "gpt_neox",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
        "rotary_pct": 0.5,
        "use_parallel_residual": False,
    },
    "falcon": {"model_type": "falcon", **_FALCON, "multi_query": True, "alibi": False},
    "falcon-new": {
        "model_type": "falcon",
        **_FALCON,
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "alibi": False,
    },
    "falcon-alibi": {
        "model_type": "falcon",
        **_FALCON,
        "multi_query": False,
        "alibi": True,
        "parallel_attn": False,
    },
    "mpt": {
        "model_type": "mpt",
        "vocab_size": VOCAB,
        "d_model": 48,
        "n_heads": 6,
        "n_layers": 2,
        "max_seq_len": 96,
        "expansion_ratio": 4,
    },
}
"""For each name, the fields of its config.json."""


def build(name: str, **fields: Any) -> Any:
    """Build the model of this name, the same every time; `fields` override its config."""
    # Untied: a tied output matrix makes the last token the most probable next one.
    config = AutoConfig.for_model(**{"tie_word_embeddings": False, **CONFIGS[name], **fields})
    torch.manual_seed(zlib.crc32(name.encode()))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for parameter_name, parameter in model.named_parameters():
        # Wide enough for peaked attention: scores of a few units, and distinct logits.
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=1.6 / parameter.shape[1] ** 0.5)
        elif "bias" in parameter_name:
            torch.nn.init.normal_(parameter, std=0.1)
        else:
            torch.nn.init.uniform_(parameter, 0.6, 1.4)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    model.generation_config.use_cache = True  # MPT's says False
    return model.eval()


class _ExactAngles(torch.nn.Module):
    """A rotary embedding with float64 angles; those of transformers are float32."""

    rope_type = "default"

    def __init__(self, frequencies: torch.Tensor) -> None:
        super().__init__()
        self.inv_freq = frequencies

    def forward(
        self, x: torch.Tensor, position_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].double() * self.inv_freq.double()
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def with_exact_angles(model: Any) -> Any:
    """Replace the rotary embedding of a Llama-like model."""
    model.model.rotary_emb = _ExactAngles(model.model.rotary_emb.inv_freq)
    return model


class Block(Protocol):
    """One layer of a decoder, without its attention."""

    def project(self, hidden: Array) -> tuple[Array, Array, Array]:
        """Return queries [tokens, heads, head_dim], and keys and values [tokens, kv_heads, …]."""
        ...

    def finish(self, hidden: Array, read: Array) -> Array:
        """Return the layer's output, given what attention read: [tokens, heads * head_dim]."""
        ...


class Oracle:
    """A model's weights in float64, without its attention: the protocol's `Decoder`."""

    def __init__(self, model: Any) -> None:
        model = copy.deepcopy(model).double()
        base, config = model.base_model, model.config
        kinds = {"gpt_neox": _NeoX, "falcon": _Falcon, "mpt": _Mpt}
        kind = kinds.get(config.model_type, _Llama)
        layers = base.blocks if config.model_type == "mpt" else getattr(base, "layers", None)
        self._blocks: list[Block] = [kind(layer, config) for layer in layers or base.h]
        self.layers = len(self._blocks)
        self._rope, self._scores = positions_of(config)
        self._embedding = base.get_input_embeddings()
        norms = {"gpt_neox": "final_layer_norm", "falcon": "ln_f", "mpt": "norm_f"}
        self._norm = getattr(base, norms.get(config.model_type, "norm"))
        self._head = model.get_output_embeddings()

    def rope_of(self, _layer: int) -> Rope:
        """Return how queries and keys are rotated: the same in all layers."""
        return self._rope

    def scores_of(self, _layer: int) -> Scores:
        """Return how scores follow from their products."""
        return self._scores

    def run(self, ids: Sequence[int], read: Read) -> Array:
        """Return the logits [tokens, vocab]; `read` computes the attention."""
        hidden = _numpy(self._embedding(torch.tensor(list(ids))))
        for layer, block in enumerate(self._blocks):
            found = read(layer, *block.project(hidden))
            hidden = block.finish(hidden, found.reshape(len(ids), -1))
        return _numpy(self._head(self._norm(torch.from_numpy(hidden)).double()))


def positions_of(config: Any) -> tuple[Rope, Scores]:
    """Return how a model encodes positions: by rotation, or by a bias."""
    if config.model_type == "mpt":
        return UNTURNED, alibi(_mpt_slopes(config.n_heads))
    if config.model_type == "falcon" and config.alibi:
        return UNTURNED, Scores(bias=_falcon_bias(config.num_attention_heads, config.hidden_size))
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    share = config.rope_parameters.get("partial_rotary_factor", 1.0)
    scheme = {"rope_parameters": config.rope_parameters}
    return rope_from_config(scheme, int(head_dim * share)), PLAIN


def _mpt_slopes(heads: int) -> Array:
    """Return the slopes 2^-(8i/n), n the next power of two; every other one first if n > heads."""
    power = 1 << (heads - 1).bit_length()
    slopes = [2.0 ** -(8 * i / power) for i in range(1, power + 1)]
    if power != heads:
        slopes = (slopes[1::2] + slopes[::2])[:heads]
    return np.array(slopes)


def _falcon_bias(heads: int, hidden: int) -> Callable[[int], Array]:
    """Return Falcon's bias; transformers rounds its slope and its product to bfloat16."""
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** -(8 * i / power) for i in range(1, power + 1)]
    slopes += [2.0 ** -(8 * i / (2 * power)) for i in range(1, 2 * (heads - power), 2)]
    rounded = torch.tensor(slopes, dtype=torch.float32).bfloat16()
    return lambda position: _numpy((rounded * position).double()) / (hidden // heads) ** 0.5


class _Llama:
    """Llama, Mistral, Qwen2 and Qwen3."""

    def __init__(self, layer: Any, config: Any) -> None:
        self.layer, self.dim = layer, layer.self_attn.head_dim

    def project(self, hidden: Array) -> tuple[Array, Array, Array]:
        attention, x = self.layer.self_attn, self.layer.input_layernorm(torch.from_numpy(hidden))
        q, k, v = (
            project(x.double()).unflatten(-1, (-1, self.dim))
            for project in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if hasattr(attention, "q_norm"):
            q, k = attention.q_norm(q), attention.k_norm(k)
        return _numpy(q), _numpy(k), _numpy(v)

    def finish(self, hidden: Array, read: Array) -> Array:
        h = torch.from_numpy(hidden) + self.layer.self_attn.o_proj(torch.from_numpy(read))
        return _numpy(h + self.layer.mlp(self.layer.post_attention_layernorm(h).double()))


class _NeoX:
    """GPT-NeoX; the query, key and value of a head are adjacent."""

    def __init__(self, layer: Any, config: Any) -> None:
        self.layer, self.heads = layer, config.num_attention_heads

    def project(self, hidden: Array) -> tuple[Array, Array, Array]:
        x = self.layer.input_layernorm(torch.from_numpy(hidden))
        q, k, v = (
            self.layer.attention.query_key_value(x).unflatten(-1, (self.heads, 3, -1)).unbind(2)
        )
        return _numpy(q), _numpy(k), _numpy(v)

    def finish(self, hidden: Array, read: Array) -> Array:
        h = torch.from_numpy(hidden)
        attended = h + self.layer.attention.dense(torch.from_numpy(read))
        source = h if self.layer.use_parallel_residual else attended
        return _numpy(attended + self.layer.mlp(self.layer.post_attention_layernorm(source)))


class _Falcon:
    """Falcon: one key head for all, one per group (new architecture), or one per head."""

    def __init__(self, layer: Any, config: Any) -> None:
        self.layer, self.config = layer, config
        if config.new_decoder_architecture:
            self.kv_heads = config.num_kv_heads
        else:
            self.kv_heads = 1 if config.multi_query else config.num_attention_heads

    def project(self, hidden: Array) -> tuple[Array, Array, Array]:
        norm = getattr(self.layer, "ln_attn", None) or self.layer.input_layernorm
        fused = self.layer.self_attention.query_key_value(norm(torch.from_numpy(hidden)))
        group = self.config.num_attention_heads // self.kv_heads + 2  # its queries, a key, a value
        fused = fused.unflatten(-1, (self.kv_heads, group, -1))
        q, k, v = fused[:, :, :-2].flatten(1, 2), fused[:, :, -2], fused[:, :, -1]
        return _numpy(q), _numpy(k), _numpy(v)

    def finish(self, hidden: Array, read: Array) -> Array:
        h = torch.from_numpy(hidden)
        attended = h + self.layer.self_attention.dense(torch.from_numpy(read))
        if hasattr(self.layer, "ln_mlp"):
            x = self.layer.ln_mlp(h)
        elif self.config.parallel_attn:
            x = self.layer.input_layernorm(h)
        else:
            x = self.layer.post_attention_layernorm(attended)
        return _numpy(attended + self.layer.mlp(x))


class _Mpt:
    """MPT."""

    def __init__(self, layer: Any, config: Any) -> None:
        self.layer, self.heads = layer, config.n_heads

    def project(self, hidden: Array) -> tuple[Array, Array, Array]:
        fused = self.layer.attn.Wqkv(self.layer.norm_1(torch.from_numpy(hidden)))
        q, k, v = fused.unflatten(-1, (3, self.heads, -1)).unbind(1)
        return _numpy(q), _numpy(k), _numpy(v)

    def finish(self, hidden: Array, read: Array) -> Array:
        h = torch.from_numpy(hidden) + self.layer.attn.out_proj(torch.from_numpy(read))
        return _numpy(self.layer.ffn(self.layer.norm_2(h), h))


def _numpy(x: torch.Tensor) -> Array:
    return x.detach().double().numpy()
