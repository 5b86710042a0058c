"""Where a format has the weights of a decoder: tensor names, rows, and tensors that it leaves out.

All of it is data. The two tables are what most families use; a family changes what differs.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal

from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.spec import DecoderSpec
from sinkstream.errors import CheckpointError

SCALES_OF_BLOCKS = "_scale_inv"
EXPERTS = "experts."
"""How the slots of experts begin, before the expert's number."""


@dataclass(frozen=True, slots=True)
class Fused:
    """A tensor of a layer that holds the rows of several weights."""

    parts: tuple[str, ...]
    """Their slots, in the order of the rows. Those of experts, such as "experts.*.gate", are in a
    tensor with one more dimension: the experts, each with all parts."""
    per: Literal["layer", "kv_head", "head", "row"] = "layer"
    """`"layer"`: the parts are stacked, each with all its rows. `"kv_head"`, `"head"`: such heads
    are stacked, each with its share of every part. Falcon has, for each key head, the queries that
    it serves, the key and the value; of GPT-NeoX that is one query, key and value per head.
    `"row"`: rows of the parts take turns."""
    tensors: tuple[str, ...] = ("",)
    """What is added to its name: `"_blocks"` and `"_scales"`, where codes and scales are tensors of
    their own; `SCALES_OF_BLOCKS`, the scales of FP8 for blocks of rows and columns."""
    may_be_transposed: bool = False
    """Whether experts may be stored for `x @ W`: columns follow each other, each with the rows of
    all parts. Its shape says so; a square one is like the other such tensors of its layer."""

    @property
    def is_of_experts(self) -> bool:
        """Return whether it holds all experts of a layer."""
        return self.parts[0].startswith(EXPERTS)

    def groups(self, spec: DecoderSpec, rows: int) -> int:
        """Return how many groups of rows are stacked, each with an equal share of every part.

        `rows`: of one part.
        """
        return {"layer": 1, "kv_head": spec.kv_heads, "head": spec.heads, "row": rows}[self.per]


