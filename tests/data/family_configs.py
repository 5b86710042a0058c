"""Tiny configs of the families that transformers builds, one for each variant of a family.

Each is what `AutoConfig.for_model` takes, `model_type` included. The sizes are awkward on purpose,
and own windows are shorter than the texts of the tests. Below them is what the tests cannot find
out by themselves, because the code under test says it: most variants are in none of these tables.
"""

from __future__ import annotations

from typing import Any

_SIZES: dict[str, Any] = {
    "vocab_size": 293,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_SLIDING, _FULL = "sliding_attention", "full_attention"

_GEMMA = {**_SIZES, "model_type": "gemma", "head_dim": 32}
_GEMMA2 = {
    **_SIZES,
    "model_type": "gemma2",
    "head_dim": 32,
    "query_pre_attn_scalar": 32,  # the size of a head: GGUF files cannot say another
    "sliding_window": 40,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 8.0,
}
_GEMMA3 = {
    **_SIZES,
    "model_type": "gemma3_text",
    "num_hidden_layers": 7,  # the sixth has no window
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 32,
}
_GEMMA3_LINEAR = {
    **_GEMMA3,
    "rope_parameters": {
        _FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
        _SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    },
}
_VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_SMOLLM3 = {**_SIZES, "model_type": "smollm3"}
_OLMO2 = {**_SIZES, "model_type": "olmo2"}
_OLMO3 = {**_SIZES, "model_type": "olmo3", "sliding_window": 40}
_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 512,
    "rope_theta": 500_000.0,
}
_GRANITE = {
    **_SIZES,
    "model_type": "granite",
    "embedding_multiplier": 12.0,
    "logits_scaling": 8.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.15,
}
_GLM4 = {**_SIZES, "model_type": "glm4", "head_dim": 32}
_EXAONE4 = {**_SIZES, "model_type": "exaone4"}
_MINISTRAL3 = {
    **_SIZES,
    "model_type": "ministral3",
    "head_dim": 32,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1_000_000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}


def _longrope(original: int) -> dict[str, Any]:
    return {
        **_SIZES,
        "model_type": "phi3",
        "num_attention_heads": 3,  # heads of 32 dimensions, 24 of them rotated
        "num_key_value_heads": 1,
        "original_max_position_embeddings": original,
        "partial_rotary_factor": 0.75,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "original_max_position_embeddings": original,
            "partial_rotary_factor": 0.75,
            "short_factor": [1.0 + 0.02 * pair for pair in range(12)],
            "long_factor": [1.0 + 0.5 * pair for pair in range(12)],
        },
    }


FAMILY_CONFIGS: dict[str, dict[str, Any]] = {
    "gemma": _GEMMA,
    "gemma-biases": {**_GEMMA, "hidden_act": "gelu", "attention_bias": True},
    "gemma2": _GEMMA2,
    "gemma2-no-caps": {
        **_GEMMA2,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "query_pre_attn_scalar": 24,
        "sliding_window": 32,
    },
    "gemma3": _GEMMA3,
    "gemma3-linear": {
        **_GEMMA3_LINEAR,
        "num_hidden_layers": 3,
        "query_pre_attn_scalar": 40,
        "layer_types": [_SLIDING, _FULL, _SLIDING],
    },
    "gemma3-wrapped": {
        "model_type": "gemma3",
        "text_config": _GEMMA3_LINEAR,
        "vision_config": {**_VISION, "model_type": "siglip_vision_model"},
        "mm_tokens_per_image": 4,
        "image_token_index": 290,
        "boi_token_index": 291,
        "eoi_token_index": 292,
    },
    "smollm3": _SMOLLM3,
    "smollm3-windows": {**_SMOLLM3, "use_sliding_window": True, "sliding_window": 32},
    "olmo2": _OLMO2,
    "olmo3": _OLMO3,
    "olmo3-yarn": {
        **_OLMO3,
        "rope_parameters": {
            _FULL: _YARN,
            _SLIDING: {"rope_type": "default", "rope_theta": 500_000.0},
        },
    },
    "granite": _GRANITE,
    "granite-biases": {
        **_GRANITE,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
    },
    "glm4": _GLM4,
    "glm4-no-biases": {**_GLM4, "attention_bias": False, "partial_rotary_factor": 0.25},
    "exaone4": {**_EXAONE4, "sliding_window": None, "layer_types": [_FULL] * 4},
    "exaone4-windows": {**_EXAONE4, "sliding_window": 32, "sliding_window_pattern": 4},
    "ministral3": _MINISTRAL3,
    "ministral3-wrapped": {
        "model_type": "mistral3",
        "text_config": _MINISTRAL3,
        "vision_config": {**_VISION, "model_type": "pixtral", "head_dim": 8},
        "image_token_index": 290,
    },
    "phi3-longrope-short": _longrope(1024),
    "phi3-longrope-long": _longrope(128),
}
"""By variant. Those of one family begin with its name."""

