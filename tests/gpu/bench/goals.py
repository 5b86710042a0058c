"""Goals for figures on an H100 or H200, as data. Needs no torch."""

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
    gpu: str = ""  # part of the GPU's name, if the goal is for one GPU

    def is_reached(self, found: float) -> bool:
        """Return whether a number reaches the goal."""
        return found >= self.wanted if self.is_least else found <= self.wanted


SMALL, MIDDLE, LARGE = "qwen3-0.6b BF16", "llama-3.2-1b BF16", "llama-3.1-8b BF16"
LARGE_4 = "llama-3.1-8b Q4_0"

GOALS = (
    Goal("8B bf16, one stream, of bandwidth", f"{LARGE}: rate 1 at 256: share", 0.9, "%"),
    Goal("1B bf16, one stream, of bandwidth", f"{MIDDLE}: rate 1 at 256: share", 0.75, "%"),
    Goal("0.6B bf16, one stream, of bandwidth", f"{SMALL}: rate 1 at 256: share", 0.5, "%"),
    Goal(
        "8B Q4_0, one stream",
        f"{LARGE_4}: rate 1 at 256: tokens_per_s",
        600,
        "tokens/s",
        gpu="H200",
    ),
    *(
        Goal(
            f"8B {kind}, 64 streams at {live}",
            f"{subject}: rate 64 at {live}: tokens_per_s",
            least,
            "tokens/s",
        )
        for subject, kind in ((LARGE, "bf16"), (LARGE_4, "Q4_0"))
        for live, least in ((4096, 4400.0), (1024, 8000.0))
    ),
    # Near linear: four fifths of sixteen times the tokens.
    Goal("8B bf16, 16 streams, of 16 times one", f"{LARGE}: rate 16 at 256: growth", 0.8, "%"),
    Goal("8B prompt of 4096, of a product", f"{LARGE}: prefill 4096: share", 0.5, "%"),
    *(
        goal
        for subject, kind in ((SMALL, "0.6B"), (LARGE, "8B"))
        for goal in (
            Goal(
                f"{kind} bf16, gap between graphs",
                f"{subject}: trace greedy: gap_p50_us",
                5,
                "µs",
                is_least=False,
            ),
            Goal(f"{kind} bf16, GPU busy", f"{subject}: trace greedy: busy_share", 0.99, "%"),
        )
    ),
    Goal(
        "sampling with penalties, 151,936",
        f"{SMALL}: trace penalties: sampling_p50_us",
        25,
        "µs",
        is_least=False,
    ),
    Goal(
        "0.6B bf16, p99/p50 between tokens",
        f"{SMALL}: between tokens: p99_over_p50",
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
)
