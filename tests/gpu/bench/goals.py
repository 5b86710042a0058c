"""Goals for figures on an H100 or H200, as data. Needs no torch.

A goal is a share of a floor, or a multiple of it, that the same run measures: the bandwidth of a
copy or a read, the rate of a product, the time of a graph with one kernel. So it is the same for
every GPU.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """A lower or upper bound for one number."""

    what: str
    number: str  # key of `report.numbers`
    wanted: float
    unit: str  # "%": a share; "×": a ratio
    is_least: bool = True

    def is_reached(self, found: float) -> bool:
        """Return whether a number reaches the goal."""
        return found >= self.wanted if self.is_least else found <= self.wanted


SMALL, MIDDLE, LARGE = "qwen3-0.6b BF16", "llama-3.2-1b BF16", "llama-3.1-8b BF16"
LARGE_4 = "llama-3.1-8b Q4_0"

GOALS = (
    Goal("8B bf16, one stream, of bandwidth", f"{LARGE}: rate 1 at 256: share", 0.9, "%"),
    Goal("1B bf16, one stream, of bandwidth", f"{MIDDLE}: rate 1 at 256: share", 0.75, "%"),
    Goal("0.6B bf16, one stream, of bandwidth", f"{SMALL}: rate 1 at 256: share", 0.5, "%"),
    # 600 tokens/s on an H200.
    Goal("8B Q4_0, one stream, of bandwidth", f"{LARGE_4}: rate 1 at 256: share", 0.6, "%"),
    # 4,400 and 8,000 tokens/s on an H200; at 4,096, most bytes are keys and values.
    *(
        Goal(
            f"8B {kind}, 64 streams at {live}, of bandwidth",
            f"{subject} batches: rate 64 at {live}: share",
            least,
            "%",
        )
        for subject, kind, live, least in (
            (LARGE, "bf16", 4096, 0.78),
            (LARGE, "bf16", 1024, 0.68),
            (LARGE_4, "Q4_0", 4096, 0.6),
            (LARGE_4, "Q4_0", 1024, 0.38),
        )
    ),
    # Near linear: four fifths of sixteen times the tokens.
    Goal(
        "8B bf16, 16 streams, of 16 times one", f"{LARGE} batches: rate 16 at 256: growth", 0.8, "%"
    ),
    # A kernel of attention ends at 16 streams: one more must not cost tokens.
    Goal(
        "8B bf16, 17 streams over 16",
        f"{LARGE} batches: rate 17 at 256: over 16",
        1.0,
        "×",
    ),
    Goal(
        "8B bf16, 17 streams of unequal length over 16",
        f"{LARGE} batches: rate 17 at 256 to 4096: over 16",
        1.0,
        "×",
    ),
    Goal(
        "0.6B bf16, window of 131,072, of one of 4,096",
        f"{SMALL} window 131072: rate 1 at 256: of the usual",
        0.95,
        "%",
    ),
    Goal("8B prompt of 4096, of a product", f"{LARGE}: prefill 4096: share", 0.5, "%"),
    Goal(
        "8B prompt of 4096 next to a stream, of one alone",
        f"{LARGE}: prefill 4096 next to 1: of one alone",
        0.9,
        "%",
    ),
    *(
        Goal(
            f"{kind} bf16, gap between graphs, of a replay",
            f"{subject}: trace greedy: gap of replay",
            2,
            "×",
            is_least=False,
        )
        for subject, kind in ((SMALL, "0.6B"), (LARGE, "8B"))
    ),
    Goal(
        "sampling with penalties, of an argmax",
        f"{SMALL}: trace penalties: sampling of argmax",
        3,
        "×",
        is_least=False,
    ),
    Goal(
        "0.6B bf16, p99/p50 between tokens",
        f"{SMALL} for long: between tokens: p99_over_p50",
        1.05,
        "×",
        is_least=False,
    ),
    *(
        Goal(
            f"{kind} bf16, over a window recomputed",
            f"transformers {shape}: recomputed at 4096: ratio",
            22.2,
            "×",
        )
        for shape, kind in (("qwen3-0.6b", "0.6B"), ("llama-3.1-8b", "8B"))
    ),
    # The driver keeps some for itself: its context, the kernels, the graphs.
    Goal(
        "8B bf16, memory of the driver over the plan",
        f"{LARGE}: memory: over_plan",
        1.1,
        "×",
        is_least=False,
    ),
)
