"""Models and inputs that cannot stream are refused with the reason."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from sinkstream.errors import InvalidArgument
from sinkstream.streaming_llm import StartRecentKVCache, enable_streaming_llm
from tests.python.streaming_llm.models import build

_TINY = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


def refused(sentence: str) -> Any:
    return pytest.raises(InvalidArgument, match=re.escape(sentence))


@pytest.mark.parametrize("kind", ["gpt2", "opt", "gpt_neo"])
def test_learned_positions_are_refused(kind: str) -> None:
    fields: dict[str, dict[str, Any]] = {
        "gpt2": {"vocab_size": 11, "n_embd": 8, "n_layer": 1, "n_head": 2},
        "opt": {**_TINY, "ffn_dim": 8, "word_embed_proj_dim": 8},
        "gpt_neo": {
            "vocab_size": 11,
            "hidden_size": 8,
            "num_layers": 1,
            "num_heads": 2,
            "attention_types": [[["global"], 1]],
        },
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **fields[kind]))
    with refused(f'is of model_type "{kind}", which has learned absolute positions.'):
        enable_streaming_llm(model)


def test_other_families_are_refused_with_the_list() -> None:
    config = AutoConfig.for_model("bloom", vocab_size=11, hidden_size=8, n_layer=1, n_head=2)
    with refused(
        'enable_streaming_llm: `model` has model_type "bloom"; the supported ones are falcon, '
        "gpt_neox, llama, mistral, mpt, qwen2, qwen3."
    ):
        enable_streaming_llm(AutoModelForCausalLM.from_config(config))


def test_another_object_than_a_model_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="must be a transformers model, but is of type Linear"):
        enable_streaming_llm(torch.nn.Linear(2, 2))


def test_frequencies_that_follow_the_length_are_refused() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    with refused('rope_type "dynamic", whose frequencies depend on the length of the text.'):
        enable_streaming_llm(build("llama", rope_parameters=rope), 4, 16)


def test_mpt_without_alibi_or_with_too_few_columns_is_refused() -> None:
    with refused("`start_size + recent_size` must be below the model's max_seq_len, 96, but is 96"):
        enable_streaming_llm(build("mpt"), 4, 92)
    enable_streaming_llm(build("mpt"), 4, 91)
    with refused("must have ALiBi, but its attn_config has alibi=False."):
        enable_streaming_llm(build("mpt", attn_config={"alibi": False}), 4, 16)


def test_a_cache_longer_than_the_training_length_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="trained length of 256 tokens, but holds 257"):
        enable_streaming_llm(build("llama"), 4, 252)


def test_a_model_whose_generate_would_forget_the_cache_is_a_warning() -> None:
    model = build("mpt")
    model.generation_config.use_cache = False
    with pytest.warns(
        UserWarning, match="generate\\(\\) must be called with use_cache=True"
    ) as caught:
        kv_cache = enable_streaming_llm(model, 4, 16)
    assert caught[0].filename == __file__
    assert kv_cache.inputs_for_generate(torch.tensor([[1, 2]]))["use_cache"] is True


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((-1, 16), "`start_size` must be in [0, 2147483647], but is -1."),
        ((4, 0), "`recent_size` must be in [1, 2147483647], but is 0."),
        ((4, 16, 0, 2), "`k_seq_dim` must be in [1, 3], but is 0."),
        ((4, 16, 2, 4), "`v_seq_dim` must be in [1, 3], but is 4."),
    ],
)
def test_sizes_out_of_range_are_refused(arguments: tuple[int, ...], sentence: str) -> None:
    with refused(sentence):
        StartRecentKVCache(*arguments)


@pytest.mark.parametrize("size", [True, 2.0, "4", None])
def test_sizes_that_are_not_integers_are_type_errors(size: Any) -> None:
    with pytest.raises(TypeError, match="`start_size` must be an int"):
        enable_streaming_llm(build("llama"), size, 16)


def test_batches_must_be_announced_and_must_not_be_padded() -> None:
    model = build("llama")
    kv_cache = enable_streaming_llm(model, 4, 16)
    ids, mask = torch.tensor([[1, 2, 3], [0, 2, 3]]), torch.tensor([[1, 1, 1], [0, 1, 1]])
    with refused("the batch must have as many rows as the cache, 1, but has 2."):
        model.generate(ids, attention_mask=mask, past_key_values=kv_cache.new_cache())
    with refused("`attention_mask` must be all ones, but has zeros."):
        kv_cache.inputs_for_generate(ids, attention_mask=mask)
    with refused("`attention_mask` must be given for more than one row, but is None for 2."):
        kv_cache.inputs_for_generate(ids)


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "mpt"])
def test_generate_refuses_rows_that_were_not_checked_for_padding(family: str) -> None:
    model = build(family)
    kv_cache = enable_streaming_llm(model, 4, 20)
    ids, mask = torch.tensor([[1, 2, 3], [0, 2, 3]]), torch.tensor([[1, 1, 1], [0, 1, 1]])
    sentence = "must have one row, or rows that were checked for padding, but has 2 that were not."
    cache = kv_cache.new_cache(2)
    with refused(sentence):
        model.generate(ids, attention_mask=mask, past_key_values=cache, max_new_tokens=40)
    assert cache.seen_tokens == 0
    ones = torch.ones_like(ids)
    inputs = kv_cache.inputs_for_generate(ids, cache, attention_mask=ones)
    model.generate(**inputs, max_new_tokens=3)
    with refused(sentence):  # the check was for the turn before
        model.generate(ids, attention_mask=mask, past_key_values=cache, max_new_tokens=3)


def test_a_direct_call_of_the_model_cannot_see_padding_and_its_caches_maker_says_so() -> None:
    model = build("llama")
    kv_cache = enable_streaming_llm(model, 4, 20)
    ids, mask = torch.tensor([[1, 2, 3], [0, 2, 3]]), torch.tensor([[1, 1, 1], [0, 1, 1]])
    cache = kv_cache.new_cache(2)
    with torch.no_grad():
        model(ids, attention_mask=mask, past_key_values=cache)
    alone = kv_cache.new_cache()
    model.generate(ids[1:], attention_mask=mask[1:], past_key_values=alone, max_new_tokens=1)
    assert cache.sink_layers[0].sink_keys.shape[-2] == 3  # the padding is a sink
    assert alone.sink_layers[0].sink_keys.shape[-2] == 3
    said = " ".join((kv_cache.new_cache.__doc__ or "").split())
    assert (
        "Two mistakes cannot be detected and produce garbage: calling `model(…)` directly with a "
        "padded mask, and calling generate() with a single padded row."
    ) in said


@pytest.mark.parametrize(("start", "end"), [(3, 5), (4, 21), (8, 7), (-1, 5), (21, 21)])
def test_cuts_outside_the_window_are_refused(start: int, end: int) -> None:
    kv_cache = enable_streaming_llm(build("llama"), 4, 16)
    _, cache = kv_cache.read(torch.zeros(1, 30, dtype=torch.long))
    with pytest.raises(InvalidArgument, match=r"evict_range: `(start|end)` must be in "):
        kv_cache.evict_range(cache, start, end)


@pytest.mark.parametrize("shape", [(3,), (1, 0), (1, 2, 3)])
def test_ids_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    kv_cache = enable_streaming_llm(build("llama"), 4, 16)
    with refused(
        f"must have the shape [batch, tokens] with at least one token, but has {[*shape]}"
    ):
        kv_cache.read(torch.zeros(shape, dtype=torch.long))


def test_tokens_are_not_taken_back() -> None:
    kv_cache = enable_streaming_llm(build("llama"), 4, 16)
    _, cache = kv_cache.read(torch.zeros(1, 30, dtype=torch.long))
    cache.crop(0)
    assert not cache.is_croppable
    with refused("crop: `tokens_to_remove` must be 0, but is -1."):
        cache.crop(-1)


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=variables
    )


def test_sinkstream_itself_does_without_transformers() -> None:
    done = python("import sys, sinkstream; sys.exit('transformers' in sys.modules)")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "module", ["", ".kv_cache", ".cache_layer", ".pos_shift.modify_llama", ".families"]
)
def test_without_transformers_a_sentence_says_how_to_install_it(
    module: str, tmp_path: Path
) -> None:
    (tmp_path / "transformers.py").write_text(
        'raise ModuleNotFoundError("No module named transformers", name="transformers")'
    )
    done = python(f"import sinkstream.streaming_llm{module}", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith(
        "sinkstream.streaming_llm: transformers must be installed, but is not. "
        "`pip install transformers` installs it."
    )
    assert "During handling" not in done.stderr


def test_a_transformers_of_another_time_is_refused(tmp_path: Path) -> None:
    package = tmp_path / "transformers"
    package.mkdir()
    (package / "__init__.py").write_text('__version__ = "4.33.0"')
    (package / "cache_utils.py").write_text("class DynamicLayer: pass")
    done = python("import sinkstream.streaming_llm", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "must be a recent 5.x release, but is 4.33.0." in done.stderr
