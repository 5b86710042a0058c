"""Random files of Hugging Face folders, read here and by transformers.

`python -m tests.python.checkpoint.folder_fuzz --cases 10000` draws that many. A case fails
if the two read different values and neither a warning nor an error says so.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from safetensors.numpy import save_file

from sinkstream.checkpoint.bounded_file import read_json, read_optional_json
from sinkstream.checkpoint.families import find_family
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.sampling_defaults import generation_from_config
from sinkstream.checkpoint.spec import DecoderSpec
from sinkstream.errors import CheckpointError
from sinkstream.loading.open_checkpoint import open_checkpoint
from sinkstream.text.tokenizers.from_folder import choose_template
from tests.data import tiny
from tests.data.tiny_tokenizer import TinyTokenizer

Pairs = list[tuple[str, Any]]
"""Keys and values of a JSON object, in order; a key may appear twice."""

_ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 292, 293, 10**6, 2**31, 2**63, 10**400, 0.0, -0.0, 0.5, 1.0,
    1.5, -0.5, 20.0, 1e-9, 1e9, float("nan"), float("inf"), -float("inf"), "", "x", "0.7", [], [1],
    [2, 7], [7, -1], [2, "x"], {}, {"a": 1}, {"rope_type": "default"}, [float("nan")],
)  # fmt: skip
_UNREAD = (
    "transformers_version", "_name_or_path", "unsloth_version", "notes", "ü", "hidden_dropout",
    "bos", "mtp_layers", "model_max_length", "rope_base", "window", "mscale",
)  # fmt: skip


def written(pairs: Pairs) -> str:
    """Write an object as Python's json does, with NaN, infinity and repeated keys."""
    return "{" + ", ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in pairs) + "}"


def with_noise(draw: random.Random, pairs: Pairs) -> Pairs:
    """Add keys that are not read, repeat some keys, and change the order."""
    count = draw.choice((0, 1, 3))
    noise: Pairs = [(draw.choice(_UNREAD), draw.choice(_ODD)) for _ in range(count)]
    if pairs and draw.random() < 0.15:
        key, value = draw.choice(pairs)
        noise.append((key, draw.choice((value, draw.choice(_ODD)))))
    mixed = [*pairs, *noise]
    draw.shuffle(mixed)
    return mixed


# ---- config.json ----


def draw_config(draw: random.Random) -> Pairs:
    """Draw the description of a tiny model; the sizes agree, the rest may be odd."""
    fields: dict[str, Any] = dict(tiny.CONFIGS[draw.choice(tiny.FAMILIES)][0])
    rope: dict[str, list[Any]] = {
        "rope_theta": [10_000.0, 10_000, 5e5, None],
        "rope_scaling": [
            None, {}, {"rope_type": "default"}, {"type": "linear", "factor": 2.0},
            {"rope_type": "linear", "factor": 4}, {"rope_type": "dynamic", "factor": 2.0},
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "original_max_position_embeddings": 256},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
            {"rope_type": "yarn", "factor": 4.0, "rope_theta": 2e4, "beta_fast": 16.0},
            {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.9},
            {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.25, "truncate": False},
            {"type": "yarn", "rope_type": "linear", "factor": 2.0},
        ],
        "rope_parameters": [
            None, {"rope_type": "default", "rope_theta": 5e5}, {"rope_theta": 3e4},
            {"rope_type": "linear", "factor": 2.0, "rope_theta": 2e4},
        ],
        "partial_rotary_factor": [None, 1.0, 1, 0.5],
        "original_max_position_embeddings": [None, 1024],
    }  # fmt: skip
    plain: dict[str, list[Any]] = {
        "head_dim": [None, 16, 32], "num_key_value_heads": [None, 1, 2, 6, 4],
        "attention_bias": [None, False, True], "mlp_bias": [None, False, True],
        "hidden_act": [None, "silu", "gelu"], "tie_word_embeddings": [None, False, True],
        "rms_norm_eps": [None, 1e-5, 1e-6], "max_position_embeddings": [None, 4096],
        "rope_interleaved": [False, True], "is_encoder_decoder": [False, None],
        "sliding_window": [None, 64], "use_sliding_window": [False, True],
        "max_window_layers": [0, 2, 28], "layer_types": [["full_attention"] * 3],
    }  # fmt: skip
    if draw.random() < 0.5:
        fields.pop("rope_theta", None)
        fields.pop("rope_parameters", None)
    for name, choices in rope.items():
        if draw.random() < 0.35:
            fields[name] = draw.choice(choices)
    for name, choices in plain.items():
        if draw.random() < 0.12:
            fields[name] = draw.choice(choices)
            if draw.random() < 0.2 and name != "num_key_value_heads":  # its default never fits
                del fields[name]
    if draw.random() < 0.1:
        fields[draw.choice(sorted(fields))] = draw.choice(_ODD)
    return with_noise(draw, list(fields.items()))


