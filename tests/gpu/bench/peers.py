"""Transformers on the same GPU, with random weights created there.

Each figure is for one greedy sequence in which every token sees `live` keys. Token ids stay on the
GPU between forwards, and the host waits only for the last one.

- recomputed: a window without a cache; every token is a forward pass over the full window.
- streaming_llm: the original method, `sinkstream.streaming_llm`; every token evicts one.
- static: transformers' static cache of `live` tokens, up to its end.
- static compiled: the same with `forward` compiled by `torch.compile(mode="reduce-overhead")`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers

from benchmarks.random_gguf import CONTEXT, SHAPES, Shape
from sinkstream.streaming_llm import disable_streaming_llm, enable_streaming_llm
from tests.gpu.bench.ceilings import device, wait
from tests.gpu.bench.notes import Values
from tests.gpu.bench.sizes import SINKS, Peer
from tests.gpu.streams import prompt


def config_of(shape: Shape) -> Any:
    """Return transformers' config for one of our shapes."""
    kinds = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}
    return kinds[shape.arch](
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": shape.base},
        tie_word_embeddings=shape.is_tied,
    )


def build(name: str) -> Any:
    """Return a bfloat16 model, created on its device."""
    torch.manual_seed(1)
    with torch.device(device()):
        return transformers.AutoModelForCausalLM.from_config(
            config_of(SHAPES[name]), dtype=torch.bfloat16
        ).eval()


def ids_of(tokens: int) -> torch.Tensor:
    """Return a prompt as a batch of one."""
    return torch.tensor([prompt(tokens)], device=device())


def seconds_per_token(step: Callable[[torch.Tensor], torch.Tensor], figure: Peer) -> float:
    """Return the mean time per token, after warm-up."""
    ids = ids_of(1)
    for _ in range(figure.warm):
        ids = step(ids)
    wait()
    started = time.perf_counter()
    for _ in range(figure.tokens):
        ids = step(ids)
    wait()
    return (time.perf_counter() - started) / figure.tokens


@torch.inference_mode()
def recomputed(model: Any, figure: Peer) -> float:
    """Return the seconds per token."""
    ids, seconds = ids_of(figure.live), []
    for _ in range(figure.tokens + 1):
        wait()
        started = time.perf_counter()
        model(ids, use_cache=False, logits_to_keep=1).logits.argmax()
        wait()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


@torch.inference_mode()
def streaming_llm(model: Any, figure: Peer) -> float:
    """Return the seconds per token."""
    recent = figure.live - SINKS - 1  # a query sees these, the sinks and itself
    kv_cache = enable_streaming_llm(model, SINKS, recent)
    try:
        past = kv_cache.new_cache()
        model(ids_of(figure.live - 1), past_key_values=past, use_cache=True, logits_to_keep=1)

        def step(ids: torch.Tensor) -> torch.Tensor:
            nonlocal past
            found = model(ids, past_key_values=past, use_cache=True)
            past = kv_cache(found.past_key_values)
            token: torch.Tensor = found.logits[:, -1:].argmax(-1)
            return token

        seconds = seconds_per_token(step, figure)
        if past.evicted_tokens != figure.tokens + figure.warm:
            raise RuntimeError(f"streaming_llm: {past.evicted_tokens} tokens were evicted")
        return seconds
    finally:
        disable_streaming_llm(model)


def static(model: Any, figure: Peer) -> float:
    """Return the seconds per token."""
    return _static(model, figure, model)


def static_compiled(model: Any, figure: Peer) -> float:
    """Return the seconds per token."""
    compiled = torch.compile(model.__call__, mode="reduce-overhead", dynamic=False)
    return _static(model, figure, compiled)


@torch.no_grad()
def _static(model: Any, figure: Peer, forward: Callable[..., Any]) -> float:
    cache = transformers.StaticCache(config=model.config, max_cache_len=figure.live)
    before = max(figure.live - figure.tokens - figure.warm, 1)
    model(ids_of(before), past_key_values=cache, use_cache=True, logits_to_keep=1)

    def step(ids: torch.Tensor) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        logits = forward(ids, past_key_values=cache, use_cache=True).logits
        token: torch.Tensor = logits[:, -1:].argmax(-1)
        return token

    return seconds_per_token(step, figure)


METHODS: dict[str, Callable[[Any, Peer], float]] = {
    "recomputed": recomputed,
    "streaming_llm": streaming_llm,
    "static": static,
    "static compiled": static_compiled,
}


def measure_peer(model: Any, figure: Peer) -> Values:
    """Measure one method."""
    seconds = METHODS[figure.method](model, figure)
    return {"tokens_per_s": 1 / seconds, "ms_per_token": 1000 * seconds}
