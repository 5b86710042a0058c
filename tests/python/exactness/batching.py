"""The same requests alone and without drafts, and in batches with drafts, compared bit for bit.

Batches are ragged: streams of all lengths run at once, each in another phase. One leaves as another
joins, read to its end or cancelled in the middle. Each request comes with its answer as a
prediction, in which some tokens are wrong. No request is repeated because its answer was not the
expected one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import sinkstream
from tests.data import tiny

SETTINGS: dict[str, tuple[str, str | None, dict[str, str]]] = {
    "llama-float32": ("llama", None, {"dtype": "float32", "kv_dtype": "float32"}),
    "qwen2-int8-cache": ("qwen2", None, {"kv_dtype": "int8"}),
    "qwen3-bfloat16": ("qwen3", None, {"dtype": "bfloat16"}),
    "llama-Q4_0-int8": ("llama", "Q4_0", {"dtype": "int8"}),
    "llama-Q4_1": ("llama", "Q4_1", {}),
    "llama-Q8_0": ("llama", "Q8_0", {"dtype": "float32", "kv_dtype": "float16"}),
}
"""Tiny models, their storage in a GGUF file (None: a folder), and options of `load`."""


SPECULATION = (None, 1, 5, 63)


class Streams(Protocol):
    """What the comparison needs from a model."""

    @property
    def spec(self) -> Any: ...

    def stream(self, prompt: Any, **options: Any) -> sinkstream.Stream: ...

    def stats(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Request:
    """A prompt and options, seed included: they must give the same bits every time."""

    prompt: list[int]
    options: dict[str, Any]

    def start(
        self, model: Streams, speculation: int | None, prediction: list[int] | None = None
    ) -> sinkstream.Stream:
        drafts = {"speculation": speculation, "prediction": prediction}
        return model.stream(self.prompt, **drafts, **self.options)


@dataclass(frozen=True)
class Answer:
    """What must be equal."""

    token_ids: list[int]
    logprob_bits: bytes  # float32

    @classmethod
    def of(cls, result: sinkstream.Result) -> Answer:
        bits = np.asarray(result.logprobs, np.float32).tobytes()
        return cls(list(result.token_ids), bits)

    def starts_with(self, other: Answer) -> bool:
        count = len(other.token_ids)
        return other == Answer(self.token_ids[:count], self.logprob_bits[: 4 * count])


@dataclass
class Tally:
    """The outcome of many comparisons."""

    comparisons: int = 0
    """Complete answers in batches, each compared with the same request alone."""
    tokens: int = 0
    """Tokens of those answers."""
    cancelled: int = 0
    """Cancelled answers, of which the first tokens were compared."""
    steps: int = 0
    generated_tokens: int = 0
    """In these steps, of all requests."""
    evicted_tokens: int = 0
    """Likewise."""
    draft_tokens: int = 0
    accepted_tokens: int = 0
    """Of the guessed tokens, those that were right."""
    different: list[Request] = field(default_factory=list)

    @property
    def tokens_per_step(self) -> float:
        """The mean size of a batch."""
        return self.generated_tokens / self.steps

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Tally)))


def draw_requests(vocab: int, count: int, draw: np.random.Generator, longest: int) -> list[Request]:
    """Draw requests, prompts and replies of all lengths up to `longest`, each with its own seed."""

    def draw_one() -> Request:
        length = int(draw.choice([1, 2, draw.integers(3, 80), draw.integers(80, longest + 1)]))
        return Request(
            prompt=draw.integers(0, vocab, length).tolist(),
            options={
                "max_tokens": int(draw.integers(1, longest + 1)),
                "ignore_eos": True,
                "logprobs": 1,
                "seed": int(draw.integers(2**62)),
                "sinks": int(draw.choice([0, 1, 4, 11])),
                "temperature": float(draw.choice([0.0, 0.7, 1.5])),
                "top_k": int(draw.choice([0, 20])),
                "top_p": float(draw.choice([1.0, 0.9])),
                "min_p": float(draw.choice([0.0, 0.02])),
                "repetition_penalty": float(draw.choice([1.0, 1.2])),
                "stream_interval": int(draw.choice([1, 3])),
            },
        )

    return [draw_one() for _ in range(count)]


def open_tiny(setting: str, folder: Path, *, most: int, threads: int) -> sinkstream.Model:
    """Write the checkpoint of a setting to `folder`, and load it with room for `most` sequences."""
    name, storage, options = SETTINGS[setting]
    drawn = tiny.build(name)
    path = folder / setting
    if storage is None:
        tiny.write_folder(drawn, path)
    else:
        path = tiny.write_gguf(drawn, path.with_suffix(".gguf"), storage)
    return sinkstream.load(
        path, sinks=4, window=60, max_sequences=most, threads=threads, speculation=63, **options
    )


def almost(ids: list[int], draw: np.random.Generator, vocab: int) -> list[int]:
    """Return ids of which about every twelfth is another one."""
    wrong = draw.random(len(ids)) < 1 / 12
    return np.where(wrong, draw.integers(0, vocab, len(ids)), ids).tolist()


def compare_in_batches(
    model: Streams,
    requests: list[Request],
    comparisons: int,
    draw: np.random.Generator,
    *,
    most: int = 32,
) -> Tally:
    """Run each request alone, then all of them repeatedly in batches.

    Args:
        model: Has room for `most` sequences.
        requests: The requests; each runs about equally often.
        comparisons: How many complete answers to compare.
        draw: Draws which requests join and leave.
        most: How many may run at once.
    """
    alone = [Answer.of(request.start(model, 0).result()) for request in requests]
    tally, before = Tally(), model.stats()
    present: list[tuple[int, sinkstream.Stream]] = []
    while tally.comparisons < comparisons:
        stats = model.stats()
        running = stats["running"] + stats["waiting"]
        for _ in range(int(draw.integers(1, most + 1)) - running):
            number = int(draw.integers(len(requests)))
            speculation = SPECULATION[int(draw.integers(len(SPECULATION)))]
            prediction = almost(alone[number].token_ids, draw, model.spec.vocab_size)
            present.append((number, requests[number].start(model, speculation, prediction)))
        draw.shuffle(present)
        stay = int(draw.integers(len(present) + 1))
        leaving, present = present[stay:], present[:stay]
        for _, stream in leaving[::4]:
            stream.cancel()
        for number, stream in leaving:
            answer = Answer.of(stream.result())
            if stream.finish_reason == "cancelled":
                tally.cancelled += 1
                is_equal = alone[number].starts_with(answer)
            else:
                tally.comparisons += 1
                tally.tokens += len(answer.token_ids)
                is_equal = alone[number] == answer
            if not is_equal:
                tally.different.append(requests[number])
    for _, stream in present:
        stream.close()
    after = model.stats()
    tally.steps = after["steps"] - before["steps"]
    tally.generated_tokens = after["generated_tokens"] - before["generated_tokens"]
    tally.evicted_tokens = after["evicted_tokens"] - before["evicted_tokens"]
    tally.draft_tokens = after["draft_tokens"] - before["draft_tokens"]
    tally.accepted_tokens = after["accepted_tokens"] - before["accepted_tokens"]
    return tally
