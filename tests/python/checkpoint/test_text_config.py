"""Larger models, whose config.json has the decoder's description in `text_config`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import sinkstream
from sinkstream.checkpoint.open_tensors import open_tensors
from sinkstream.errors import CheckpointError
from sinkstream.loading.open_checkpoint import open_checkpoint
from tests.data import tiny

EMBEDDING, HEAD = "language_model.model.embed_tokens.weight", "language_model.lm_head.weight"


def write(
    folder: Path,
    name: str = "mistral",
    outer: dict[str, Any] | None = None,
    nested: dict[str, Any] | None = None,
    change: Callable[[tiny.Weights], None] | None = None,
) -> Path:
    """Write a tiny model as the decoder of a larger one; None in `nested` removes a field."""
    model = tiny.build(name)
    weights = {f"language_model.{tensor}": weight for tensor, weight in model.weights.items()}
    if change is not None:
        change(weights)
    text = {**model.config, **(nested or {})}
    for key in nested or {}:
        if text[key] is None:
            del text[key]
    config = {"model_type": "mistral3", "text_config": text, **(outer or {})}
    return tiny.write_folder(replace(model, config=config, weights=weights), folder)


def test_the_decoder_is_that_of_the_nested_config(
    tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    plain = open_tensors(tiny_folder("mistral"))
    found = open_tensors(write(tmp_path / "m"))
    assert found.spec == plain.spec
    plain.source.close()
    found.source.close()


def test_the_logits_are_those_of_transformers(tmp_path: Path) -> None:
    """Mistral3 as transformers itself saves it, with a vision tower."""
    text = tiny.build("mistral").config
    vision = {
        "model_type": "pixtral", "hidden_size": 32, "intermediate_size": 48, "image_size": 28,
        "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 14, "head_dim": 16,
    }  # fmt: skip
    config = transformers.Mistral3Config(
        text_config=text, vision_config=vision, tie_word_embeddings=False
    )
    torch.manual_seed(3)
    model = transformers.Mistral3ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path)
    ids = torch.arange(1, 40)[None]
    with torch.no_grad():
        expected = model(ids).logits[0]
    options: dict[str, Any] = {"dtype": "float32", "kv_dtype": "float32", "threads": 1}
    with pytest.warns(UserWarning, match="for images or sound") as caught:
        loaded = sinkstream.load(tmp_path, window=100, **options)
    with loaded:
        found = loaded.forward(ids)[0]
    assert len(caught) == 1
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("nested", "sentence"),
    [
        ({"hidden_size": "x"}, r'config.json: `text_config.hidden_size` must be an integer .* "x"'),
        ({"hidden_size": None}, r"`text_config.hidden_size` must be .*, but is missing"),
        ({"model_type": None}, r"`text_config.model_type` must be a string, but is missing"),
        ({"model_type": "gpt2"}, r'config.json has text_config.model_type "gpt2"; the support'),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 0}},
            r"config.json, `text_config.rope_scaling`: `factor` must",
        ),
        ({"auto_map": {"AutoModel": "x.Y"}}, r'must not name code to run, .* "auto_map"'),
    ],
)
def test_errors_say_where_a_field_is(nested: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        open_tensors(write(tmp_path / "m", nested=nested))


@pytest.mark.parametrize(
    ("outer", "sentence"),
    [
        ({"text_config": 3}, r"config.json: `text_config` must be an object, but is 3"),
        (
            {"tie_word_embeddings": "no"},
            r'json: `tie_word_embeddings` must be true or false, .*"no"',
        ),
        ({"is_encoder_decoder": True}, r"json: `is_encoder_decoder` must be false or absent"),
        (
            {"model_type": "paligemma"},
            'json: `model_type` must be that of a causal model, but is "paligemma". Tokens of a ',
        ),
    ],
)
def test_errors_of_the_larger_model(outer: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        open_tensors(write(tmp_path / "m", outer=outer))


def test_a_switch_that_names_no_code_is_allowed(tmp_path: Path) -> None:
    nested = {"_attn_implementation_autoset": True}
    open_tensors(write(tmp_path / "m", nested=nested)).source.close()


def same_head(weights: tiny.Weights) -> None:
    weights[HEAD] = weights[EMBEDDING].copy()


def no_head(weights: tiny.Weights) -> None:
    del weights[HEAD]


def own_head(weights: tiny.Weights) -> None:
    """Leave the head that differs from the embedding."""


# transformers decides by the outer field, true for such a model if it is absent, and does not tie
# heads that differ. `nested` never matters.
@pytest.mark.parametrize("nested", [None, True, False])
@pytest.mark.parametrize(
    ("outer", "change", "is_tied", "warns"),
    [
        (None, own_head, False, False),
        (None, same_head, True, False),
        (None, no_head, True, False),
        (False, own_head, False, False),
        (False, same_head, False, False),
        (True, own_head, False, True),
        (True, no_head, True, False),
    ],
)
def test_the_larger_model_decides_on_the_tie(
    outer: bool | None,
    nested: bool | None,
    change: Callable[[tiny.Weights], None],
    is_tied: bool,
    warns: bool,
    tmp_path: Path,
) -> None:
    fields = {} if outer is None else {"tie_word_embeddings": outer}
    folder = write(tmp_path / "m", "mistral", fields, {"tie_word_embeddings": nested}, change)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opened = open_tensors(folder)
    opened.source.close()
    assert opened.spec.tie_embeddings is is_tied
    assert [f"tensor {HEAD} exists" in str(warning.message) for warning in caught] == [True] * warns


def test_headers_alone_do_not_make_a_head_tied_unless_config_json_says_so(tmp_path: Path) -> None:
    opened = open_tensors(write(tmp_path / "m"), headers_only=True)
    opened.source.close()
    assert not opened.spec.tie_embeddings


@pytest.mark.parametrize(("outer", "nested", "expected"), [({}, 7, 7), ({"eos_token_id": 9}, 7, 9)])
def test_end_tokens_may_be_in_either_config(
    outer: dict[str, Any], nested: int, expected: int, tmp_path: Path
) -> None:
    model = "mistral-windows"  # without a tokenizer
    folder = write(tmp_path / "m", model, outer, {"eos_token_id": nested})
    checkpoint = open_checkpoint(folder)
    assert checkpoint.text.end_token_ids == {expected}
    checkpoint.source.close()


def test_the_weights_of_an_empty_text_config_are_described_outside(
    tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    plain = tiny_folder("mistral")
    config = json.loads((plain / "config.json").read_text())
    folder = tiny.write_folder(tiny.build("mistral"), tmp_path / "m")
    (folder / "config.json").write_text(json.dumps({**config, "text_config": None}))
    open_tensors(folder).source.close()
