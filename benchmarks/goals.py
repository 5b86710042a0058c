"""Goals of the benchmarks, on any machine."""

from __future__ import annotations

import re
from dataclasses import dataclass

OURS = "sinkstream"
BEST = "the best other engine"
READ = "a plain read of memory"
PEAK = "a loop of dots in registers"  # with the instructions of the kernel table
LLAMA_CPP = "llama.cpp"
TRANSFORMERS = "transformers"
RECOMPUTED = "transformers, window recomputed"


@dataclass(frozen=True)
class Goal:
    """The least ratio of our rate to the rival's rate, in one measure."""

    measure: str
    rival: str  # BEST, READ, PEAK, or a prefix of engine names: the best of those counts
    ratio: float


@dataclass(frozen=True)
class Limit:
    """The most or the least that one figure of one benchmark may be."""

    bench: str  # the name of its JSON
    figure: str
    least: float | None = None
    most: float | None = None

    def is_kept(self, found: float) -> bool:
        """Return whether a figure is within the limit."""
        return (self.least is None or found >= self.least) and (
            self.most is None or found <= self.most
        )

    def __str__(self) -> str:
        return f"<= {self.most:g}" if self.most is not None else f">= {self.least:g}"


LIMITS = (
    Limit("latency", "p99_over_p50", most=1.1),
    Limit("overhead", "us_per_token_beyond_the_forward", most=20),
    Limit("load", "median_ms_to_the_first_token", most=500),
    Limit("memory", "load_peak_over_weights_and_cache", most=1),
    Limit("memory", "slope_bytes_per_1000_tokens", most=0),
    Limit("protocol", "ratio", least=80),
)

# Parts of `engine_bench.py` that take minutes; `make bench` runs them.
ENGINE_PARTS = ("throughput", "idle_consumers", "stop", "gil")

PREFILL, PREFILL_LONG = "prefill of 512", "prefill of 2,048"
BATCH_8, BATCH_32 = "batch of 8 at 256", "batch of 32 at 256"


def decode_at(cached: int) -> str:
    """Return the name of a measure."""
    return f"decode at {cached:,}"


# Decode rate of one sequence over that of the best other engine, at 16 and 1,024 cached tokens.
_DECODE = {
    "smollm2": (1.8, 2.2),
    "qwen3-0.6b-Q4_0": (1.3, 1.6),
    "qwen3-0.6b-Q8_0": (1.25, 1.4),
    "qwen3-0.6b-BF16": (1.0, 1.08),
    "llama-3.2-1b-Q4_0": (1.1, 1.1),
    "llama-3.2-1b-Q8_0": (1.05, 1.1),
    "llama-3.2-1b-BF16": (1.0, 1.1),
    "qwen3-30b-a3b-layers-Q4_K_M": (1.15, 1.15),
    "gpt-oss-20b-layers-MXFP4": (1.15, 1.15),
}
MODELS = tuple(_DECODE)
WITH_EXPERTS = MODELS[-2:]
# The share of a plain read: (bytes of weights + cache) / (seconds · bytes/s of the read).
_SHARE = {"smollm2": (0.75, 0.75), "Q4_0": (0.85, 0.8), "Q8_0": (0.92, 0.88),
          "BF16": (0.92, 0.88), "Q4_K_M": (0.85, 0.85), "MXFP4": (0.85, 0.85)}  # fmt: skip
_PREFILL_LLAMA_CPP = {"smollm2": 4.0, "qwen3-0.6b-BF16": 1.4, **dict.fromkeys(WITH_EXPERTS, 1.5)}
# The share of a loop of dots that a prompt reaches: operations / (seconds · operations/s of the
# loop). Tables that are not listed have no dots; for tiles there is no goal for 8-bit weights.
_PREFILL_PEAK = {
    "avx512": {"smollm2": 0.7, "Q4_0": 0.7, "Q8_0": 0.7, "BF16": 0.7},
    "amx": {"smollm2": 0.2, "Q4_0": 0.2, "BF16": 0.5},
}


def kernels_of(description: str) -> str:
    """Return the kernel table that our engine's description names."""
    named = re.search(r"kernels (\w+)", description)
    return named[1] if named else ""


def goals_of(model: str, kernels: str) -> list[Goal]:
    """Return the goals of one of MODELS on a machine that runs this kernel table."""
    goals = []
    kind = model.rpartition("-")[2]
    shares = _SHARE[kind]
    for cached, ratio, share in zip((16, 1024), _DECODE[model], shares, strict=True):
        goals += [Goal(decode_at(cached), BEST, ratio), Goal(decode_at(cached), READ, share)]
    if model in _PREFILL_LLAMA_CPP:
        goals.append(Goal(PREFILL, LLAMA_CPP, _PREFILL_LLAMA_CPP[model]))
    if model in WITH_EXPERTS:  # batches are published, without a goal
        return [*goals, Goal(PREFILL_LONG, LLAMA_CPP, 1.5)]
    goals.append(Goal(PREFILL, TRANSFORMERS, 1.5))
    if (of_the_peak := _PREFILL_PEAK.get(kernels, {}).get(kind)) is not None:
        goals.append(Goal(PREFILL, PEAK, of_the_peak))
    goals += [Goal(BATCH_8, LLAMA_CPP, 2.0), Goal(BATCH_32, LLAMA_CPP, 2.5)]
    if model == "smollm2":
        goals += [Goal(decode_at(1024), RECOMPUTED, 150), Goal(decode_at(4096), RECOMPUTED, 400)]
    return goals
