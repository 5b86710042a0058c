"""`recent_size=R` here is `window=R + 1` in our own models, which count the current token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

import sinkstream
from sinkstream.streaming_llm import enable_streaming_llm

PROMPT = [5, 17, 3, 88, 41, 200, 60]


def test_the_same_sizes_give_the_same_tokens_far_past_the_window(
    tiny_folder: Callable[[str], Path],
) -> None:
    folder = tiny_folder("llama")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    enable_streaming_llm(model, start_size=4, recent_size=16)
    out = model.generate(torch.tensor([PROMPT]), max_new_tokens=120, do_sample=False)

    def own(window: int) -> list[int]:
        options = {"sinks": 4, "window": window, "dtype": "float32", "kv_dtype": "float32"}
        with sinkstream.load(folder, threads=1, **options) as loaded:
            return loaded.generate(PROMPT, max_tokens=120, temperature=0, ignore_eos=True).token_ids

    assert out[0, 7:].tolist() == own(17)
    assert own(16) != own(17) != own(18)
