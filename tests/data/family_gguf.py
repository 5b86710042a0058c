"""Writes the models of `FAMILY_CONFIGS` as GGUF files, as llama.cpp's converter does.

The names of tensors are those of the package gguf, and not the ones under test.
"""

from __future__ import annotations

import math
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

from sinkstream.checkpoint.families import FAMILIES
from tests.data.family_configs import PERMUTED

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


_LIKE = {"granite_swa": "granite", "granitemoe_swa": "granitemoe", "mellum": "qwen3moe"}
"""Families that the package gguf lacks, and an architecture with the same names of tensors."""
_RENAMED = {
    ".block_sparse_moe.router.weight": ".block_sparse_moe.router.layer.weight",
    ".gate.moe_statics.e_score_correction_bias": ".moe_statics.e_score_correction.bias",
    ".e_score_correction_bias": ".e_score_correction.bias",
}
"""Names of transformers' modules that its folders do not have."""


def write_family_gguf(
    model: PreTrainedModel, path: Path, *, family: str | None = None, name: str | None = None
) -> Path:
    """Write a model as a GGUF file without a tokenizer.

    `family`: whose tensors it has, if not that of its type; `name`: of its architecture then.
    """
    config = model.config.get_text_config()
    written = FAMILIES[family or config.model_type].written
    architecture = written.name  # test_llama_cpp_converter.py checks the name
    writer = gguf.GGUFWriter(path, name or architecture)
    _add_sizes(writer, config)
    _add_rope(writer, config)
    _add_windows(writer, config, has_pattern="attention.sliding_window_pattern" in written.fields)
    _add_scales(writer, config)
    _add_experts(writer, config)
    _add_xielu(writer, model)
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    kind = kinds[_LIKE.get(config.model_type, architecture)]
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    biases = (pair for pair in model.named_buffers() if pair[0].endswith("bias"))
    for tensor, weight in (*model.named_parameters(), *biases):  # those that are tied, once
        if (
            "vision" in tensor
            or "visual" in tensor
            or "multi_modal" in tensor
            or ".act_fn." in tensor
        ):
            continue
        part_of = tensor.replace("model.language_model.", "model.")
        for theirs, ours in _RENAMED.items():
            part_of = part_of.replace(theirs, ours)
        if ".experts." in part_of or "sinks" in part_of or "input_linear" in part_of:
            is_gpt_oss = config.model_type == "gpt_oss"
            for part, numbers in _split(part_of, weight.detach().numpy(), is_gpt_oss).items():
                writer.add_tensor(part, numbers)
            continue
        found = names.get_name(part_of, try_suffixes=(".weight", ".bias"))
        assert found is not None, f"gguf has no name for {part_of}"
        norm = model.get_submodule(tensor.rpartition(".")[0])
        added = _added(norm) if weight.dim() == 1 and tensor.endswith(".weight") else 0.0
        writer.add_tensor(found, _stored(weight.detach().numpy() + added, part_of, config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _split(
    name: str, weight: npt.NDArray[np.float32], is_gpt_oss: bool
) -> dict[str, npt.NDArray[np.float32]]:
    """Return the tensors for a parameter that the package gguf has no name for.

    Experts are [experts, rows, cols]; gpt-oss has them transposed, and rows of gate and up in turn.
    """
    at, kind = f"blk.{name.split('.')[2]}.", "bias" if name.endswith("bias") else "weight"
    if "sinks" in name:
        return {f"{at}attn_sinks.weight": weight}
    if "input_linear" in name:  # llama.cpp reads both parts from one tensor
        return {f"{at}ffn_up_shexp.weight": weight}
    if is_gpt_oss and kind == "weight":
        weight = weight.swapaxes(1, 2)
    if "down_proj" in name:
        parts = {"down": weight}
    elif is_gpt_oss:
        parts = {"gate": weight[:, 0::2], "up": weight[:, 1::2]}
    else:
        parts = dict(zip(("gate", "up"), np.split(weight, 2, axis=1), strict=True))
    return {
        f"{at}ffn_{part}_exps.{kind}": np.ascontiguousarray(each) for part, each in parts.items()
    }


def _add_experts(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    count = _of(config, "num_experts", "num_local_experts")
    if not count:
        return
    writer.add_expert_count(count)
    writer.add_expert_used_count(_of_any_layer(config.num_experts_per_tok))
    if hasattr(config, "moe_intermediate_size"):
        writer.add_expert_feed_forward_length(_of_any_layer(config.moe_intermediate_size))
    shared = _of(config, "shared_expert_intermediate_size", "shared_intermediate_size")
    if config.model_type == "ernie4_5_moe":
        shared = config.moe_num_shared_experts * config.moe_intermediate_size
    if config.model_type == "hunyuan_v1_moe":
        shared = config.intermediate_size
    if shared:
        writer.add_expert_shared_feed_forward_length(shared)
    if config.model_type == "glm4_moe":
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_weights_scale(config.routed_scaling_factor)


def _of_any_layer(number: int | list[int]) -> int:
    """Return a number that a config may give for each layer."""
    return number[0] if isinstance(number, list) else number


def _add_xielu(writer: gguf.GGUFWriter, model: PreTrainedModel) -> None:
    if model.config.model_type != "apertus":
        return
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name in ("alpha_p", "alpha_n", "beta", "eps"):
        tensors = (
            held[f"model.layers.{i}.mlp.act_fn.{name}"] for i in range(len(model.model.layers))
        )
        getattr(writer, f"add_xielu_{name}")([float(tensor) for tensor in tensors])


def _add_sizes(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    head_dim = _head_dim(config)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(_of(config, "max_position_embeddings", "max_seq_len"))
    writer.add_embedding_length(config.hidden_size)
    inner = _of(config, "intermediate_size", "ffn_hidden_size") or 4 * config.hidden_size
    kv_heads: int | list[int] = _kv_heads(config)
    if config.model_type == "lfm2":
        multiple = config.block_multiple_of
        inner = -(-int(2 * inner / 3) // multiple) * multiple
        kv_heads = [0 if kind == "conv" else _kv_heads(config) for kind in config.layer_types]
        writer.add_shortconv_l_cache(config.conv_L_cache)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(kv_heads)
    if config.model_type == "lfm2":
        writer.add_layer_norm_rms_eps(config.norm_eps)
    elif hasattr(config, "rms_norm_eps"):
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    else:
        (name,) = (name for name in config.to_dict() if "norm" in name and "eps" in name)
        writer.add_layer_norm_eps(getattr(config, name))
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_vocab_size(config.vocab_size)


def _head_dim(config: PretrainedConfig) -> int:
    found = getattr(config, "head_dim", None)
    return found or config.hidden_size // config.num_attention_heads


def _of(config: PretrainedConfig, *names: str) -> Any:
    """Return the first of these fields that the config has."""
    return next((getattr(config, name) for name in names if hasattr(config, name)), None)


def _kv_heads(config: PretrainedConfig) -> int:
    if config.model_type == "falcon" and not config.new_decoder_architecture:
        return 1
    found = _of(config, "num_key_value_heads", "num_kv_heads", "num_attention_heads")
    return int(found)


def _add_rope(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    if config.model_type == "mpt":
        return
    rope: dict[str, Any] = config.rope_parameters.get("full_attention", config.rope_parameters)
    base, dims = rope["rope_theta"], _head_dim(config)
    if "alpha" in rope:
        base *= rope["alpha"] ** (dims / (dims - 2))
    writer.add_rope_freq_base(base)
    local = config.rope_parameters.get("sliding_attention")
    if local is not None:
        writer.add_rope_freq_base_swa(local["rope_theta"])
    writer.add_rope_dimension_count(int(_head_dim(config) * rope.get("partial_rotary_factor", 1.0)))
    scheme = rope["rope_type"]
    if scheme in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(scheme))
        writer.add_rope_scaling_factor(rope["factor"])
    if scheme in ("longrope", "yarn"):
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if "mscale_all_dim" in rope:
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    if "llama_4_scaling_beta" in rope:
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if scheme == "longrope":
        original = rope["original_max_position_embeddings"]
        longer = math.log(config.max_position_embeddings / original) / math.log(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + longer))
        for kind in ("long", "short"):
            factors = np.array(rope[f"{kind}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", factors)


def _add_windows(writer: gguf.GGUFWriter, config: PretrainedConfig, *, has_pattern: bool) -> None:
    window = getattr(config, "sliding_window", None)
    if window is None:
        return
    writer.add_sliding_window(window)
    if has_pattern:
        slides = [kind == "sliding_attention" for kind in config.layer_types]
        writer.add_sliding_window_pattern(slides)


_SCALES = {
    "attention_multiplier": "attention_scale",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "embedding_multiplier": "embedding_scale",
    "final_logit_softcapping": "final_logit_softcapping",
    "logit_scale": "logit_scale",
    "logits_scaling": "logit_scale",
    "residual_multiplier": "residual_scale",
    "use_parallel_residual": "parallel_residual",
}
"""What the writer calls fields of config.json."""


def _add_scales(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    for field, name in _SCALES.items():
        if getattr(config, field, None) is not None:
            getattr(writer, f"add_{name}")(getattr(config, field))
    if config.model_type == "mpt":
        writer.add_max_alibi_bias(config.attn_config.alibi_bias_max)


def _added(norm: torch.nn.Module) -> float:
    """Return what a norm adds to its weight: 1, or 0. GGUF files hold the sum."""
    bare = deepcopy(norm)
    with torch.no_grad():
        for parameter in bare.parameters():
            parameter.zero_()
        return 1.0 if bare(torch.randn(1, 1, bare.weight.numel())).any() else 0.0


def _stored(
    weight: npt.NDArray[np.float32], name: str, config: PretrainedConfig
) -> npt.NDArray[np.float32]:
    if "query_key_value" in name:
        return _stacked(weight, config)
    if name.endswith("conv.conv.weight"):
        return weight.squeeze(1)
    heads = {"q_proj": config.num_attention_heads, "k_proj": _kv_heads(config)}
    part = name.split(".")[-2]
    if config.model_type not in PERMUTED or part not in heads:
        return weight
    # The two halves of each head are interleaved.
    halves = weight.reshape(heads[part], 2, -1, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def _stacked(weight: npt.NDArray[np.float32], config: PretrainedConfig) -> npt.NDArray[np.float32]:
    """Return all queries, then keys, then values, of rows in which they follow group by group."""
    groups = config.num_attention_heads if config.model_type == "gpt_neox" else _kv_heads(config)
    by_head = weight.reshape(groups, -1, _head_dim(config), *weight.shape[1:])
    parts = (by_head[:, :-2], by_head[:, -2], by_head[:, -1])
    return np.concatenate([part.reshape(-1, *weight.shape[1:]) for part in parts])
