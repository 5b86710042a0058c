"""Generates a few tokens with small models on the GPU, for tools that check every access.

    python -m tests.gpu.sanitized --write FOLDER
    compute-sanitizer --tool memcheck python -m tests.gpu.sanitized FOLDER

The first call writes the models. Nearly every kernel runs in the second: prompts in chunks past the
window, long enough for blocks in `linear` and scratch pages in attention; replies of two streams, a
page that two sessions share, each cache type; weights of each type in a layer as wide as
SmolLM2's. It does not import torch, whose own kernels take a tool minutes to prepare, so the
kernel that cuts from the middle of a cache is not run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import sinkstream
from tests.gpu.sizes import IS_REHEARSAL, KINDS, SINKS, SIZES
from tests.gpu.streams import prompt

TOKENS = 20
WINDOW = 30
CHUNK = 80 if IS_REHEARSAL else 160
PROMPT = CHUNK + 40  # the second chunk finds the ring full
USED_KINDS = KINDS[:1] if IS_REHEARSAL else KINDS


def write(folder: Path) -> None:
    """Write the models that are missing."""
    from benchmarks import random_gguf
    from tests.data import tiny

    if not (folder / "llama").exists():
        tiny.write_folder(tiny.build("llama"), folder / "llama")
    for kind in USED_KINDS:
        random_gguf.write("layer", kind, folder)


def load(path: Path, kv_dtype: str) -> sinkstream.Model:
    """Load a model with a narrow window and long chunks."""
    return sinkstream.load(
        path,
        device="cuda",
        sinks=SINKS,
        window=WINDOW,
        max_sequences=2,
        prefill_chunk=CHUNK,
        kv_dtype=kv_dtype,
    )


def use_every_op(folder: Path, kv_dtype: str) -> None:
    """Prefill, generate, fork, close."""
    with load(folder, kv_dtype) as model:
        options = {"max_tokens": TOKENS, "ignore_eos": True, "repetition_penalty": 1.1, "seed": 1}
        streams = [model.stream(prompt(count), **options) for count in (PROMPT, 3)]
        for stream in streams:
            assert len(stream.result().token_ids) == TOKENS
        with model.session() as session:
            session.append(prompt(10))
            with session.fork() as fork:
                fork.append([5])


def read(path: Path) -> None:
    """Prefill a prompt, and generate two tokens."""
    with load(path, "float16") as model:
        result = model.stream(prompt(PROMPT), max_tokens=2, ignore_eos=True).result()
        assert len(result.token_ids) == 2


def main() -> None:
    """Run each cache type, then each weight type."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="write the models, and end")
    args = parser.parse_args()
    if args.write:
        write(args.folder)
        return
    for kv_dtype in SIZES.cache_types:
        use_every_op(args.folder / "llama", kv_dtype)
        print(f"{kv_dtype}: done", flush=True)
    for kind in USED_KINDS:
        read(args.folder / f"layer-{kind}.gguf")
        print(f"{kind}: done", flush=True)


if __name__ == "__main__":
    main()
