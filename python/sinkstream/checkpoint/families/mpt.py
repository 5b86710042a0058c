"""MPT with ALiBi, in place of rotation; neither norms nor linear maps have biases."""

from __future__ import annotations

from sinkstream.checkpoint.families.alibi import alibi_slopes
from sinkstream.checkpoint.families.architecture import ALIBI, CLIP, Architecture
from sinkstream.checkpoint.families.family import Family, GgufDescription
from sinkstream.checkpoint.families.parts import ungated_block, with_inner_size
from sinkstream.checkpoint.families.sizes import (
    layer_norm_from_config,
    layer_norm_from_gguf,
    sizes_from_config,
    sizes_from_gguf,
)
from sinkstream.checkpoint.families.weight_names import FOLDER_NAMES, GGUF_NAMES
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.spec import NO_ROPE, DecoderSpec, usual_scale

_NAMES = {
    "hidden_size": ("d_model",), "max_position_embeddings": ("max_seq_len",),
    "num_attention_heads": ("n_heads",), "num_hidden_layers": ("n_layers",),
}  # fmt: skip
_LEARNED = "Learned positions end at the trained length, and a stream has no end."


def _from_config(config: Fields) -> DecoderSpec:
    config = config.renamed(_NAMES)
    config.must_be("no_bias", True)
    config.must_be("logit_scale", None)
    attention = config.group("attn_config") or Fields({}, config.where)
    attention.must_be("attn_type", "multihead_attention")
    attention.must_be("alibi", True, _LEARNED)
    attention.must_be("prefix_lm", False, "Every token sees only those before it.")
    attention.must_be("rope", False)
    config = with_inner_size(config, config.whole("expansion_ratio", 1, 64, 4))
    sizes = sizes_from_config(config, tie_embeddings=True)
    # transformers ignores `alibi_bias_max` and `qk_ln`; the models were trained with them.
    most = attention.number("alibi_bias_max", 1, 64, 8.0)
    multihead = sizes.attention(
        NO_ROPE,
        scale=attention.number("softmax_scale", 1e-6, 1e3, usual_scale(sizes.head_dim)),
        slopes=alibi_slopes(sizes.heads, most),
        qk_norm="full" if attention.flag("qk_ln", False) else "none",
        clip=attention.number("clip_qkv", 0, 1e6, 0.0),
    )
    norm = layer_norm_from_config(config, "layer_norm_epsilon", bias=False)
    return sizes.spec("mpt", ungated_block(sizes, multihead, norm))


def _from_gguf(file: GgufDescription) -> DecoderSpec:
    metadata, sizes = file.metadata, sizes_from_gguf(file, reads=(*ALIBI, *CLIP))
    most = metadata.number("attention.max_alibi_bias", 0, 64, 0.0)
    if not most:
        raise metadata.error("attention.max_alibi_bias", "be above 0", most, _LEARNED)
    attention = sizes.attention(
        NO_ROPE,
        slopes=alibi_slopes(sizes.heads, most),
        qk_norm="full" if "blk.0.attn_q_norm.weight" in file.tensors else "none",
        clip=metadata.number("attention.clamp_kqv", 0, 1e6, 0.0),
    )
    block = ungated_block(sizes, attention, layer_norm_from_gguf(metadata, bias=False))
    return sizes.spec("mpt", block)


_MODULES = {
    "attention_norm": "norm_1", "q_norm": "attn.q_ln", "k_norm": "attn.k_ln", "o": "attn.out_proj",
    "mlp_norm": "norm_2", "up": "ffn.up_proj", "down": "ffn.down_proj",
}  # fmt: skip
_MODEL = {"embedding": "transformer.wte", "final_norm": "transformer.norm_f"}
_FOLDER = FOLDER_NAMES.with_modules(_MODULES, _MODEL, "transformer.blocks.{}.")

FAMILY = Family(
    "mpt",
    _from_config,
    _from_gguf,
    _FOLDER.with_qkv("attn.Wqkv"),
    GGUF_NAMES.with_qkv("attn_qkv"),
    written=Architecture("mpt", {**ALIBI, **CLIP}, heads_fill=True),
    models="MPT",
)
