"""Rotary schemes, compared with transformers, which computes them in float32."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.rope import rope_from_config, rope_from_gguf
from sinkstream.checkpoint.spec import RopeSpec
from sinkstream.errors import CheckpointError

HEAD_DIM, TRAINED = 64, 8192

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 2048,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}

SCHEMES: dict[str, dict[str, Any]] = {
    "no scheme": {},
    "another base": {"rope_theta": 500_000},
    "default": {"rope_scaling": {"rope_type": "default"}, "rope_theta": 1e6},
    "linear, old spelling": {"rope_scaling": {"type": "linear", "factor": 2.5}},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.5}},
    "llama3": {"rope_scaling": LLAMA3, "rope_theta": 5e5},
    "llama3 without its original length": {
        "rope_scaling": {k: v for k, v in LLAMA3.items() if not k.startswith("original")}
    },
    "yarn": {"rope_scaling": YARN, "rope_theta": 1e6},
    "yarn, new spelling": {"rope_parameters": {**YARN, "rope_theta": 1e6}},
    "yarn without its original length": {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
    "yarn without a factor": {"rope_scaling": {**YARN, "factor": None}},
    "yarn not truncated": {"rope_scaling": {**YARN, "truncate": False}},
    "yarn with betas": {"rope_scaling": {**YARN, "beta_fast": 16, "beta_slow": 2}},
    "yarn with an attention factor": {"rope_scaling": {**YARN, "attention_factor": 0.75}},
    "yarn with mscale": {"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2}},
    "yarn of a tiny length": {
        "rope_scaling": {**YARN, "original_max_position_embeddings": 4},
    },
    "yarn without a blend": {
        "rope_scaling": {**YARN, "beta_fast": 4, "beta_slow": 4, "truncate": False},
    },
    "yarn of a small base": {"rope_scaling": {**YARN, "beta_fast": 300}, "rope_theta": 10.0},
    "both spellings": {
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "linear", "factor": 8.0},
    },
    "the original length outside of the scheme": {
        "rope_scaling": LLAMA3,
        "original_max_position_embeddings": 1024,
    },
}


def read(config: dict[str, Any]) -> RopeSpec:
    return rope_from_config(Fields(config, "config.json"), HEAD_DIM, TRAINED)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_equals_transformers(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = {
        "model_type": "llama",
        "hidden_size": 2 * HEAD_DIM,
        "num_attention_heads": 2,
        "max_position_embeddings": TRAINED,
        **SCHEMES[name],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    rotary = LlamaRotaryEmbedding(LlamaConfig.from_pretrained(tmp_path))

    rope = read(config)

    assert rope.pairing == "half"
    assert rope.rotary_dim == HEAD_DIM
    np.testing.assert_allclose(rope.inverse_frequencies, rotary.inv_freq.numpy(), rtol=3e-6)
    assert rope.attention_factor == pytest.approx(float(rotary.attention_scaling), rel=1e-12)


def test_frequencies_are_exact_beyond_float32() -> None:
    frequencies = read({"rope_theta": 100_000.0}).inverse_frequencies
    assert frequencies[1] == pytest.approx(math.exp(-math.log(1e5) / 32), rel=1e-15)
    assert frequencies[1] != float(np.float32(frequencies[1]))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dynamic": (
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        '`type` must be one of default, linear, llama3, longrope, yarn, but is "dynamic". '
        "Its frequencies depend on the length",
    ),
    "longrope without factors": (
        {"rope_scaling": {"rope_type": "longrope"}},
        "`short_factor` must be a list of 32 numbers from 0.001 to 1e\\+06, but is missing",
    ),
    "an unknown scheme": ({"rope_scaling": {"rope_type": "spiral"}}, 'but is "spiral"'),
    "a scheme that is not a string": (
        {"rope_scaling": {"rope_type": 3}},
        "must be a string, but is 3",
    ),
    "a scheme that is not an object": (
        {"rope_scaling": "yarn"},
        'must be an object, but is "yarn"',
    ),
    "one scheme for each kind of layer": (
        {"rope_parameters": {"full_attention": {}, "sliding_attention": {}}},
        "must describe one rotary scheme for all layers",
    ),
    "a part of each head": ({"partial_rotary_factor": 0.5}, "must be 1 or absent, but is 0.5"),
    "a part of each head inside": (
        {"rope_parameters": {"partial_rotary_factor": 0.25}},
        "must be 1 or absent, but is 0.25",
    ),
    "linear without a factor": ({"rope_scaling": {"type": "linear"}}, "but is missing"),
    "a factor of 0": ({"rope_scaling": {"type": "linear", "factor": 0}}, "but is 0"),
    "a factor of infinity": (
        {"rope_scaling": {"type": "linear", "factor": math.inf}},
        "but is inf",
    ),
    "a base of 1": ({"rope_theta": 1}, "`rope_theta` must be a number from"),
    "a base of nan": ({"rope_theta": math.nan}, "but is nan"),
    "a base of true": ({"rope_theta": True}, "but is true"),
    "llama3 with equal factors": (
        {"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}},
        "must be greater than `low_freq_factor`",
    ),
    "llama3 without a factor": (
        {"rope_scaling": {**LLAMA3, "low_freq_factor": None}},
        "`low_freq_factor` must be a number .* but is missing",
    ),
    "an original length of 0": (
        {"rope_scaling": {**YARN, "original_max_position_embeddings": 0}},
        "must be an integer from 1",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_scheme_that_cannot_stream_or_is_invalid_is_refused(name: str) -> None:
    config, sentence = REFUSED[name]
    with pytest.raises(CheckpointError, match=sentence):
        read(config)


def read_gguf(metadata: dict[str, Any], divisors: tuple[float, ...] | None = None) -> RopeSpec:
    fields = Fields({f"llama.rope.{k}": v for k, v in metadata.items()}, "m.gguf", "llama.")
    return rope_from_gguf(fields, "interleaved", HEAD_DIM, TRAINED, divisors)


def test_gguf_encodes_llama3_as_divisors() -> None:
    plain = read_gguf({"freq_base": 5e5}).inverse_frequencies
    wanted = read({"rope_scaling": LLAMA3, "rope_theta": 5e5}).inverse_frequencies
    divisors = tuple(a / b for a, b in zip(plain, wanted, strict=True))

    rope = read_gguf({"freq_base": 5e5}, divisors)

    assert rope.pairing == "interleaved"
    np.testing.assert_allclose(rope.inverse_frequencies, wanted, rtol=1e-14)


@pytest.mark.parametrize(
    ("metadata", "config"),
    [
        ({"scaling.type": "none", "scaling.factor": 4.0}, {}),
        ({"scaling.type": "linear", "scaling.factor": 4.0}, {"type": "linear", "factor": 4.0}),
        ({"scaling.factor": 4.0}, {"type": "linear", "factor": 4.0}),
        ({"scale_linear": 4.0}, {"type": "linear", "factor": 4.0}),
        (
            {
                "scaling.type": "yarn",
                "scaling.factor": 4.0,
                "scaling.original_context_length": 2048,
                "scaling.yarn_beta_fast": 24.0,
            },
            {**YARN, "beta_fast": 24.0},
        ),
    ],
)
def test_gguf_and_folder_read_the_same_scheme(
    metadata: dict[str, Any], config: dict[str, Any]
) -> None:
    ours, theirs = read_gguf(metadata), read({"rope_scaling": config or None})
    assert ours.inverse_frequencies == theirs.inverse_frequencies
    assert ours.attention_factor == theirs.attention_factor


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        (
            {"scaling.type": "longrope"},
            'in a file without tensors of short and long factors, but is "longrope"',
        ),
        ({"scaling.type": "yarn", "scaling.yarn_ext_factor": 0.5}, "must be 1.0 or absent"),
        (
            {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.yarn_attn_factor": 1.5},
            "must be 1.13863, as follows from the other fields, or absent, but is 1.5",
        ),
        ({"scaling.factor": 0.0}, "must be a number from 1"),
        ({"freq_base": -1.0}, "`llama.rope.freq_base` must be a number"),
    ],
)
def test_a_gguf_scheme_that_is_not_understood_is_refused(
    metadata: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        read_gguf(metadata)
