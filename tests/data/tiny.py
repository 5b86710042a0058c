"""Tiny seeded checkpoints of every family, written as Hugging Face folders and as GGUF files.

The shapes are awkward on purpose: head counts that are not powers of two, head_dim * heads unequal
to the hidden size, a vocabulary that is not a multiple of 16. Weights have a wide distribution, so
attention is far from uniform, and a key at a wrong position clearly changes the logits.
`python -m tests.data.tiny FOLDER` writes all checkpoints.
"""

from __future__ import annotations

import json
import sys
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.data.tiny_tokenizer import TinyTokenizer

Weights = dict[str, npt.NDArray[np.float32]]

BLOCKS = {"F32": 1, "F16": 1, "BF16": 1, "Q8_0": 32, "Q4_0": 32, "Q4_1": 32, "Q5_0": 32,
          "Q5_1": 32, "IQ4_NL": 32, "MXFP4": 32, "Q2_K": 256, "Q3_K": 256, "Q4_K": 256,
          "Q5_K": 256, "Q6_K": 256, "IQ4_XS": 256}  # fmt: skip
"""The numbers in a block of every storage type."""
STORAGES = tuple(BLOCKS)


@dataclass(frozen=True)
class TinyModel:
    """A checkpoint in memory: the content of config.json, and weights by Hugging Face names."""

    name: str
    config: dict[str, Any]
    weights: Weights
    tokenizer: TinyTokenizer | None  # None: ids only


def _config(model_type: str, **fields: Any) -> dict[str, Any]:
    architecture = model_type.title()
    return {
        "architectures": [architecture + "ForCausalLM"],
        "model_type": model_type,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "float32",
        **fields,
    }


_LLAMA = _config(
    "llama",
    vocab_size=293,
    hidden_size=96,
    intermediate_size=160,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    rope_theta=10_000.0,  # the layout of configs before transformers 5
    tie_word_embeddings=False,
)
_QWEN2 = _config(
    "qwen2",
    vocab_size=307,
    hidden_size=96,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=3,
    num_key_value_heads=1,
    rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
    tie_word_embeddings=True,
    use_sliding_window=False,
)
_QWEN3 = _config(
    "qwen3",
    vocab_size=131,
    hidden_size=48,
    intermediate_size=112,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    head_dim=32,
    rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
    tie_word_embeddings=False,
    rms_norm_eps=1e-6,
)
_MISTRAL = _config(
    "mistral",
    vocab_size=293,
    hidden_size=96,
    intermediate_size=160,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,  # heads · head_dim is not the hidden size, as in Mistral Nemo
    rope_theta=10_000.0,
    sliding_window=None,
    tie_word_embeddings=False,
)
_PHI3 = _config(
    "phi3",
    vocab_size=293,
    hidden_size=96,
    intermediate_size=160,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    rope_theta=10_000.0,
    original_max_position_embeddings=4096,
    pad_token_id=0,  # transformers' default is above the vocabulary
    tie_word_embeddings=False,
)
_SCHEMES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
}

