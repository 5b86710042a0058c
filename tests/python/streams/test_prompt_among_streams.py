"""A prompt that arrives while others stream delays them little, and its reply is unchanged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import sinkstream

PROMPT = [3 + 7 * i % 280 for i in range(700)]  # ten windows long


def test_a_prompt_among_streams_is_read_by_few_tokens_a_step_and_its_reply_stays_the_same(
    tiny_folder: Callable[[str], Path], threads: int
) -> None:
    with sinkstream.load(
        tiny_folder("llama"), sinks=4, window=60, max_sequences=7, threads=threads
    ) as model:
        alone = model.generate(PROMPT, max_tokens=20, temperature=0, ignore_eos=True)
        running = [model.stream([5, 9, i], ignore_eos=True, temperature=0) for i in range(6)]
        readers = [threading.Thread(target=stream.result) for stream in running]
        for reader in readers:
            reader.start()
        first = model.stats()["steps"]
        among = model.generate(PROMPT, max_tokens=20, temperature=0, ignore_eos=True)
        for stream in running:
            stream.cancel()
        for reader in readers:
            reader.join()
        prompt_tokens_per_step = [
            step[5] for step in model._native.steps(first) if step[4] == 6 and step[5]
        ]
        has_tiles = model.runtime["kernels"] == "amx"
    most = 10 if has_tiles else 4  # or one per two decoding sequences, if that were more
    assert len(prompt_tokens_per_step) >= len(PROMPT) // most - 10  # some steps ran before all six
    assert max(prompt_tokens_per_step) == most
    assert among.token_ids == alone.token_ids
    assert among.logprobs == alone.logprobs