_GPT_NEOX = {
    "model_type": "gpt_neox",
    "vocab_size": 293,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 512,
}
_FALCON = {
    "model_type": "falcon",
    "vocab_size": 293,
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
}
_MPT = {
    "model_type": "mpt",
    "vocab_size": 293,
    "d_model": 96,
    "n_heads": 6,
    "n_layers": 3,
    "max_seq_len": 512,
}
_COHERE = {**_SIZES, "model_type": "cohere", "logit_scale": 0.25}
_COHERE2 = {
    **_SIZES,
    "model_type": "cohere2",
    "sliding_window": 40,
    "logit_scale": 0.25,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50_000.0},
}
_ARCEE = {**_SIZES, "model_type": "arcee"}
_NEMOTRON = {**_SIZES, "model_type": "nemotron"}
_STABLELM = {**_SIZES, "model_type": "stablelm"}
_STARCODER2 = {**_SIZES, "model_type": "starcoder2"}

FAMILY_CONFIGS |= {
    "gpt_neox": {**_GPT_NEOX, "rotary_pct": 0.5},
    "gpt_neox-sequential": {
        **_GPT_NEOX,
        "use_parallel_residual": False,
        "hidden_act": "gelu_fast",
        "attention_bias": False,
        "rotary_pct": 1.0,
        "rotary_emb_base": 25_000,
        "tie_word_embeddings": True,
    },
    "falcon": _FALCON,
    "falcon-groups": {
        **_FALCON,
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "tie_word_embeddings": False,
    },
    "falcon-groups-one-norm": {
        **_FALCON,
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "num_ln_in_parallel_attn": 1,
        "ffn_hidden_size": 160,
        "rope_theta": 500_042.0,
    },
    "falcon-alibi": {
        **_FALCON,
        "multi_query": False,
        "alibi": True,
        "parallel_attn": False,
        "bias": True,
    },
    "mpt": _MPT,
    "mpt-clipped": {
        **_MPT,
        "n_heads": 8,
        "attn_config": {"clip_qkv": 0.8, "softmax_scale": 0.4},
    },
    "arcee": _ARCEE,
    "arcee-biases": {**_ARCEE, "attention_bias": True, "mlp_bias": True},
    "arcee-yarn": {**_ARCEE, "tie_word_embeddings": True, "rope_parameters": _YARN},
    "cohere": _COHERE,
    "cohere-biases": {**_COHERE, "attention_bias": True, "model_max_length": 4096},
    "cohere2": _COHERE2,
    "cohere2-untied": {
        **_COHERE2,
        "attention_bias": True,
        "layer_types": [_FULL, _SLIDING, _SLIDING, _FULL],
        "tie_word_embeddings": False,
    },
    "nemotron": _NEMOTRON,
    "nemotron-biases": {
        **_NEMOTRON,
        "attention_bias": True,
        "mlp_bias": True,
        "partial_rotary_factor": 0.25,
    },
    "nemotron-tied": {**_NEMOTRON, "tie_word_embeddings": True},
    "stablelm": {**_STABLELM, "num_attention_heads": 3, "num_key_value_heads": 3},
    "stablelm-parallel": {
        **_STABLELM,
        "use_parallel_residual": True,
        "use_qkv_bias": True,
        "partial_rotary_factor": 0.5,
        "tie_word_embeddings": True,
    },
    "starcoder2": {**_STARCODER2, "sliding_window": 40},
    "starcoder2-no-biases": {**_STARCODER2, "use_bias": False, "tie_word_embeddings": False},
}

_EXPERTS = {"num_experts": 7, "num_experts_per_tok": 3}
_LOCAL_EXPERTS = {"num_local_experts": 6, "num_experts_per_tok": 2}
_GPT_OSS = {
    **_SIZES,
    **_LOCAL_EXPERTS,
    "model_type": "gpt_oss",
    "head_dim": 32,
    "sliding_window": 40,
    "rope_parameters": {**_YARN, "rope_theta": 150_000.0, "truncate": False},
}
_GRANITE_SWA = {**_GRANITE, "model_type": "granite_swa", "sliding_window": 40}
_GLM4_MOE = {
    **_SIZES,
    "model_type": "glm4_moe",
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.8,
    "num_nextn_predict_layers": 0,
}
_HUNYUAN = {**_SIZES, "head_dim": 32}
_PHIMOE = {
    **_SIZES,
    **_LOCAL_EXPERTS,
    "model_type": "phimoe",
    "attention_bias": True,
    "lm_head_bias": True,
}
_QWEN3_MOE = {
    **_SIZES,
    **_EXPERTS,
    "model_type": "qwen3_moe",
    "head_dim": 32,
    "moe_intermediate_size": 48,
}

