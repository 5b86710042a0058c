"""Tokens per second of a model's streams, and of its prompts.

Steps are the engine's own count, and the streams are not read meanwhile: each would wait for its
reader after about 2,000 tokens, and all spans together stay well below that. Sessions read all
prompts before any of them decodes, because otherwise the first streams would be 2,000 tokens ahead
before the last prompt is finished.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import Any

import sinkstream
from sinkstream import devices
from tests.gpu.bench.flops import prefill_flops
from tests.gpu.bench.notes import Values
from tests.gpu.bench.sizes import Prefill, Rate
from tests.gpu.streams import prompt, wait_until_idle

MOST_TOKENS = 1900  # of a stream that is not read
_WARM_STEPS = 4
_PREFILLS = 4  # the first one warms up


def prompt_of(figure: Rate, live: int, capacity: int) -> int:
    """Return a stream's prompt length for an average of `live` tokens during the measurement.

    A full cache stays full; any other grows by one token per step.
    """
    if live >= capacity:
        return capacity
    return max(live - _WARM_STEPS - figure.spans * figure.steps // 2, 1)


def wait_for_step(model: sinkstream.Model, step: int) -> tuple[dict[str, Any], float]:
    """Wait until `step` steps are done; return the counters and the time."""
    while (stats := model.stats())["steps"] < step:
        # Polling blocks the engine's counters, so it is frequent only near the end.
        time.sleep(0.0001 if step - stats["steps"] < 8 else 0.002)
    return stats, time.perf_counter()


def measure_rate(model: sinkstream.Model, figure: Rate) -> Values:
    """Measure consecutive spans of the same streams."""
    tokens = [prompt_of(figure, live, model.capacity.tokens) for live in figure.lives]
    if (more := figure.spans * figure.steps + _WARM_STEPS) > MOST_TOKENS:
        raise ValueError(f"rate: a stream that is not read cannot generate {more} tokens")
    with ExitStack() as at_the_end:
        sessions = [at_the_end.enter_context(model.session()) for _ in range(figure.streams)]
        started = time.perf_counter()
        for number, session in enumerate(sessions):
            session.append(prompt(tokens[number], number))
        read_s = time.perf_counter() - started
        streams = [
            session.stream([8], max_tokens=MOST_TOKENS, temperature=0, ignore_eos=True)
            for session in sessions
        ]
        while (stats := model.stats())["running"] < figure.streams or any(
            not stream.stats.generated_tokens for stream in streams
        ):
            time.sleep(0.001)
        stats, began = wait_for_step(model, stats["steps"] + _WARM_STEPS)
        lives, evicted = [live_tokens(streams)], stats["evicted_tokens"]
        rates, first = [], stats
        for _ in range(figure.spans):
            before = stats
            stats, ended = wait_for_step(model, before["steps"] + figure.steps)
            rates.append((stats["generated_tokens"] - before["generated_tokens"]) / (ended - began))
            began = ended
        lives.append(live_tokens(streams))
        if stats["running"] < figure.streams or stats["parked"]:
            raise RuntimeError(f"rate: {figure.streams} streams must decode to the end: {stats}")
        for stream in streams:
            stream.close()
        wait_until_idle(model)
    made = stats["generated_tokens"] - first["generated_tokens"]
    tokens_per_s, live = statistics.median(rates), statistics.mean(lives)
    return {
        "tokens_per_s": tokens_per_s,
        "spans": rates,
        "steps_per_s": tokens_per_s * (stats["steps"] - first["steps"]) / made,
        "live_tokens": live / figure.streams,
        "bytes_per_step": model.bytes_read_per_token(round(live)),
        "evicted_tokens": stats["evicted_tokens"] - evicted,
        "prompts_tokens_per_s": sum(tokens) / read_s,
    }


def live_tokens(streams: list[sinkstream.Stream]) -> int:
    """Return the tokens in all caches."""
    return sum(stream.stats.live_tokens for stream in streams)


def measure_prefill(model: sinkstream.Model, figure: Prefill) -> Values:
    """Measure prefill speed with sequential requests, next to streams that decode."""
    seconds, decoded = [], []
    with ExitStack() as at_the_end:
        for number in range(figure.neighbours):
            stream = model.stream(
                prompt(16, number), max_tokens=MOST_TOKENS, temperature=0, ignore_eos=True
            )
            at_the_end.enter_context(stream)
        while model.stats()["running"] < figure.neighbours:
            time.sleep(0.001)
        for number in range(_PREFILLS):
            before = model.stats()["generated_tokens"]
            started = time.perf_counter()
            model.stream(prompt(figure.tokens, number + 70), max_tokens=1, temperature=0).result()
            seconds.append(time.perf_counter() - started)
            decoded.append(model.stats()["generated_tokens"] - before - 1)
    wait_until_idle(model)
    middle = statistics.median(seconds[1:])
    flops = prefill_flops(model.spec, figure.tokens, model.capacity.tokens)
    return {
        "tokens_per_s": figure.tokens / middle,
        "seconds": seconds[1:],
        "decoded": decoded[1:],
        "flops": flops,
        "flops_per_s": flops / middle,
    }


def free_bytes() -> int:
    """Return the GPU's free memory, as its driver says."""
    gpu = devices.find_gpu()
    if isinstance(gpu, str):
        raise RuntimeError(gpu)
    return gpu.free_bytes


def measure_memory(model: sinkstream.Model, free_before: int) -> Values:
    """Compare the memory that `capacity` names with what the driver lacks since the load."""
    capacity = model.capacity
    planned = capacity.weight_bytes + capacity.cache_bytes + capacity.scratch_bytes
    lacking = free_before - free_bytes()
    return {"planned_bytes": planned, "driver_bytes": lacking, "over_plan": lacking / planned}