CONFIGS: dict[str, tuple[dict[str, Any], str | None]] = {
    "llama": (_LLAMA, "smollm"),
    "mistral": (_MISTRAL, "smollm"),
    "mistral-windows": ({**_MISTRAL, "sliding_window": 40}, None),
    "phi3": (_PHI3, "smollm"),
    "phi3-windows": ({**_PHI3, "sliding_window": 40}, None),
    "qwen2": (_QWEN2, "qwen2"),
    "qwen3": (_QWEN3, None),
    "qwen2-windows": (
        {
            **_QWEN2,
            "num_hidden_layers": 3,
            "use_sliding_window": True,
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        "qwen2",
    ),
    "qwen3-all-windows": (
        {
            **_QWEN3,
            "use_sliding_window": True,
            "sliding_window": 32,
            "max_window_layers": 0,
        },
        None,
    ),
    "llama-one-layer": ({**_LLAMA, "num_hidden_layers": 1}, None),
    "llama-wide": (
        {
            **_LLAMA,
            "num_hidden_layers": 2,
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_attention_heads": 8,
        },
        "smollm",
    ),
    **{
        f"llama-{name}": ({**_LLAMA, "rope_scaling": scheme}, None)
        for name, scheme in _SCHEMES.items()
    },
}
"""For each name: its config, and the pre-tokenizer if it has a tokenizer."""

FAMILIES = ("llama", "mistral", "phi3", "qwen2", "qwen3")


def model_for(storage: str) -> str:
    """Return the name of a model whose rows are whole blocks of this storage type."""
    return "llama-wide" if BLOCKS[storage] > 32 else "llama"


ROPE_SCHEMES = tuple(f"llama-{name}" for name in _SCHEMES)


def build(name: str) -> TinyModel:
    """Generate the checkpoint with this name; the same name always gives the same numbers."""
    config, pre = CONFIGS[name]
    draw = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    weights = {
        tensor: _draw(draw, tensor, shape, config["tie_word_embeddings"]).astype(np.float32)
        for tensor, shape in _shapes(config).items()
    }
    return TinyModel(name, config, weights, None if pre is None else TinyTokenizer(pre))


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden)
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        shapes[at + "input_layernorm.weight"] = (hidden,)
        is_fused = config["model_type"] == "phi3"
        if is_fused:
            rows = (heads + 2 * kv_heads) * head_dim
            shapes[at + "self_attn.qkv_proj.weight"] = (rows, hidden)
            shapes[at + "mlp.gate_up_proj.weight"] = (2 * inner, hidden)
        for name, rows in () if is_fused else (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            shapes[at + f"self_attn.{name}_proj.weight"] = (rows * head_dim, hidden)
            if config["model_type"] == "qwen2":
                shapes[at + f"self_attn.{name}_proj.bias"] = (rows * head_dim,)
        if config["model_type"] == "qwen3":
            shapes[at + "self_attn.q_norm.weight"] = (head_dim,)
            shapes[at + "self_attn.k_norm.weight"] = (head_dim,)
        shapes[at + "self_attn.o_proj.weight"] = (hidden, heads * head_dim)
        shapes[at + "post_attention_layernorm.weight"] = (hidden,)
        if not is_fused:
            shapes[at + "mlp.gate_proj.weight"] = (inner, hidden)
            shapes[at + "mlp.up_proj.weight"] = (inner, hidden)
        shapes[at + "mlp.down_proj.weight"] = (hidden, inner)
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def _draw(
    draw: np.random.Generator, tensor: str, shape: tuple[int, ...], tied: bool
) -> npt.NDArray[np.float64]:
    if "norm" in tensor:
        return draw.uniform(0.6, 1.4, shape)
    if tensor.endswith(".bias"):
        return draw.normal(0.0, 0.5, shape)
    if "embed_tokens" in tensor:
        # Tied to the output, rows of length 1 would give huge logits and a softmax of a single id.
        return draw.normal(0.0, 0.2 if tied else 1.0, shape)
    # Queries and keys are wider than the rest: larger scores make the softmax peaked.
    gain = 1.6 if any(name in tensor for name in ("q_proj", "k_proj", "qkv_proj")) else 1.0
    return draw.normal(0.0, gain / np.sqrt(shape[-1]), shape)


# ---- Hugging Face folders ----


def write_folder(model: TinyModel, folder: Path, *, shards: int = 1, dtype: str = "F32") -> Path:
    """Write config.json, the weights, and the tokenizer if there is one.

    Args:
        model: From `build`.
        folder: Created if missing.
        shards: Number of safetensors files; more than one get an index.
        dtype: "F32", "F16" or "BF16".
    """
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    torch_dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[dtype]
    config = {**model.config, "torch_dtype": str(torch_dtype).removeprefix("torch.")}
    if model.tokenizer is not None:
        model.tokenizer.write_folder(folder)
        config |= model.tokenizer.end_ids()
    (folder / "config.json").write_text(json.dumps(config, indent=2))

    names = list(model.weights)
    if shards == 1:
        files = {"model.safetensors": names}
    else:
        files = {
            f"model-{i + 1:05}-of-{shards:05}.safetensors": names[i::shards] for i in range(shards)
        }
        weight_map = {name: file for file, held in files.items() for name in held}
        size = sum(w.size for w in model.weights.values()) * torch_dtype.itemsize
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    for file, held in files.items():
        tensors = {name: torch.from_numpy(model.weights[name]).to(torch_dtype) for name in held}
        save_file(tensors, folder / file, metadata={"format": "pt"})
    return folder


# ---- GGUF ----


def write_gguf(model: TinyModel, path: Path, storage: str = "F32") -> Path:
    """Write a GGUF file as llama.cpp's converter does.

    Matrices are stored as `storage`, vectors as F32. Files of llama permute the rows of q and k for
    interleaved rotary; those of the other families do not.
    """
    import gguf

    config, architecture = model.config, model.config["model_type"]
    if {"rope_scaling", "head_dim"} & config.keys() and architecture == "llama":
        raise ValueError(f"write_gguf: {model.name} needs metadata that this writer does not write")
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]

    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(model.name)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(theta)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if architecture in ("llama", "phi3"):
        writer.add_rope_dimension_count(head_dim)
    if config.get("sliding_window") and architecture == "phi3":
        writer.add_sliding_window(config["sliding_window"])
    if "head_dim" in config:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if model.tokenizer is not None:
        model.tokenizer.write_gguf(writer, config["vocab_size"])
    for name, weight in model.weights.items():
        kind = gguf.GGMLQuantizationType[storage if weight.ndim == 2 else "F32"]
        permuted = (
            _permute(weight, name, config) if architecture in ("llama", "mistral") else weight
        )
        writer.add_tensor(_gguf_name(name), _quantize(permuted, kind.name), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def as_stored(model: TinyModel, storage: str) -> TinyModel:
    """Return the model with its weights rounded to this storage type."""
    import gguf

    def rounded(weight: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        if weight.ndim == 1:
            return weight
        kind = gguf.GGMLQuantizationType[storage]
        stored = gguf.quants.dequantize(_quantize(weight, storage), kind)
        return np.asarray(stored, np.float32)

    return replace(model, weights={name: rounded(w) for name, w in model.weights.items()})


def _quantize(weight: npt.NDArray[np.float32], storage: str) -> npt.NDArray[Any]:
    """Return the blocks of a matrix, [rows, bytes of a row], or its numbers if they have none."""
    import gguf
    import libgguf

    if storage in ("F32", "F16", "BF16"):
        return gguf.quants.quantize(weight, gguf.GGMLQuantizationType[storage])
    blocks = libgguf.quantize_rows(weight, int(gguf.GGMLQuantizationType[storage]))
    return np.asarray(blocks, np.uint8)


def _permute(
    weight: npt.NDArray[np.float32], name: str, config: dict[str, Any]
) -> npt.NDArray[np.float32]:
    """Interleave the two halves of each query and key head, as in llama's GGUF files."""
    if "q_proj" in name:
        heads = config["num_attention_heads"]
    elif "k_proj" in name:
        heads = config["num_key_value_heads"]
    else:
        return weight
    halves = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


_GGUF_NAMES = {
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{_GGUF_NAMES[stem]}.{kind}"
    layer, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{_GGUF_NAMES[part]}.{kind}"


def main(folder: Path) -> None:
    """Write every checkpoint into `folder`: folders, a sharded folder, and GGUF files."""
    for name in CONFIGS:
        write_folder(build(name), folder / name)
    write_folder(build("llama"), folder / "llama-sharded", shards=3)
    for name in FAMILIES:
        write_gguf(build(name), folder / f"{name}-F32.gguf")
    for storage in STORAGES[1:]:
        write_gguf(build(model_for(storage)), folder / f"llama-{storage}.gguf", storage)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