def config_difference(folder: Path, draw: random.Random) -> str | None:
    """Compare a config.json; return the difference, "", or None if one side refuses it."""
    (folder / "config.json").write_text(written(draw_config(draw)))
    try:
        config = Fields(read_json(folder / "config.json", 1 << 20), "config.json")
        spec = find_family(config.word("model_type"), "config").spec_from_config(config)
    except CheckpointError:
        return None
    try:
        theirs = transformers.AutoConfig.from_pretrained(folder)
        # Of these families, only phi3 rotates a part of each head.
        is_phi3 = spec.family == "phi3"
        rotary = (
            transformers.models.phi3.modeling_phi3.Phi3RotaryEmbedding
            if is_phi3
            else transformers.models.llama.modeling_llama.LlamaRotaryEmbedding
        )(theirs)
    except Exception:  # its checks raise anything
        return None
    return _spec_difference(spec, theirs, rotary)


def _windows(theirs: Any) -> tuple[int, ...]:
    """Return each layer's own window, 0 for none; without `layer_types` all layers have it."""
    kinds = getattr(theirs, "layer_types", None) or ["sliding_attention"] * theirs.num_hidden_layers
    return tuple((theirs.sliding_window or 0) * (kind == "sliding_attention") for kind in kinds)


def _spec_difference(spec: DecoderSpec, theirs: Any, rotary: Any) -> str:
    # The others have no biases, whatever an unused field says.
    has_bias = spec.family in ("llama", "qwen3") and bool(theirs.attention_bias)
    pairs = {
        "vocab_size": theirs.vocab_size, "hidden_size": theirs.hidden_size,
        "intermediate_size": theirs.intermediate_size, "layers": theirs.num_hidden_layers,
        "heads": theirs.num_attention_heads, "kv_heads": theirs.num_key_value_heads,
        "head_dim": getattr(theirs, "head_dim", None)
        or theirs.hidden_size // theirs.num_attention_heads,
        "norm_eps": theirs.rms_norm_eps, "tie_embeddings": theirs.tie_word_embeddings,
        "qkv_bias": spec.family == "qwen2" or has_bias,
        "output_bias": spec.family != "qwen2" and has_bias,
        "mlp_bias": spec.family == "llama" and bool(theirs.mlp_bias),
        "qk_norm": spec.family == "qwen3", "trained_length": theirs.max_position_embeddings,
    }  # fmt: skip
    attention, mlp = spec.blocks[0].attention, spec.blocks[0].mlp
    own = {
        "norm_eps": spec.final_norm.eps, "qkv_bias": attention.qkv_bias,
        "output_bias": attention.output_bias, "mlp_bias": mlp.bias,
        "qk_norm": attention.qk_norm == "head",
    }  # fmt: skip
    for name, value in pairs.items():
        found = own[name] if name in own else getattr(spec, name)
        if found != value:
            return f"{name} is {found!r}, not {value!r}"
    if theirs.hidden_act != "silu":
        return f"hidden_act is not {theirs.hidden_act}"
    if spec.family != "llama" and (windows := _windows(theirs)) != (
        spec.own_windows or (0,) * spec.layers
    ):
        return f"layers have windows: {windows}"
    frequencies = np.array(spec.ropes[0].inverse_frequencies)
    wanted = rotary.inv_freq.double().numpy()
    if frequencies.shape != wanted.shape or not np.allclose(frequencies, wanted, rtol=1e-5, atol=0):
        return f"frequencies are {frequencies[:3]}, not {wanted[:3]}; {theirs.rope_parameters}"
    if not np.isclose(spec.ropes[0].attention_factor, rotary.attention_scaling, rtol=1e-6):
        return (
            f"attention factor is {spec.ropes[0].attention_factor}, not {rotary.attention_scaling}"
        )
    return ""


# ---- generation_config.json ----