@dataclass(frozen=True, slots=True)
class WeightNames:
    """A format's tensor for each weight slot."""

    layer_prefix: str
    """Prefix of the names of a layer's tensors, with `{}` for its number."""
    layer: Mapping[str, str]
    model: Mapping[str, str]
    fused: Mapping[str, Fused] = field(default_factory=dict)
    """Tensors of a layer that hold the rows of several slots."""
    parallel: Mapping[str, str] = field(default_factory=dict)
    """Other tensors for some slots of a layer if its block is parallel and has two norms."""
    added: Mapping[str, float] = field(default_factory=dict)
    """Vectors that the format stores without a constant, which is added as they are read."""
    wrappers: tuple[Mapping[str, str], ...] = ()
    """Prefixes that the names may have in place of their own: a decoder inside a larger model."""
    other_parts: tuple[str, ...] = ()
    """Patterns of tensors for images and sound, which are not read."""
    unused: tuple[str, ...] = ()
    """Patterns of tensors without use here: buffers, and layers that predict further tokens. `{}`
    in a pattern stands for the number of layers."""

    @property
    def is_fused(self) -> bool:
        """Return whether some weights never have a tensor of their own."""
        return any("[" in name for name in self.layer.values())

    @property
    def has_mxfp4(self) -> bool:
        """Return whether some weights may be stored as MXFP4's blocks and scales."""
        return any("_blocks" in fused.tensors for fused in self.fused.values())

    def tensor(self, slot: str) -> str:
        """Return the tensor's name for a slot such as "embedding" or "layers.3.q".

        Rows of a fused tensor are named after both, such as "qkv.weight[q]".

        Raises:
            CheckpointError: The format has none for it.
        """
        if not slot.startswith("layers."):
            return _named(self.model, slot, slot)
        _, number, part = slot.split(".", 2)
        expert = part.split(".")[1] if part.startswith(EXPERTS) else ""
        part = part.replace(f".{expert}.", ".*.") if expert else part
        name = _named(self.layer, part, slot)
        return self.layer_prefix.format(number) + name.replace("*", expert)

    def stored(self, slot: str) -> str:
        """Return the name of the tensor in the file, which may hold other slots' rows too."""
        return self.tensor(slot).partition("[")[0]

    def added_to(self, slot: str) -> float:
        """Return the constant that is added to a slot's numbers; usually 0."""
        return self.added.get(slot.rpartition(".")[2], 0.0)

    def with_names(
        self, layer: Mapping[str, str], model: Mapping[str, str] | None = None
    ) -> WeightNames:
        """Return the same names, but with these tensors for some slots."""
        return replace(self, layer={**self.layer, **layer}, model={**self.model, **(model or {})})

    def with_modules(
        self,
        layer: Mapping[str, str],
        model: Mapping[str, str] | None = None,
        layer_prefix: str | None = None,
    ) -> WeightNames:
        """Return the same names, but with these modules for some slots.

        A module has a weight and may have a bias.

        Args:
            layer: The modules of a layer, by slot.
            model: The other modules, by slot.
            layer_prefix: Prefix of the names in a layer, with `{}` for its number; None: the same.
        """
        named = self.with_names(_tensors(layer), _tensors(model or {}))
        return replace(named, layer_prefix=layer_prefix or self.layer_prefix)

    def with_qkv(
        self, module: str, per: Literal["layer", "kv_head", "head"] = "layer"
    ) -> WeightNames:
        """Return the same names, but with one module for queries, keys and values."""
        weights, biases = ("q", "k", "v"), ("q_bias", "k_bias", "v_bias")
        return self.with_fused(
            {f"{module}.weight": Fused(weights, per), f"{module}.bias": Fused(biases, per)}
        )

    def with_parallel(self, layer: Mapping[str, str]) -> WeightNames:
        """Return the same names, and these modules for parallel blocks with two norms."""
        return replace(self, parallel=_tensors(layer))

    def with_fused(self, fused: Mapping[str, Fused]) -> WeightNames:
        """Return the same names, and these fused tensors."""
        parts = {part: f"{name}[{part}]" for name, held in fused.items() for part in held.parts}
        return replace(self, layer={**self.layer, **parts}, fused={**self.fused, **fused})

    def with_added(self, constant: float, slots: Iterable[str]) -> WeightNames:
        """Return the same names, and a constant for these slots, such as "q_norm"."""
        return replace(self, added={**self.added, **dict.fromkeys(slots, constant)})

    def with_unused(self, *patterns: str) -> WeightNames:
        """Return the same names, and these patterns of unused tensors."""
        return replace(self, unused=(*self.unused, *patterns))

    def of(self, spec: DecoderSpec) -> WeightNames:
        """Return the names of this decoder's weights."""
        is_parallel = all(block.parallel and block.mlp_norm for block in spec.blocks)
        unused = tuple(pattern.format(spec.layers) for pattern in self.unused)
        return replace(self.with_names(self.parallel if is_parallel else {}), unused=unused)

    def in_checkpoint(self, tensors: Container[str]) -> WeightNames:
        """Return the same names, with the prefixes that a checkpoint has.

        The first prefix with which an embedding or a last norm exists; if there is none, these
        names.
        """
        candidates = [self, *(self._inside(wrapper) for wrapper in self.wrappers)]
        for names in candidates:
            if names.model["embedding"] in tensors or names.model["final_norm"] in tensors:
                return names
        return self

    def is_of_other_part(self, tensor: str) -> bool:
        """Return whether a tensor is for images or sound."""
        return any(fnmatchcase(tensor, pattern) for pattern in self.other_parts)

    def is_unused(self, tensor: str) -> bool:
        """Return whether a tensor is known to be unused."""
        return any(fnmatchcase(tensor, pattern) for pattern in self.unused)

    def _inside(self, wrapper: Mapping[str, str]) -> WeightNames:
        def renamed(name: str) -> str:
            for inner, outer in wrapper.items():
                if name.startswith(inner):
                    return outer + name.removeprefix(inner)
            return name

        model = {slot: renamed(name) for slot, name in self.model.items()}
        return replace(self, layer_prefix=renamed(self.layer_prefix), model=model)


def _named(tensors: Mapping[str, str], part: str, slot: str) -> str:
    if part in tensors:
        return tensors[part]
    raise CheckpointError(
        f"load: the weights of a model must be those of its family, but {quoted(slot)} is none. "
        "The fields of the model describe a part that its family does not have."
    )


def _tensors(modules: Mapping[str, str]) -> dict[str, str]:
    """Return the tensors of modules: the weight and the bias of each slot."""
    weights = {slot: f"{module}.weight" for slot, module in modules.items()}
    return weights | {f"{slot}_bias": f"{module}.bias" for slot, module in modules.items()}


_OTHER_MODULES = (
    "audio_model", "audio_projector", "audio_tower", "connector", "embed_audio", "embed_vision",
    "image_newline", "mm_projector", "multi_modal_projector", "vision_encoder", "vision_model",
    "vision_projector", "vision_tower", "visual",
)  # fmt: skip

