"""The same requests alone and in company, compared bit for bit.

Company is ragged: up to so many streams run beside each other, of all lengths, each in another
phase, and one leaves as another comes: read to its end, or cancelled in the middle. No request is
asked again because its answer was not the expected one.
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
    "llama-Q4_1": ("llama", "Q4_1", {}),
    "llama-Q8_0": ("llama", "Q8_0", {"dtype": "float32", "kv_dtype": "float16"}),
}
"""Tiny models, their storage in a GGUF file (None: a folder), and options of `load`."""


class Streams(Protocol):
    """What is needed of a model."""

    @property
    def spec(self) -> Any: ...

    def stream(self, prompt: Any, **options: Any) -> sinkstream.Stream: ...

    def stats(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Ask:
    """A request: the same one gives the same bits whenever it is asked."""

    prompt: list[int]
    options: dict[str, Any]

    def of(self, model: Streams) -> sinkstream.Stream:
        return model.stream(self.prompt, **self.options)


@dataclass(frozen=True)
class Answer:
    """What must be equal."""

    token_ids: list[int]
    logprob_bits: bytes  # float32

    @classmethod
    def of(cls, result: sinkstream.Result) -> Answer:
        bits = np.asarray(result.logprobs, np.float32).tobytes()
        return cls(list(result.token_ids), bits)

    def begins_with(self, other: Answer) -> bool:
        count = len(other.token_ids)
        return other == Answer(self.token_ids[:count], self.logprob_bits[: 4 * count])


@dataclass
class Tally:
    """What a company came to."""

    comparisons: int = 0
    """Whole answers in company, each against the same one alone."""
    tokens: int = 0
    """In them."""
    cancelled: int = 0
    """Answers whose beginnings were compared."""
    steps: int = 0
    generated_tokens: int = 0
    """In these steps, whoever they were for."""
    evicted_tokens: int = 0
    """Likewise."""
    different: list[Ask] = field(default_factory=list)

    @property
    def tokens_per_step(self) -> float:
        """How many were answered at a time."""
        return self.generated_tokens / self.steps

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Tally)))


def draw_asks(vocab: int, count: int, draw: np.random.Generator, longest: int) -> list[Ask]:
    """Draw requests, prompts and replies of all lengths up to `longest`, each with its own seed."""

    def ask() -> Ask:
        length = int(draw.choice([1, 2, draw.integers(3, 80), draw.integers(80, longest + 1)]))
        return Ask(
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

    return [ask() for _ in range(count)]


def open_tiny(setting: str, folder: Path, *, most: int, threads: int) -> sinkstream.Model:
    """Write the checkpoint of a setting to `folder`, and load it with room for `most` sequences."""
    name, storage, options = SETTINGS[setting]
    drawn = tiny.build(name)
    path = folder / setting
    if storage is None:
        tiny.write_folder(drawn, path)
    else:
        path = tiny.write_gguf(drawn, path.with_suffix(".gguf"), storage)
    return sinkstream.load(path, sinks=4, window=60, max_sequences=most, threads=threads, **options)


def compare_in_company(
    model: Streams,
    asks: list[Ask],
    comparisons: int,
    draw: np.random.Generator,
    *,
    most: int = 32,
) -> Tally:
    """Ask each request alone, then all of them again and again in company.

    Args:
        model: Has room for `most` sequences.
        asks: What is asked, each about equally often.
        comparisons: How many whole answers to compare.
        draw: Draws who comes and goes.
        most: How many may run beside each other.
    """
    alone = [Answer.of(ask.of(model).result()) for ask in asks]
    tally, before = Tally(), model.stats()
    present: list[tuple[int, sinkstream.Stream]] = []
    while tally.comparisons < comparisons:
        stats = model.stats()
        running = stats["running"] + stats["waiting"]
        for _ in range(int(draw.integers(1, most + 1)) - running):
            number = int(draw.integers(len(asks)))
            present.append((number, asks[number].of(model)))
        draw.shuffle(present)
        stay = int(draw.integers(len(present) + 1))
        leaving, present = present[stay:], present[:stay]
        for _, stream in leaving[::4]:
            stream.cancel()
        for number, stream in leaving:
            answer = Answer.of(stream.result())
            if stream.finish_reason == "cancelled":
                tally.cancelled += 1
                is_equal = alone[number].begins_with(answer)
            else:
                tally.comparisons += 1
                tally.tokens += len(answer.token_ids)
                is_equal = alone[number] == answer
            if not is_equal:
                tally.different.append(asks[number])
    for _, stream in present:
        stream.close()
    after = model.stats()
    tally.steps = after["steps"] - before["steps"]
    tally.generated_tokens = after["generated_tokens"] - before["generated_tokens"]
    tally.evicted_tokens = after["evicted_tokens"] - before["evicted_tokens"]
    return tally
