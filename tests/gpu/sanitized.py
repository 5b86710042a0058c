"""Generates twenty tokens with small models on the GPU, for tools that check every access.

    compute-sanitizer --tool memcheck python -m tests.gpu.sanitized FOLDER

Writes the models to FOLDER if they are missing. Every kernel runs: prompts in chunks past the
window, long enough for blocks in `linear` and scratch pages in attention; replies of two streams,
an eviction from the middle, a page that two sessions share, each cache type; and weights of each
type in a layer as wide as SmolLM2's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import sinkstream
from benchmarks.random_gguf import write
from tests.data import tiny
from tests.gpu.sizes import IS_REHEARSAL, KINDS, SINKS, SIZES
from tests.gpu.streams import prompt

TOKENS = 20
WINDOW = 30
CHUNK = 80 if IS_REHEARSAL else 160
PROMPT = CHUNK + 40  # the second chunk finds the ring full


def load(path: Path, kv_dtype: str) -> sinkstream.Model:
    """Load a model with a narrow window and long chunks."""
    return sinkstream.load(
        path,
        device="cuda",
        sinks=SINKS,
        window=WINDOW,
        max_sequences=3,
        prefill_chunk=CHUNK,
        kv_dtype=kv_dtype,
    )


def use_every_op(folder: Path, kv_dtype: str) -> None:
    """Prefill, generate, evict, fork, close."""
    with load(folder, kv_dtype) as model:
        options = {"max_tokens": TOKENS, "ignore_eos": True, "repetition_penalty": 1.1, "seed": 1}
        streams = [model.stream(prompt(count), **options) for count in (PROMPT, 3)]
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


def read(path: Path) -> None:
    """Prefill a prompt, and one more token."""
    with load(path, "float16") as model:
        cache = model.new_cache()
        for ids in (prompt(PROMPT), [7]):
            assert bool(model.forward(torch.tensor([ids]), cache).isfinite().all())


def main() -> None:
    """Run each cache type, then each weight type."""
    folder = Path(sys.argv[1]) / "llama"
    if not folder.exists():
        tiny.write_folder(tiny.build("llama"), folder)
    for kv_dtype in SIZES.cache_types:
        use_every_op(folder, kv_dtype)
        print(f"{kv_dtype}: done", flush=True)
    for kind in KINDS[:1] if IS_REHEARSAL else KINDS:
        read(write("layer", kind, Path(sys.argv[1])))
        print(f"{kind}: done", flush=True)


if __name__ == "__main__":
    main()