FOLDER_NAMES = WeightNames(
    layer_prefix="model.layers.{}.",
    model={
        "embedding": "model.embed_tokens.weight",
        "final_norm": "model.norm.weight",
        "final_norm_bias": "model.norm.bias",
        "output": "lm_head.weight",
        "output_bias": "lm_head.bias",
    },
    layer={
        "attention_norm": "input_layernorm.weight",
        "q": "self_attn.q_proj.weight",
        "q_bias": "self_attn.q_proj.bias",
        "q_norm": "self_attn.q_norm.weight",
        "k": "self_attn.k_proj.weight",
        "k_bias": "self_attn.k_proj.bias",
        "k_norm": "self_attn.k_norm.weight",
        "v": "self_attn.v_proj.weight",
        "v_bias": "self_attn.v_proj.bias",
        "o": "self_attn.o_proj.weight",
        "o_bias": "self_attn.o_proj.bias",
        "attention_norm_bias": "input_layernorm.bias",
        "mlp_norm": "post_attention_layernorm.weight",
        "mlp_norm_bias": "post_attention_layernorm.bias",
        "gate": "mlp.gate_proj.weight",
        "gate_bias": "mlp.gate_proj.bias",
        "up": "mlp.up_proj.weight",
        "up_bias": "mlp.up_proj.bias",
        "down": "mlp.down_proj.weight",
        "down_bias": "mlp.down_proj.bias",
        "router": "mlp.gate.weight",
        "experts.*.gate": "mlp.experts.*.gate_proj.weight",
        "experts.*.up": "mlp.experts.*.up_proj.weight",
        "experts.*.down": "mlp.experts.*.down_proj.weight",
        "sink_logits": "self_attn.sinks",
    },
    fused={
        f"mlp.experts.{name}": Fused(parts, tensors=("", SCALES_OF_BLOCKS), may_be_transposed=True)
        for name, parts in (
            ("gate_up_proj", ("experts.*.gate", "experts.*.up")),
            ("down_proj", ("experts.*.down",)),
        )
    },
    wrappers=(
        {"model.": "model.language_model."},
        {"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
        {"model.": "model.text_model."},
    ),
    other_parts=tuple(
        f"{root}{module}{end}"
        for module in _OTHER_MODULES
        for root in ("", "model.")
        for end in ("", ".*")
    ),
    unused=("*.rotary_emb.inv_freq", "mtp.*", "model.mtp.*", "*.nextn.*"),
)

GGUF_NAMES = WeightNames(
    layer_prefix="blk.{}.",
    model={
        "embedding": "token_embd.weight",
        "final_norm": "output_norm.weight",
        "final_norm_bias": "output_norm.bias",
        "output": "output.weight",
        "output_bias": "output.bias",
    },
    layer={
        "attention_norm": "attn_norm.weight",
        "attention_norm_bias": "attn_norm.bias",
        "attention_post_norm": "post_attention_norm.weight",
        "q": "attn_q.weight",
        "q_bias": "attn_q.bias",
        "q_norm": "attn_q_norm.weight",
        "k": "attn_k.weight",
        "k_bias": "attn_k.bias",
        "k_norm": "attn_k_norm.weight",
        "v": "attn_v.weight",
        "v_bias": "attn_v.bias",
        "o": "attn_output.weight",
        "o_bias": "attn_output.bias",
        "sink_logits": "attn_sinks.weight",
        "mlp_norm": "ffn_norm.weight",
        "mlp_norm_bias": "ffn_norm.bias",
        "mlp_post_norm": "post_ffw_norm.weight",
        "gate": "ffn_gate.weight",
        "gate_bias": "ffn_gate.bias",
        "up": "ffn_up.weight",
        "up_bias": "ffn_up.bias",
        "down": "ffn_down.weight",
        "down_bias": "ffn_down.bias",
        "router": "ffn_gate_inp.weight",
        "router_bias": "ffn_gate_inp.bias",
        "choice_bias": "exp_probs_b.bias",
        "expert_scale": "ffn_down_exps.scale",
        "experts.*.gate": "ffn_gate_exps.weight[*]",
        "experts.*.gate_bias": "ffn_gate_exps.bias[*]",
        "experts.*.up": "ffn_up_exps.weight[*]",
        "experts.*.up_bias": "ffn_up_exps.bias[*]",
        "experts.*.down": "ffn_down_exps.weight[*]",
        "experts.*.down_bias": "ffn_down_exps.bias[*]",
        "shared.gate": "ffn_gate_shexp.weight",
        "shared.up": "ffn_up_shexp.weight",
        "shared.down": "ffn_down_shexp.weight",
        "shared_gate": "ffn_gate_inp_shexp.weight",
    },
    fused={
        "ffn_gate_up_exps.weight": Fused(("experts.*.gate", "experts.*.up")),
        **{
            f"ffn_{part}_exps.{kind}": Fused((f"experts.*.{part}{end}",))
            for part in ("gate", "up", "down")
            for kind, end in (("weight", ""), ("bias", "_bias"))
        },
    },
    other_parts=("a.*", "mm.*", "v.*"),
    unused=(
        "rope_factors_long.weight",
        "rope_factors_short.weight",
        "rope_freqs.weight",
        "*.nextn.*",
    ),
)
