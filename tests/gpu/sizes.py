"""Sizes of the GPU tests: full, or a few tokens in a rehearsal.

A rehearsal runs everything on an emulated GPU, about ten thousand times slower.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

IS_REHEARSAL = os.environ.get("SINKSTREAM_REHEARSAL") == "1"


@dataclass(frozen=True)
class Sizes:
    """Numbers of tokens and streams."""

    window: int  # W, with 4 sinks
    text: int  # tokens of a prompt: several windows
    chunk: int  # of a prompt
    reply: int  # tokens of a reply: also past the window
    neighbours: tuple[int, ...]  # streams next to the tested one
    storm: int  # streams that are cancelled
    names: tuple[str, ...]  # of tests/data/tiny.py
    cache_types: tuple[str, ...]


FULL = Sizes(
    window=156,  # three full pages and parts of two
    text=1800,
    chunk=256,  # `linear` uses blocks from 65 rows on; more than the ring has room for
    reply=400,
    neighbours=(1, 7, 20, 63),  # attention changes its kernel at 17 rows, `linear` its shape at 9
    storm=200,
    names=("llama", "qwen2", "qwen3", "llama-linear", "llama-llama3", "llama-yarn"),
    cache_types=("float16", "bfloat16", "int8"),
)
SHORT = Sizes(
    window=12,
    text=40,
    chunk=16,
    reply=10,
    neighbours=(2,),
    storm=8,
    names=("llama",),
    cache_types=("float16",),
)
SIZES = SHORT if IS_REHEARSAL else FULL
KINDS = ("BF16", "F16", "Q4_0", "Q4_1", "Q8_0")  # of weights, of benchmarks/random_gguf.py
SINKS = 4
EXPERTS = ("gpt_oss",) if IS_REHEARSAL else ("gpt_oss", "qwen3_moe", "glm4_moe")  # families