FAMILY_CONFIGS |= {
    "mixtral": {**_SIZES, **_LOCAL_EXPERTS, "model_type": "mixtral"},
    "mixtral-windows": {
        **_SIZES,
        **_LOCAL_EXPERTS,
        "model_type": "mixtral",
        "sliding_window": 40,
    },
    "qwen3_moe": {**_QWEN3_MOE, "norm_topk_prob": True},
    "qwen3_moe-dense-layers": {
        **_QWEN3_MOE,
        "norm_topk_prob": True,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [1],
        "attention_bias": True,
    },
    "qwen2_moe": {
        **_SIZES,
        **_EXPERTS,
        "model_type": "qwen2_moe",
        "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 72,
    },
    "olmoe": {**_SIZES, **_EXPERTS, "model_type": "olmoe"},
    "granitemoe": {**_GRANITE, **_LOCAL_EXPERTS, "model_type": "granitemoe"},
    "gpt_oss": _GPT_OSS,
    "granite_swa": _GRANITE_SWA,
    "granite_swa-bases": {
        **_GRANITE_SWA,
        "layer_rope_theta": [0, 10_000.0, 10_000.0, 500_000.0],
        "layer_types": [_SLIDING, _SLIDING, _FULL, _SLIDING],
        "attention_bias": True,
        "mlp_bias": True,
    },
    "granitemoe_swa": {
        **_GRANITE_SWA,
        **_LOCAL_EXPERTS,
        "model_type": "granitemoe_swa",
        "shared_intermediate_size": 72,
    },
    "mellum": {
        **_QWEN3_MOE,
        "model_type": "mellum",
        "sliding_window": 40,
        "layer_types": [_SLIDING, _FULL, _SLIDING, _SLIDING],
        "rope_parameters": {
            _FULL: _YARN,
            _SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
        },
    },
    "ernie4_5": {**_SIZES, "model_type": "ernie4_5", "head_dim": 32},
    "ernie4_5_moe": {
        **_SIZES,
        "model_type": "ernie4_5_moe",
        "moe_num_experts": 7,
        "moe_k": 3,
        "moe_intermediate_size": 40,
        "moe_num_shared_experts": 2,
    },
    "glm4_moe": _GLM4_MOE,
    "glm4_moe-norms": {
        **_GLM4_MOE,
        "use_qk_norm": True,
        "attention_bias": True,
        "norm_topk_prob": False,
        "first_k_dense_replace": 2,
    },
    "minimax_m2": {
        **_SIZES,
        **_LOCAL_EXPERTS,
        "model_type": "minimax_m2",
        "head_dim": 32,
        "rotary_dim": 16,
        "scoring_func": "sigmoid",
    },
    "seed_oss": {**_SIZES, "model_type": "seed_oss", "head_dim": 32},
    "hunyuan_v1_dense": {**_HUNYUAN, "model_type": "hunyuan_v1_dense"},
    "hunyuan_v1_dense-alpha": {
        **_HUNYUAN,
        "model_type": "hunyuan_v1_dense",
        "attention_bias": True,
        "max_position_embeddings": 32 << 10,
        "rope_parameters": {
            "rope_type": "dynamic",
            "alpha": 50.0,
            "factor": 1.0,
            "rope_theta": 10_000.0,
        },
        "tie_word_embeddings": True,
    },
    "hunyuan_v1_moe": {
        **_HUNYUAN,
        "model_type": "hunyuan_v1_moe",
        "num_experts": 7,
        "moe_topk": [3] * 4,
        "moe_intermediate_size": [160] * 4,
        "num_shared_expert": [1] * 4,
    },
    "phimoe": {**_PHIMOE, "router_jitter_noise": 0.01},
    "phimoe-longrope": {
        **_PHIMOE,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "original_max_position_embeddings": 1024,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "original_max_position_embeddings": 1024,
            "short_factor": [1.0 + 0.02 * pair for pair in range(16)],
            "long_factor": [1.0 + 0.5 * pair for pair in range(16)],
            "short_mscale": 1.243163121016122,
            "long_mscale": 1.243163121016122,
        },
    },
    "apertus": {
        **_SIZES,
        "model_type": "apertus",
        "rope_parameters": {"rope_type": "default", "rope_theta": 12_000_000.0},
    },
    "apertus-llama3": {**_SIZES, "model_type": "apertus", "attention_bias": True},
}

_LFM2 = {**_SIZES, "model_type": "lfm2", "block_multiple_of": 16}
_CONV = "conv"

FAMILY_CONFIGS |= {
    "lfm2": {**_LFM2, "layer_types": [_CONV, _FULL, _CONV, _CONV]},
    "lfm2-bias": {
        **_LFM2,
        "layer_types": [_FULL, _CONV, _CONV, _FULL],
        "conv_bias": True,
        "conv_L_cache": 4,
        "block_auto_adjust_ff_dim": False,
        "tie_word_embeddings": False,
    },
}

