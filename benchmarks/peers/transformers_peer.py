"""transformers: the original streaming method, and a window recomputed for every token.

Weights are unpacked once: to bfloat16 if the processor multiplies it, else to float32. Run as a
program, this writes the unpacked model of a GGUF file into a folder, for `transformers serve`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from machine import processor

from peers.peer import NotPossible, Peer, prompt
from sinkstream.streaming_llm import disable_streaming_llm, enable_streaming_llm

_SINKS = 4
_RECOMPUTED = 3  # tokens of a measurement; each reads the whole window


def _load(file: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        quantization_config=transformers.GgufConfig(gguf_file=file.name, dequantize=True),
        dtype=torch.bfloat16 if "bf16" in processor() else torch.float32,
    ).eval()


class _Transformers(Peer):
    def __init__(self, path: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self._model = _load(Path(path))

    def describe(self) -> str:
        versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
        return f"{versions}, {self._model.dtype}"

    @torch.inference_mode()
    def _prefill(self, tokens: int) -> float:
        ids = torch.tensor([prompt(tokens)])
        started = time.perf_counter()
        self._model(ids, use_cache=False, logits_to_keep=1)
        return time.perf_counter() - started


class Streaming(_Transformers):
    """One token per forward, evicting after each: sinks and a cache that is full at `cached`."""

    def prefill(self, tokens: int) -> float:
        return self._prefill(tokens)

    @torch.inference_mode()
    def decode(self, cached: int, tokens: int) -> float:
        kv_cache = enable_streaming_llm(self._model, _SINKS, max(cached - _SINKS, 1))
        try:
            past = kv_cache.new_cache()
            ids = torch.tensor([prompt(cached)])
            past = kv_cache(self._model(ids, past_key_values=past, use_cache=True).past_key_values)
            started = time.perf_counter()
            for _ in range(tokens):
                found = self._model(ids[:, :1], past_key_values=past, use_cache=True)
                past = kv_cache(found.past_key_values)
            return (time.perf_counter() - started) / tokens
        finally:
            disable_streaming_llm(self._model)


class Recomputing(_Transformers):
    """No cache: each token costs a prefill of the window."""

    def prefill(self, tokens: int) -> float:
        raise NotPossible("it equals that of the streaming method")

    def decode(self, cached: int, tokens: int) -> float:
        if cached < 1024:
            raise NotPossible("a window of few tokens is not a baseline")
        self._prefill(cached)
        return sum(self._prefill(cached) for _ in range(_RECOMPUTED)) / _RECOMPUTED


if __name__ == "__main__":
    source, folder = map(Path, sys.argv[1:])
    _load(source).save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(folder)
