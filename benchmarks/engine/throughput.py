"""Compares the throughput of many streams with the same steps without the engine.

Each round times a step of n sequences twice, in alternating order: through the engine, as n turns
of n conversations that one thread reads token by token; and through `Model.forward` with a cache of
n rows, which has no planning, no sampling and no hand-over. Both have `cached` tokens in the cache,
no two sequences share memory, and sampling is greedy. Turns are dropped afterwards, so that every
round starts at the same length.

- rate: tokens/s of all n together, from the first token of the last stream on.
- growth: rate of n over rate of one, of the same round.
- Goal: the engine's rate, and its growth, are at least 90 % of those without it.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
from figures import ratios

import sinkstream
from engine.row import Outcome, Row, median_row
from engine.setting import Readers, Setting, prompt

GOAL = 0.9
ENGINE, FORWARD = "engine", "forward"


@dataclass(frozen=True)
class Sizes:
    """How many streams, and how many tokens."""

    streams: tuple[int, ...] = (8, 32)
    cached: int = 256
    tokens: int = 16  # of each sequence in a round
    rounds: int = 9


def open_sessions(model: sinkstream.Model, count: int, cached: int) -> list[sinkstream.Session]:
    """Return conversations in which one more token makes `cached`."""
    sessions = []
    for number in range(count):
        session = model.session()
        missing = cached - 1 - session.stats.tokens
        if missing < 1:
            raise ValueError(f"throughput: `cached` must exceed {cached - missing}.")
        session.append(prompt(missing, number))
        sessions.append(session)
    return sessions


def engine_rate(sessions: list[sinkstream.Session], tokens: int) -> float:
    """Return tokens/s of turns that run at once, and drop them."""
    turns = [session.stream([3], ignore_eos=True, temperature=0) for session in sessions]
    readers = Readers(turns)
    readers.read()
    started = time.perf_counter()
    for _ in range(tokens):
        readers.read()
    seconds = time.perf_counter() - started
    for turn in turns:
        turn.cancel(keep="drop")
    return len(turns) * tokens / seconds


def forward_rate(model: sinkstream.Model, filled: sinkstream.Cache, tokens: int) -> float:
    """Return tokens/s of forwards with one token per row, on a copy of the cache."""
    cache = filled.copy()
    ids = torch.full((cache.batch, 1), 3)
    model.forward(ids, cache)  # touches the copy's pages
    started = time.perf_counter()
    for _ in range(tokens):
        model.forward(ids, cache)
    return cache.batch * tokens / (time.perf_counter() - started)


def fill_cache(model: sinkstream.Model, rows: int, cached: int) -> sinkstream.Cache:
    """Return a cache whose rows have read different prompts."""
    cache = model.new_cache(rows)
    model.forward(torch.tensor([prompt(cached - 1, row) for row in range(rows)]), cache)
    return cache


def measure(setting: Setting, sizes: Sizes) -> Outcome:
    """Measure interleaved, and compare round by round."""
    counts = (1, *sizes.streams)
    capacity = sizes.cached + 8 * sizes.tokens + 64  # so that nothing is evicted
    rates: dict[str, dict[int, list[float]]] = {
        kind: {count: [] for count in counts} for kind in (ENGINE, FORWARD)
    }
    with setting.load(capacity=capacity, max_sequences=max(counts)) as model:
        sessions = open_sessions(model, max(counts), sizes.cached)
        caches = {count: fill_cache(model, count, sizes.cached) for count in counts}
        for number in range(sizes.rounds):
            for count in counts:
                kinds = (ENGINE, FORWARD) if number % 2 == 0 else (FORWARD, ENGINE)
                for kind in kinds:
                    rate = (
                        engine_rate(sessions[:count], sizes.tokens)
                        if kind == ENGINE
                        else forward_rate(model, caches[count], sizes.tokens)
                    )
                    rates[kind][count].append(rate)
        evicted, threads = model.stats()["evicted_tokens"], model.runtime["threads"]
    return Outcome(make_rows(rates, sizes.streams), evicted, threads, {"tokens/s": rates})


def make_rows(rates: dict[str, dict[int, list[float]]], streams: tuple[int, ...]) -> list[Row]:
    """Return the measured rates, and the ratios with their goals."""
    rows = []
    for count in (1, *streams):
        for kind in (ENGINE, FORWARD):
            found = rates[kind][count]
            growth = statistics.median(ratios(found, rates[kind][1]))
            row = median_row(f"{count} streams, {kind}", found, "tokens/s")
            rows.append(
                Row(row.figure, row.value, row.unit, detail=f"{row.detail}; growth {growth:.2f}")
            )
    for count in streams:
        engine, forward = rates[ENGINE], rates[FORWARD]
        growths = ratios(
            ratios(engine[count], engine[1]),
            ratios(forward[count], forward[1]),
        )
        over_forward = ratios(engine[count], forward[count])
        rows.append(median_row(f"{count} streams, engine / forward", over_forward, at_least=GOAL))
        rows.append(median_row(f"{count} streams, growth / growth", growths, at_least=GOAL))
    return rows