INTERLEAVED = ("cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "glm4")
"""Families that rotate adjacent dimensions."""
PERMUTED = (
    "arcee", "granite", "granite_swa", "granitemoe", "granitemoe_swa", "llama", "ministral3",
    "mistral", "mixtral", "smollm3",
)  # fmt: skip
"""Families in whose GGUF files rows of queries and keys are permuted, so that pairs adjoin."""

NOT_IN_GGUF = {
    "lfm2-bias": "biases of its convolutions",
    "apertus-llama3": "llama3's scheme, of which its converter makes divisors",
    "cohere2-untied": "which layers have windows",
    "falcon-alibi": "ALiBi",
    "gemma2-no-caps": "its scale, which is not that of the head's size",
    "gemma3-linear": "its scale, and which layers have windows",
    "gpt_neox-sequential": "its activation",
    "granite_swa-bases": "the bases of layers",
    "mixtral-windows": "windows",
    "mpt-clipped": "its scale",
    "qwen3_moe-dense-layers": "layers without experts",
    "smollm3-windows": "windows",
}
"""What the GGUF files of some variants cannot say: no such file is written by family_gguf.py."""

_GEMMA3_AS_PUBLISHED = {"query_pre_attn_scalar": 32, "num_hidden_layers": 7, "layer_types": None}
AS_PUBLISHED: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 32},
    "gemma3": _GEMMA3_AS_PUBLISHED,
    "gemma3-linear": _GEMMA3_AS_PUBLISHED,
    "gemma3-wrapped": _GEMMA3_AS_PUBLISHED,
    "gpt_neox-sequential": {"hidden_act": "gelu", "rotary_emb_base": 10_000},
    "granite_swa-bases": {"layer_rope_theta": None},
    "falcon-groups-one-norm": {"ffn_hidden_size": 4 * 96, "rope_theta": 10_000.0},
    "mpt-clipped": {"attn_config": {"clip_qkv": 0.8}},
    "phimoe": FAMILY_CONFIGS["phimoe-longrope"],  # the converter knows no other RoPE of it
}
"""Fields that llama.cpp's converter does not write, with the values of all published models."""

NOT_CONVERTED = {
    "lfm2-bias": "llama.cpp's LFM2 has no biases",
    "cohere2-untied": "llama.cpp's Command R7B has no output matrix but the embedding",
    "falcon-alibi": "llama.cpp's Falcon has neither ALiBi nor a second norm in each layer",
    "gemma2-no-caps": "llama.cpp's Gemma 2 always has soft caps",
    "qwen3_moe-dense-layers": "llama.cpp's Qwen3 has experts in every layer",
}
"""Variants of which llama.cpp's converter makes no file."""

_WINDOWS = "must have no sliding-window layers"
NOT_WRITTEN = {
    "arcee-biases": r'must not have the tensor "blk\.0\.attn_output\.bias"',
    "cohere-biases": r'must not have the tensor "blk\.0\.attn_output\.bias"',
    "cohere2-untied": r'must not have the tensor "blk\.0\.attn_output\.bias", but does; llama\.cpp',
    "exaone4-windows": rf"{_WINDOWS}, but has some.* unless they have 64 layers",
    "falcon-alibi": r'must not have the tensor "blk\.0\.attn_output\.bias"',
    "gemma-biases": r'must not have the tensor "blk\.0\.attn_output\.bias"',
    "gemma2-no-caps": r'must be .* "gemma2" can describe, but `blocks\.mixer\.scale` would be',
    "gpt_neox-sequential": r'must have the tensor "output\.weight", but does not; llama\.cpp',
    "gpt_oss": "must be 16-bit or 32-bit",
    "granite_swa-bases": r'must be .* "granite_swa" can describe, but `blocks` would be lost',
    "lfm2-bias": r'must be .* "lfm2" can describe, but `blocks\.mixer\.conv_bias` would be',
    "hunyuan_v1_dense-alpha": r'must not have the tensor "blk\.0\.attn_output\.bias"',
    "mistral-windows": _WINDOWS,
    "mixtral-windows": _WINDOWS,
    "nemotron-tied": r'must have the tensor "output\.weight"',
    "qwen2-windows": _WINDOWS,
    "qwen3-all-windows": _WINDOWS,
    "qwen3_moe-dense-layers": r'must not have the tensor "blk\.0\.attn_output\.bias"',
    "smollm3-windows": _WINDOWS,
    "stablelm-parallel": r'must have the tensor "output\.weight"',
    "starcoder2-no-biases": r'must have the tensor "blk\.0\.attn_output\.bias"',
}
"""Variants that `sinkstream quantize` refuses, and why: llama.cpp would not load such a file, or
would compute something else, though its converter writes most of them."""
