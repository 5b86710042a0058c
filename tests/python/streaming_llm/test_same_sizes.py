"""`recent_size=R` here is `window=R + 1` in our own models, which count the current token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import sinkstream
from sinkstream.streaming_llm import enable_streaming_llm
from tests.python.streaming_llm.models import build

PROMPT = [5, 17, 3, 88, 41, 200, 60]


def streamed(model: Any, prompt: list[int]) -> list[int]:
    """Return what transformers generates with 4 sinks and 16 recent tokens."""
    enable_streaming_llm(model, start_size=4, recent_size=16)
    out = model.generate(torch.tensor([prompt]), max_new_tokens=120, do_sample=False)
    return out[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


def own(folder: Path, prompt: list[int], window: int) -> list[int]:
    """Return what our own model generates."""
    options: dict[str, Any] = {
        "sinks": 4,
        "window": window,
        "dtype": "float32",
        "kv_dtype": "float32",
    }
    with sinkstream.load(folder, threads=1, **options) as loaded:
        return loaded.generate(prompt, max_tokens=120, temperature=0, ignore_eos=True).token_ids


def test_the_same_sizes_give_the_same_tokens_far_past_the_window(
    tiny_folder: Callable[[str], Path],
) -> None:
    folder = tiny_folder("llama")
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    assert streamed(model, PROMPT) == own(folder, PROMPT, 17)
    assert own(folder, PROMPT, 16) != own(folder, PROMPT, 17) != own(folder, PROMPT, 18)


@pytest.mark.parametrize(
    "name", ["falcon", "falcon-alibi", "falcon-new", "gpt_neox", "gpt_neox-sequential", "mpt"]
)
def test_every_family_gives_the_same_tokens_far_past_the_window(name: str, tmp_path: Path) -> None:
    model, prompt = build(name), [5, 17, 3, 88, 41, 100, 60]
    model.save_pretrained(tmp_path)
    cache = enable_streaming_llm(model, start_size=4, recent_size=16).new_cache()
    found: list[int] = []
    with torch.inference_mode():
        # A Falcon model with ALiBi streams only if it is called token by token.
        for token in prompt[:-1]:
            model(torch.tensor([[token]]), past_key_values=cache)
        ids = prompt[-1:]
        while len(found) < 120:
            logits = model(torch.tensor([ids]), past_key_values=cache).logits
            ids = [int(logits[0, -1].argmax())]
            found += ids
    assert found == own(tmp_path, prompt, 17)
    assert own(tmp_path, prompt, 16) != own(tmp_path, prompt, 17)