def draw_generation(draw: random.Random) -> Pairs:
    """Draw sampling defaults; half of the numbers are in range."""
    usual: dict[str, list[Any]] = {
        "temperature": [0.6, 1, 1.0, 0, 2.0], "top_k": [20, 50, 0, 1], "top_p": [0.9, 1.0, 1, 0.0],
        "min_p": [0.05, 0.0, 1.0], "repetition_penalty": [1.1, 1.0, 1.5], "do_sample": [True],
        "eos_token_id": [2, [2, 7], [0]], "bos_token_id": [1], "pad_token_id": [0],
        "max_new_tokens": [64],
    }  # fmt: skip
    pairs: Pairs = []
    for name, values in usual.items():
        if draw.random() < 0.5:
            pairs.append((name, draw.choice(values if draw.random() < 0.6 else _ODD)))
    return with_noise(draw, pairs)


_WARPERS: dict[str, Callable[[Any], Any]] = {
    "temperature": lambda value: transformers.TemperatureLogitsWarper(value),
    "top_k": lambda value: transformers.TopKLogitsWarper(value),
    "top_p": lambda value: transformers.TopPLogitsWarper(value),
    "min_p": lambda value: transformers.MinPLogitsWarper(value),
    "repetition_penalty": lambda value: transformers.RepetitionPenaltyLogitsProcessor(value),
}
# Values at which transformers builds no warper.
_OFF: dict[str, Callable[[Any], bool]] = {
    "temperature": lambda value: bool(value == 1.0),
    "top_k": lambda value: bool(value == 0),
    "top_p": lambda value: bool(value >= 1.0),
    "min_p": lambda value: False,
    "repetition_penalty": lambda value: bool(value == 1.0),
}


def _accepted(name: str, value: Any) -> bool:
    """Return whether transformers would sample with this value."""
    try:
        return _OFF[name](value) or _WARPERS[name](value) is not None
    except Exception:  # wrong types raise anything
        return False


def generation_difference(folder: Path, draw: random.Random) -> str | None:
    """Compare a generation_config.json; return the difference, "", or None if theirs refuses."""
    (folder / "generation_config.json").write_text(written(draw_generation(draw)))
    try:
        theirs = transformers.GenerationConfig.from_pretrained(folder)
    except Exception:  # its checks raise anything
        return None
    values = read_optional_json(folder / "generation_config.json", 1 << 20)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ours = generation_from_config(values, "generation_config.json")
        ends = Fields(values, "generation_config.json").token_ids("eos_token_id")
    said = " ".join(str(warning.message) for warning in caught)
    if theirs.do_sample is False:
        return "" if ours.get("temperature") == 0 else "does not mean greedy"
    for name in _WARPERS:
        value = getattr(theirs, name)
        if f"`{name}`" in said:
            if value is not None and _accepted(name, value) and _in_range(name, value):
                return f"{name} {value!r} causes a warning: {said}"
            continue
        if ours.get(name) != value and not (name == "temperature" and value == 0):
            return f"{name} is {ours.get(name)!r}, not {value!r}, and nothing says so"
    named = theirs.eos_token_id if isinstance(theirs.eos_token_id, list) else [theirs.eos_token_id]
    if theirs.eos_token_id is not None and ends != named and "`eos_token_id`" not in said:
        return f"eos_token_id is {ends}, not {named}, and nothing says so"
    return ""


def _in_range(name: str, value: Any) -> bool:
    """Return whether streams accept a value; their ranges are narrower than transformers'."""
    low, high = {"top_p": (1e-300, 1), "repetition_penalty": (0.01, 100)}.get(name, (1e-300, 100))
    return not isinstance(value, bool) and low <= value <= high


# ---- chat templates ----

_TEMPLATES: tuple[Any, ...] = (
    "one", "", "{{ messages }}\r\nend", None, [{"name": "default", "template": "listed"}],
    [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "listed"}],
    [{"name": "rag", "template": "r"}], [], {}, {"default": "object"}, {"rag": "r"}, 3,
    [{"name": "default"}],
    [{"name": "default", "template": "a"}, {"name": "default", "template": "b"}],
)  # fmt: skip
_FILES = (
    "chat_template.jinja", "additional_chat_templates/default.jinja",
    "additional_chat_templates/tool_use.jinja", "additional_chat_templates/notes.txt",
)  # fmt: skip


