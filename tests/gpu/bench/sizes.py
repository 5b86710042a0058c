"""What is measured, as data: figures, grouped into jobs, most valuable first.

A figure's name is the same in the report, in `--only` and in `goals.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

SINKS = 4
WINDOW = 4092
LIVE = SINKS + WINDOW


@dataclass(frozen=True)
class Copy:
    """Bytes per second, read and written, of a torch copy on the GPU."""

    count: int  # bytes
    name: str = "copy"
    limit_s: float = 30


@dataclass(frozen=True)
class Read:
    """Bytes per second of a torch sum, which only reads."""

    count: int  # bytes
    name: str = "read"
    limit_s: float = 30


@dataclass(frozen=True)
class Product:
    """Operations per second of a torch product of two square bfloat16 matrices."""

    side: int
    name: str = "product"
    limit_s: float = 30


@dataclass(frozen=True)
class Rate:
    """Tokens/s of streams that decode together, greedy, each with `live` tokens in its cache."""

    streams: int
    live: int
    steps: int = 128  # per span
    spans: int = 3
    limit_s: float = 60

    @property
    def name(self) -> str:
        """Return its name."""
        return f"rate {self.streams} at {self.live}"


@dataclass(frozen=True)
class Prefill:
    """Seconds from a request to its first token, for prompts without a common prefix."""

    tokens: int
    limit_s: float = 30

    @property
    def name(self) -> str:
        """Return its name."""
        return f"prefill {self.tokens}"


@dataclass(frozen=True)
class Trace:
    """GPU activity during steady decode of one stream, by the GPU's clock."""

    live: int
    steps: int
    sampling: str = "greedy"  # of SAMPLINGS
    limit_s: float = 60

    @property
    def name(self) -> str:
        """Return its name."""
        return f"trace {self.sampling}"


@dataclass(frozen=True)
class Between:
    """Times between the tokens of one stream, starting with an empty cache."""

    tokens: int
    loops: int  # empty loops on the host, each as long as a token
    limit_s: float

    name: str = "between tokens"


@dataclass(frozen=True)
class Peer:
    """Tokens/s of a transformers model at `live` tokens, by one of the methods in `peers.py`."""

    method: str
    live: int
    tokens: int
    limit_s: float
    warm: int = 8  # warm-up tokens: some methods compile, some record graphs

    @property
    def name(self) -> str:
        """Return its name."""
        return f"{self.method} at {self.live}"


Figure = Copy | Read | Product | Rate | Prefill | Trace | Between | Peer

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "penalties": {
        "temperature": 0.7,
        "top_p": 0.95,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.1,
    },
    "penalties greedy": {"temperature": 0, "repetition_penalty": 1.1, "frequency_penalty": 0.1},
}


@dataclass(frozen=True)
class Job:
    """The figures that one process measures, in this order."""

    subject: str  # the GPU, one of our models, or transformers with a model
    figures: tuple[Figure, ...]
    limit_s: float
    shape: str = ""  # in benchmarks/random_gguf.py; empty for the GPU
    kind: str = ""  # of its TYPES
    window: int = WINDOW
    max_sequences: int = 1

    def only(self, words: str) -> Job:
        """Return the job with only the figures whose names contain one of these words.

        The GPU's own figures are always measured, because others are shares of them. No words: all.
        """
        if not words or self.subject == GPU:
            return self
        wanted = [word.strip() for word in words.split(",")]
        return replace(
            self,
            figures=tuple(
                figure
                for figure in self.figures
                if any(word in f"{self.subject}: {figure.name}" for word in wanted)
            ),
        )


GPU, PEER = "gpu", "transformers"


def model(
    shape: str, kind: str, figures: tuple[Figure, ...], limit_s: float, **options: int
) -> Job:
    """Return the job for one of our models."""
    streams = [figure.streams for figure in figures if isinstance(figure, Rate)]
    options.setdefault("max_sequences", max(streams, default=1))
    return Job(f"{shape} {kind}", figures, limit_s, shape, kind, **options)


def peers(shape: str, figures: tuple[Figure, ...], limit_s: float) -> Job:
    """Return the job for transformers with a model."""
    return Job(f"{PEER} {shape}", figures, limit_s, shape)


GROWTH = (1, 2, 4, 8, 16)  # streams, each with 256 tokens
FULL = (
    Job(GPU, (Copy(2 << 30), Read(2 << 30), Product(8192)), 60),
    model(
        "qwen3-0.6b",
        "BF16",
        (
            Rate(1, 256),
            Rate(1, LIVE),
            Prefill(4096),
            Trace(1024, 200),
            Trace(1024, 200, "penalties"),
            Trace(1024, 200, "penalties greedy"),
        ),
        75,
    ),
    model(
        "llama-3.1-8b",
        "BF16",
        (
            Rate(1, 256),
            Prefill(4096),
            Rate(64, 1024),
            Rate(64, LIVE, limit_s=120),
            *(Rate(streams, 256) for streams in GROWTH[1:]),
            *(
                Rate(streams, 256) for streams in (17, 32)
            ),  # other kernels of attention and `linear`
            Rate(1, LIVE),
            Trace(1024, 150),
        ),
        210,
    ),
    model(
        "llama-3.1-8b",
        "Q4_0",
        (Rate(1, 256), Rate(1, LIVE), Prefill(4096), Trace(1024, 150)),
        75,
    ),
    model("llama-3.2-1b", "BF16", (Rate(1, 256), Prefill(4096), Rate(1, LIVE)), 45),
    model("qwen3-0.6b", "BF16", (Between(100_000, loops=2000, limit_s=120),), 140),
    peers(
        "qwen3-0.6b",
        (
            Peer("recomputed", LIVE, 5, 30),
            Peer("streaming_llm", LIVE, 64, 45),
            Peer("static compiled", LIVE, 64, 90),
        ),
        120,
    ),
    peers(
        "llama-3.1-8b",
        (
            Peer("recomputed", LIVE, 3, 30),
            Peer("streaming_llm", LIVE, 64, 45),
            Peer("static compiled", LIVE, 64, 90),
        ),
        120,
    ),
    model("llama-3.1-8b", "Q4_0", (Rate(64, 1024), Rate(64, LIVE, limit_s=120)), 120),
    model("qwen3-0.6b", "Q4_0", (Rate(1, 256), Rate(64, 256)), 45),
    model("qwen3-0.6b", "Q8_0", (Rate(1, 256), Rate(64, 256)), 45),
)

# A rehearsal of the above on a machine without a GPU: everything once.
_SHORT_WINDOW = 12
_SHORT_LIVE = SINKS + _SHORT_WINDOW
SHORT = (
    Job(GPU, (Copy(1 << 22), Read(1 << 22), Product(64)), 60),
    model(
        "tiny",
        "BF16",
        (
            Rate(1, _SHORT_LIVE, steps=2, spans=2),
            Rate(2, _SHORT_LIVE, steps=2, spans=2),
            Prefill(24),
            Trace(8, 3),
            Trace(8, 3, "penalties"),
            Between(20, loops=3, limit_s=20),
        ),
        60,
        window=_SHORT_WINDOW,
    ),
    peers(
        "tiny",
        (
            Peer("recomputed", _SHORT_LIVE, 2, 20),
            Peer("streaming_llm", _SHORT_LIVE, 2, 20, warm=1),
            Peer("static", _SHORT_LIVE, 2, 20, warm=1),
        ),
        60,
    ),
)
