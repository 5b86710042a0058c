"""Many conversations at the same time on the real model, compared with llama.cpp's server.

Both servers have the same file, threads and number of sequences; their runs alternate. Every reply
has the same length, and its first `skip` events are not compared: they contain the others' prompts.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from engine.row import Outcome, Row, median_row
from figures import quantile

from server.client import Reply, chat
from server.process import Server, llama_server, sinkstream_server
from server.setting import Setting


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    streams: int = 32
    tokens: int = 200
    context: int = 512  # of one stream; more than it needs
    rounds: int = 3
    skip: int = 8


async def _all(port: int, sizes: Sizes, round_: int) -> list[Reply]:
    def body(stream: int) -> dict[str, object]:
        question = f"Round {round_}: write a long story about the number {stream}."
        return {
            "messages": [{"role": "user", "content": question}],
            "max_tokens": sizes.tokens,
            "temperature": 0,
            "ignore_eos": True,
        }

    return await asyncio.gather(*(chat(port, body(stream)) for stream in range(sizes.streams)))


@dataclass(frozen=True)
class _Round:
    tokens_per_s: float
    p99_ms: float


def _run(server: Server, sizes: Sizes, round_: int) -> _Round:
    began = time.perf_counter()
    replies = asyncio.run(_all(server.port, sizes, round_))
    took = time.perf_counter() - began
    count = sum(reply.usage["completion_tokens"] for reply in replies)
    gaps = [gap for reply in replies for gap in reply.gaps_s[sizes.skip :]]
    return _Round(count / took, quantile(sorted(gaps), 0.99) * 1e3)


def measure(setting: Setting, sizes: Sizes) -> Outcome:
    """Measure tokens per second in all, and the p99 between two events of a stream."""
    own_options = ["--max-sequences", str(sizes.streams), "--window", str(sizes.context - 4)]
    own: list[_Round] = []
    other: list[_Round] = []
    for round_ in range(sizes.rounds):
        with sinkstream_server([*own_options, *setting.options()]) as server:
            own.append(_run(server, sizes, round_))
        if setting.llama_server is None:
            continue
        count = str(sizes.streams)
        options = ["-m", str(setting.model()), "-np", count, "-t", str(setting.threads)]
        options += ["-c", str(sizes.streams * sizes.context)]
        with llama_server(setting.llama_server, 18_080 + round_, options) as server:
            other.append(_run(server, sizes, round_))
    return Outcome(_rows(own, other), evicted_tokens=0, threads=setting.threads)


def _rows(own: Sequence[_Round], other: Sequence[_Round]) -> list[Row]:
    rows = [
        median_row("tokens/s in all", [each.tokens_per_s for each in own]),
        median_row("p99 between events", [each.p99_ms for each in own], "ms"),
    ]
    if not other:
        return rows
    ratios = [a.tokens_per_s / b.tokens_per_s for a, b in zip(own, other, strict=True)]
    slowest = statistics.median(a.p99_ms / b.p99_ms for a, b in zip(own, other, strict=True))
    return [
        *rows,
        median_row("llama-server: tokens/s in all", [each.tokens_per_s for each in other]),
        median_row("llama-server: p99 between events", [each.p99_ms for each in other], "ms"),
        median_row("tokens/s over llama-server's", ratios, at_least=2.5),
        Row("p99 over llama-server's", slowest, at_most=1.0),
    ]
