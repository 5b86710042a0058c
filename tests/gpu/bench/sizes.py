"""What is measured, as data: figures, grouped into jobs, most valuable first.

A figure's name is the same in the report, in `--only` and in `goals.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

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
class Replay:
    """Seconds of a torch graph with one small kernel, replayed without a pause."""

    name: str = "replay"
    limit_s: float = 30


@dataclass(frozen=True)
class Argmax:
    """Seconds of a torch argmax of as many logits, within a graph."""

    count: int
    name: str = "argmax"
    limit_s: float = 30


@dataclass(frozen=True)
class Rate:
    """Tokens/s of streams that decode together, greedy, each with `live` tokens in its cache."""

    streams: int
    live: int
    shortest: int = 0  # if not 0: lengths are spread evenly from this to `live`
    steps: int = 128  # per span
    spans: int = 3
    limit_s: float = 60

    @property
    def name(self) -> str:
        """Return its name."""
        spread = f"{self.shortest} to " if self.shortest else ""
        return f"rate {self.streams} at {spread}{self.live}"

    @property
    def lives(self) -> list[int]:
        """Return the live tokens of each stream."""
        if not self.shortest:
            return [self.live] * self.streams
        step = (self.live - self.shortest) / max(self.streams - 1, 1)
        return [self.shortest + round(step * number) for number in range(self.streams)]


@dataclass(frozen=True)
class Prefill:
    """Seconds from a request to its first token, for prompts without a common prefix."""

    tokens: int
    neighbours: int = 0  # streams that decode meanwhile
    limit_s: float = 30

    @property
    def name(self) -> str:
        """Return its name."""
        return f"prefill {self.tokens}" + (f" next to {self.neighbours}" if self.neighbours else "")


@dataclass(frozen=True)
class Memory:
    """Bytes that the driver lacks since before the load, next to those of `capacity`."""

    name: str = "memory"
    limit_s: float = 10


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


Figure = Copy | Read | Product | Replay | Argmax | Rate | Prefill | Memory | Trace | Between | Peer

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
    call: int = 0  # the call of run.sh that measures it; 0: every call
    shape: str = ""  # in benchmarks/random_gguf.py; empty for the GPU
    kind: str = ""  # of its TYPES
    window: int = WINDOW
    kv_dtype: Literal["auto", "int8"] = "auto"
    max_sequences: int = 1
    environment: tuple[tuple[str, str], ...] = ()  # of its process

    def in_call(self, call: int) -> Job:
        """Return the job, without figures if another call measures it. 0: all calls in one."""
        return self if call in (0, self.call) or not self.call else replace(self, figures=())

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
    shape: str,
    kind: str,
    figures: tuple[Figure, ...],
    limit_s: float,
    variant: str = "",  # of a model that is measured in two ways
    **options: Any,
) -> Job:
    """Return the job for one of our models."""
    streams = [figure.streams for figure in figures if isinstance(figure, Rate)]
    streams += [1 + figure.neighbours for figure in figures if isinstance(figure, Prefill)]
    options.setdefault("max_sequences", max(streams, default=1))
    return Job(f"{shape} {kind}{variant}", figures, limit_s, shape=shape, kind=kind, **options)


def peers(shape: str, figures: tuple[Figure, ...], limit_s: float, call: int) -> Job:
    """Return the job for transformers with a model."""
    return Job(f"{PEER} {shape}", figures, limit_s, call, shape)


GROWTH = (1, 2, 4, 8, 16)  # streams, each with 256 tokens
LONG_WINDOW = 131_072 - SINKS
GPU_FIGURES = (Copy(2 << 30), Read(2 << 30), Product(8192), Replay(), Argmax(151_936))
# The second call has everything of one stream, prompts, and the other methods; the third has many
# streams, and sizes at which kernels change.
FULL = (
    Job(GPU, GPU_FIGURES, 60),
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
            Memory(),
        ),
        75,
        call=2,
    ),
    model(
        "qwen3-0.6b",
        "BF16",
        (Rate(1, 256), Rate(1, 16_384)),
        45,
        " window 131072",
        window=LONG_WINDOW,
        call=2,
    ),
    model(
        "qwen3-0.6b",
        "BF16",
        (Rate(1, 256),),
        40,
        " eager",
        environment=(("CUDA_MODULE_LOADING", "EAGER"),),
        call=2,
    ),
    model(
        "llama-3.1-8b",
        "BF16",
        (
            Rate(1, 256),
            Prefill(4096),
            Rate(1, LIVE),
            Trace(1024, 150),
            Prefill(4096, neighbours=1),
            Memory(),
        ),
        150,
        call=2,
    ),
    model(
        "llama-3.1-8b",
        "Q4_0",
        (Rate(1, 256), Rate(1, LIVE), Prefill(4096), Trace(1024, 150)),
        75,
        call=2,
    ),
    model("llama-3.2-1b", "BF16", (Rate(1, 256), Prefill(4096), Rate(1, LIVE)), 45, call=2),
    peers(
        "qwen3-0.6b",
        (
            Peer("recomputed", LIVE, 5, 30),
            Peer("streaming_llm", LIVE, 64, 45),
            Peer("static compiled", LIVE, 64, 90),
        ),
        120,
        call=2,
    ),
    peers(
        "llama-3.1-8b",
        (
            Peer("recomputed", LIVE, 3, 30),
            Peer("streaming_llm", LIVE, 64, 45),
            Peer("static compiled", LIVE, 64, 90),
        ),
        120,
        call=2,
    ),
    model(
        "llama-3.1-8b",
        "BF16",
        (
            Rate(64, 1024),
            Rate(64, LIVE, limit_s=120),
            *(Rate(streams, 256) for streams in GROWTH),
            # Other kernels of attention from 17 rows on, and of `linear`.
            *(Rate(streams, 256) for streams in (17, 32)),
            *(Rate(streams, LIVE, shortest=256) for streams in (16, 17, 32)),
            Memory(),
        ),
        200,
        " batches",
        call=3,
    ),
    model("phi-3-layers", "BF16", (Rate(1, LIVE), Rate(17, LIVE), Prefill(4096)), 30, call=3),
    model("gemma-7b-layers", "BF16", (Rate(1, LIVE), Rate(17, LIVE), Prefill(4096)), 30, call=3),
    model("mistral-large-layer", "BF16", (Rate(1, 256), Prefill(4096)), 40, call=3),
    model(
        "qwen3-0.6b",
        "BF16",
        (Between(100_000, loops=2000, limit_s=120),),
        140,
        " for long",
        call=3,
    ),
    model(
        "llama-3.1-8b",
        "Q4_0",
        (Rate(64, 1024), Rate(64, LIVE, limit_s=120)),
        120,
        " batches",
        call=3,
    ),
    # Attention takes a large part of these steps.
    model("qwen3-0.6b", "BF16", (Rate(1, LIVE), Rate(16, LIVE)), 45, " batches", call=3),
    model(
        "qwen3-0.6b",
        "BF16",
        (Rate(1, LIVE), Rate(16, LIVE)),
        45,
        " int8 cache",
        kv_dtype="int8",
        call=3,
    ),
    model("qwen3-0.6b", "Q4_0", (Rate(1, 256), Rate(64, 256)), 45, call=3),
    model("qwen3-0.6b", "Q8_0", (Rate(1, 256), Rate(64, 256)), 45, call=3),
)

# A rehearsal of the above on a machine without a GPU: everything once.
_SHORT_WINDOW = 12
_SHORT_LIVE = SINKS + _SHORT_WINDOW
SHORT = (
    Job(GPU, (Copy(1 << 22), Read(1 << 22), Product(64), Replay(), Argmax(1000)), 60),
    model(
        "tiny",
        "BF16",
        (
            Rate(1, _SHORT_LIVE, steps=2, spans=2),
            Rate(2, _SHORT_LIVE, steps=2, spans=2),
            Prefill(24),
            Prefill(24, neighbours=1),
            Trace(8, 3),
            Trace(8, 3, "penalties"),
            Memory(),
        ),
        60,
        window=_SHORT_WINDOW,
        environment=(("CUDA_MODULE_LOADING", "EAGER"),),
        call=2,
    ),
    model(
        "tiny",
        "BF16",
        (
            Rate(3, _SHORT_LIVE, shortest=8, steps=2, spans=2),
            Between(20, loops=3, limit_s=20),
        ),
        60,
        " batches",
        window=_SHORT_WINDOW,
        kv_dtype="int8",
        call=3,
    ),
    peers(
        "tiny",
        (
            Peer("recomputed", _SHORT_LIVE, 2, 20),
            Peer("streaming_llm", _SHORT_LIVE, 2, 20, warm=1),
            Peer("static", _SHORT_LIVE, 2, 20, warm=1),
        ),
        60,
        call=2,
    ),
)