def template_difference(folder: Path, draw: random.Random) -> str | None:
    """Compare the chat template; return the difference, "", or None if one side refuses it."""
    for name in _FILES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        if draw.random() < 0.2:
            (folder / name).write_text(draw.choice(("file", "", "a\nb\n", "ü")), newline="")
    for name in ("tokenizer_config.json", "chat_template.json"):
        (folder / name).unlink(missing_ok=True)
        if draw.random() < 0.7:
            template: Pairs = [("chat_template", draw.choice(_TEMPLATES))]
            pairs = with_noise(draw, template if draw.random() < 0.8 else [])
            (folder / name).write_text(written(pairs))
    if (folder / "additional_chat_templates").is_dir() and draw.random() < 0.5:
        _remove(folder / "additional_chat_templates")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            settings = read_optional_json(folder / "tokenizer_config.json", 1 << 20)
            ours = choose_template(folder, settings)
        except CheckpointError:
            return None
    try:
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    except Exception:  # its checks raise anything
        return None
    try:
        theirs = tokenizer.get_chat_template()
    except ValueError:
        theirs = None
    if ours == theirs or any("chat template" in str(warning.message) for warning in caught):
        return ""
    if theirs is None and tokenizer.chat_template is None:
        value = read_optional_json(folder / "chat_template.json", 1 << 20).get("chat_template")
        if isinstance(value, str | list | dict):
            return ""  # processors read it
    return f"template is {ours!r}, not {theirs!r}"


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


# ---- tensors ----


def tensors_difference(folder: Path, draw: random.Random) -> str | None:
    """Compare which tensors a model uses; return the difference, "", or None if it is refused."""
    model = tiny.build("llama-one-layer")
    weights: dict[str, Any] = dict(model.weights)
    embedding, head = "model.embed_tokens.weight", "lm_head.weight"
    weights[head] = draw.choice((weights[head], weights[embedding].copy(), weights[head][:-1]))
    for name in (embedding, head):
        if draw.random() < 0.25:
            del weights[name]
    for name, shape in {
        "model.layers.0.self_attn.q_proj.bias": (96,),
        "model.layers.0.self_attn.rotary_emb.inv_freq": (8,),
        "model.layers.7.mlp.up_proj.weight": (160, 96), "v.bias": (3,), "lm_head.bias": (293,),
    }.items():  # fmt: skip
        if draw.random() < 0.15:
            weights[name] = np.ones(shape, draw.choice((np.float32, np.int64, np.float16)))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {**model.config, "tie_word_embeddings": draw.random() < 0.7}
    (folder / "config.json").write_text(json.dumps(config))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            checkpoint = open_checkpoint(folder)
        except CheckpointError:
            return None
    try:
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
        return _tensors_difference(checkpoint, theirs, weights, bool(caught))
    finally:
        checkpoint.source.close()


def _tensors_difference(checkpoint: Any, theirs: Any, weights: Any, has_warned: bool) -> str:
    used = {tensor.slot.name: tensor for tensor in checkpoint.tensors}
    for slot, matrix in (("embedding", theirs.model.embed_tokens), ("output", theirs.lm_head)):
        tensor = used.get(slot, used["embedding"])
        content = checkpoint.source.read_rows(tensor, 0, tensor.slot.rows)
        if content != matrix.weight.detach().numpy().tobytes():
            return f"{slot} has other numbers"
    read = {tensor.tensor for tensor in checkpoint.tensors} | {"lm_head.weight"}
    surplus = {name for name in weights if name not in read and "inv_freq" not in name}
    return f"{surplus} is silently left out" if surplus and not has_warned else ""


PARTS: dict[str, Callable[[Path, random.Random], str | None]] = {
    "config": config_difference,
    "generation": generation_difference,
    "template": template_difference,
    "tensors": tensors_difference,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Read random files; return 1 if a difference is silent."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=PARTS)
    options = parser.parse_args(arguments)
    logging.getLogger("transformers").setLevel(logging.CRITICAL)
    transformers.utils.logging.disable_progress_bar()
    parts = list(PARTS) if options.part is None else [options.part]
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as root, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in parts:
            (Path(root) / part).mkdir()
        TinyTokenizer("smollm").build().save(str(Path(root) / parts[-1] / "tokenizer.json"))
        if "template" in parts:
            TinyTokenizer("smollm").build().save(str(Path(root) / "template" / "tokenizer.json"))
        for case in range(options.seed, options.seed + options.cases):
            part = parts[case % len(parts)]
            said = PARTS[part](Path(root) / part, random.Random(case))
            outcome = "refused" if said is None else "different" if said else "equal"
            counts[f"{part} {outcome}"] += 1
            if said:
                print(f"case {case}, {part}: {said}")
    print(dict(sorted(counts.items())))
    return int(any(name.endswith("different") for name in counts))


if __name__ == "__main__":
    sys.exit(main())
