"""A tiny model's twenty tokens on the card, for a tool that watches every access.

    compute-sanitizer --tool memcheck python -m tests.gpu.sanitized FOLDER

Writes the model into FOLDER if it is not there. Every op runs: a prompt in chunks past the window,
a reply of two streams, a cut, a page that two sessions share, and each type of cache.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import sinkstream
from tests.data import tiny
from tests.gpu.sizes import SINKS, SIZES
from tests.gpu.streams import prompt

TOKENS = 20
WINDOW = 30


def use_every_op(folder: Path, kv_dtype: str) -> None:
    """Load, read, generate, cut, fork, close."""
    with sinkstream.load(
        folder,
        device="cuda",
        sinks=SINKS,
        window=WINDOW,
        max_sequences=3,
        prefill_chunk=16,
        kv_dtype=kv_dtype,
    ) as model:
        options = {"max_tokens": TOKENS, "ignore_eos": True, "repetition_penalty": 1.1, "seed": 1}
        streams = [model.stream(prompt(count), **options) for count in (40, 3)]
        for stream in streams:
            assert len(stream.result().token_ids) == TOKENS
        with model.session() as session:
            session.append(prompt(10))
            with session.fork() as fork:
                fork.append([5])
        cache = model.new_cache()
        model.forward(torch.tensor([prompt(WINDOW)]), cache)
        cache.evict_range(SINKS + 3, SINKS + 8)
        assert bool(model.forward(torch.tensor([[7]]), cache).isfinite().all())


def main() -> None:
    """Run each type of cache."""
    folder = Path(sys.argv[1]) / "llama"
    if not folder.exists():
        tiny.write_folder(tiny.build("llama"), folder)
    for kv_dtype in SIZES.cache_types:
        use_every_op(folder, kv_dtype)
        print(f"{kv_dtype}: done", flush=True)


if __name__ == "__main__":
    main()
