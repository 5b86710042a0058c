"""Compares speed with other engines: the same file, the same threads, interleaved in one run.

    python benchmarks/side_by_side_bench.py
    python benchmarks/side_by_side_bench.py --model qwen3-0.6b-Q4_0 --models models --rounds 5

The model is `smollm2`, or random weights in a real shape (`random_gguf.py`; written to `--models`
if missing). Measures: prefill of 512 tokens; decode at 16, 1,024, 2,048 and 4,096 cached tokens;
decode of 8 and of 32 sequences at 256 cached tokens each. Models with experts also read 2,048
tokens, and their report says how many distinct experts of a layer 8 tokens are expected to choose.

- Each engine runs in its own process and sleeps while another is measured. A round takes every
  figure of every engine once, so that a slow moment of the machine hits all engines. Each round
  starts with another engine.
- A plain read of 512 MB is timed for half a second before and after each of our figures; around
  prompts also a loop of the multiply instructions of our kernel table: tiles, bfloat16 dots, or
  float multiply-adds (which have no goal). The bound is the mean of both probes, as our figure is
  a mean over tokens.
- Each engine reads one prompt untimed before its first timed prompt.
- All processes are pinned to the same cores, as many as there are threads: on a shared machine one
  core reads memory faster than the next.
- transformers decodes long contexts so slowly that it is measured there in the first round only.
- Of the larger models only measures with a goal run, and only our default dtype; `--measure` and
  `--engine`, which may be repeated, choose others.
- An engine that is not installed, or does not load the file, is listed with its reason.

The table at the end compares round by round: the median, smallest and largest ratio, and the goal
(`goals.py`). Needs the extra `bench`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from goals import (
    BATCH_8,
    BATCH_32,
    BEST,
    MODELS,
    OURS,
    PEAK,
    PREFILL,
    PREFILL_LONG,
    READ,
    RECOMPUTED,
    TRANSFORMERS,
    WITH_EXPERTS,
    Goal,
    decode_at,
    goals_of,
    kernels_of,
)
from machine import report
from peers.isolated import ENGINES, IsolatedPeer
from peers.peer import NotPossible

_PROBE_BYTES = 512 << 20
_PROBE_S = 0.5
_PEAKS = 5  # of a tenth of a second
_LONG = 1024  # cached tokens


@dataclass(frozen=True)
class Measure:
    """One figure of an engine: a method of `Peer`, its arguments, and the tokens it processes."""

    name: str
    method: str
    arguments: tuple[int, ...]
    tokens: int


MEASURES = (
    Measure(PREFILL, "prefill", (512,), 512),
    Measure(PREFILL_LONG, "prefill", (2048,), 2048),
    Measure(decode_at(16), "decode", (16, 48), 1),
    Measure(decode_at(1024), "decode", (1024, 32), 1),
    Measure(decode_at(2048), "decode", (2048, 32), 1),
    Measure(decode_at(4096), "decode", (4096, 32), 1),
    Measure(BATCH_8, "batch", (8, 256, 12), 8),
    Measure(BATCH_32, "batch", (32, 256, 6), 32),
)


@dataclass
class Found:
    """The results of one measure; entry i of each list is from round i."""

    rates: dict[str, list[float]]  # engine -> tokens/s; slow engines have fewer rounds
    shares: list[float]  # our share of a plain read, or of a loop of dots
    refused: dict[str, str]  # engine -> why


def measures_of(model: str) -> list[Measure]:
    """Return the default measures of a model."""
    named = {goal.measure for goal in goals_of(model, "")}
    if model == "smollm2":
        return [one for one in MEASURES if one.name != PREFILL_LONG]
    named |= {BATCH_8} if model in WITH_EXPERTS else set()
    return [one for one in MEASURES if one.name in named]


def engines_of(model: str) -> list[str]:
    """Return the default engines: ours once, and the others that have a goal."""
    if model in WITH_EXPERTS:
        return [OURS, "llama.cpp", "llama.cpp, flash attention"]
    is_recomputed = any(goal.rival == RECOMPUTED for goal in goals_of(model, ""))
    others = [name for name in ENGINES if not name.startswith(OURS)]
    return [OURS] + [name for name in others if is_recomputed or name != RECOMPUTED]


def find_model(name: str, folder: Path) -> str:
    """Return the path of a model by its name, writing it if its weights are random."""
    if name == "smollm2":
        from sinkstream.loading.open_checkpoint import open_checkpoint

        checkpoint = open_checkpoint("smollm2")
        checkpoint.source.close()
        return checkpoint.path
    from random_gguf import write

    shape, _, kind = name.rpartition("-")
    return str(write(shape, kind, folder))


def start(names: list[str], path: str, threads: int) -> tuple[list[IsolatedPeer], dict[str, str]]:
    """Start the engines; return them, and the reasons of those that do not start."""
    engines, missing = [], {}
    for name in names:
        print(f"loading {name}", file=sys.stderr, flush=True)
        try:
            engines.append(IsolatedPeer(name, path, threads))
        except NotPossible as reason:
            missing[name] = str(reason)
    return engines, missing


@dataclass(frozen=True)
class Bounds:
    """What the machine reached around one of our figures."""

    read: float  # bytes/s
    peak: tuple[str, float] | None  # prompts only: instruction of the loop, operations/s


def probe(one: Measure, threads: int, kernels: str) -> Bounds:
    """Measure what bounds a figure of a kernel table: means over half a second."""
    from sinkstream import _core

    read = _core.probes.sustained_read_rate(_PROBE_BYTES, threads, _PROBE_S)
    if one.method != "prefill":
        return Bounds(read, None)
    peaks = [_core.probes.peak_rate(threads, tiles=kernels == "amx") for _ in range(_PEAKS)]
    return Bounds(read, (peaks[0][0], statistics.harmonic_mean([rate for _, rate in peaks])))


def mean(before: Bounds, after: Bounds) -> Bounds:
    """Return the mean of two probes of the same length."""
    read = statistics.fmean([before.read, after.read])
    if before.peak is None or after.peak is None:
        return Bounds(read, None)
    return Bounds(read, (before.peak[0], statistics.fmean([before.peak[1], after.peak[1]])))


def share(one: Measure, ours: IsolatedPeer, seconds: float, bounds: Bounds) -> float | None:
    """Return our figure's share of its bound; None for batches."""
    if bounds.peak is not None:
        operations: float = ours.ask("operations", *one.arguments)
        return operations / seconds / bounds.peak[1]
    if one.method != "decode":
        return None
    cached, tokens = one.arguments
    read_per_token: float = ours.ask("bytes_read", cached + tokens // 2)
    return read_per_token / seconds / bounds.read


def measure_once(
    one: Measure, engines: list[IsolatedPeer], found: Found, threads: int
) -> Bounds | None:
    """Measure one figure of each engine, and return the bounds around ours."""
    bounds = None
    for engine in engines:
        if engine.name in found.refused:
            continue
        is_long = one.method == "decode" and one.arguments[0] > _LONG
        is_slow = engine.name.startswith(TRANSFORMERS) and is_long
        if is_slow and engine.name in found.rates:
            continue
        kernels = kernels_of(engine.description)
        try:
            if one.method == "prefill" and engine.name not in found.rates:
                engine.ask(one.method, *one.arguments)  # some engines prepare for a new length
            before = probe(one, threads, kernels) if engine.name == OURS else None
            seconds = engine.ask(one.method, *one.arguments)
        except NotPossible as reason:
            found.refused[engine.name] = str(reason)
            continue
        found.rates.setdefault(engine.name, []).append(one.tokens / seconds)
        if before is not None:
            bounds = mean(before, probe(one, threads, kernels))
            if (reached := share(one, engine, seconds, bounds)) is not None:
                found.shares.append(reached)
    return bounds


def measure(
    measures: list[Measure], engines: list[IsolatedPeer], rounds: int, threads: int
) -> tuple[dict[str, Found], list[Bounds]]:
    """Measure every figure of every engine, round by round; also the bounds of ours."""
    found = {one.name: Found({}, [], {}) for one in measures}
    bounds = []
    for number in range(rounds):
        for one in measures:
            first = number % len(engines)
            order = engines[first:] + engines[:first]
            around = measure_once(one, order, found[one.name], threads)
            if around is not None:
                bounds.append(around)
            print(f"round {number + 1}: {one.name}", file=sys.stderr, flush=True)
    return found, bounds


def evicted_by(engines: list[IsolatedPeer]) -> dict[str, int]:
    """Return how many tokens each running engine has evicted."""
    evicted = {}
    for engine in engines:
        with contextlib.suppress(NotPossible):
            evicted[engine.name] = int(engine.ask("evicted"))
    return evicted


def ratios_to(found: Found, rival: str) -> tuple[str, list[float]]:
    """Return the engine that our rates are compared with, and the ratio of each round.

    There are no ratios if no such engine was measured.
    """
    if rival in (READ, PEAK):
        return rival, found.shares
    candidates = [
        name
        for name in found.rates
        if not name.startswith(OURS)
        and (rival == BEST or name.startswith(rival))
        and (rival == RECOMPUTED or name != RECOMPUTED)
    ]
    if OURS not in found.rates or not candidates:
        return rival, []
    best = max(candidates, key=lambda name: statistics.median(found.rates[name]))
    rounds = zip(
        found.rates[OURS], found.rates[best], strict=False
    )  # slow engines have fewer rounds
    return best, [ours / theirs for ours, theirs in rounds]


def compare(found: dict[str, Found], goals: list[Goal]) -> list[dict[str, Any]]:
    """Return a row for each goal, and each remaining measure's ratio to the best engine."""
    order = list(found)
    wanted = [goal for goal in goals if goal.measure in found]
    wanted += [Goal(name, BEST, 0) for name in order]
    rows: list[dict[str, Any]] = []
    for goal in sorted(wanted, key=lambda goal: order.index(goal.measure)):
        against, ratios = ratios_to(found[goal.measure], goal.rival)
        is_there = any((goal.measure, against) == (row["measure"], row["against"]) for row in rows)
        if ratios and not is_there:
            rows.append(
                {
                    "measure": goal.measure,
                    "against": against,
                    "ratio": round(statistics.median(ratios), 3),
                    "smallest": round(min(ratios), 3),
                    "largest": round(max(ratios), 3),
                    "goal": goal.ratio or None,
                }
            )
    return rows


def spread(values: list[float]) -> list[float]:
    """Return the smallest, the median and the largest; an empty list for no values."""
    if not values:
        return []
    return [round(value, 1) for value in (min(values), statistics.median(values), max(values))]


def print_tables(
    found: dict[str, Found], rows: list[dict[str, Any]], missing: dict[str, str]
) -> None:
    """Print medians by engine, comparisons with their goals, and what could not be measured."""
    engines = list(dict.fromkeys(name for one in found.values() for name in one.rates))
    lines = ["", "tokens/s, medians | " + " | ".join(found)]
    for engine in engines:
        rates = [one.rates.get(engine) for one in found.values()]
        cells = [f"{statistics.median(r):.1f}" if r else "-" for r in rates]
        lines.append(f"{engine} | " + " | ".join(cells))
    lines += ["", "measure | against | ratio (smallest - largest) | goal"]
    for row in rows:
        goal = "" if row["goal"] is None else f"{row['goal']:g}"
        verdict = "" if not goal else " reached" if row["ratio"] >= row["goal"] else " missed"
        spread = f"{row['smallest']:.2f} - {row['largest']:.2f}"
        name = f"{row['measure']} | {row['against']}"
        lines.append(f"{name} | {row['ratio']:.2f} ({spread}) | {goal}{verdict}")
    lines += [f"not started | {engine} | {reason}" for engine, reason in missing.items()]
    for name, one in found.items():
        lines += [f"not possible | {name} | {who} | {why}" for who, why in one.refused.items()]
    print("\n".join(lines), file=sys.stderr, flush=True)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", choices=MODELS)
    parser.add_argument("--models", type=Path, default=Path("build/models"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--measure",
        action="append",
        choices=[one.name for one in MEASURES],
        help="this one only; may be repeated",
    )
    parser.add_argument(
        "--engine",
        action="append",
        choices=list(ENGINES),
        help="this one only; may be repeated",
    )
    args = parser.parse_args()
    path = find_model(args.model, args.models)
    os.sched_setaffinity(
        0, sorted(os.sched_getaffinity(0))[: args.threads]
    )  # inherited by all engines
    measures = measures_of(args.model)
    if args.measure is not None:
        measures = [one for one in MEASURES if one.name in args.measure]
    engines, missing = start(args.engine or engines_of(args.model), path, args.threads)
    if not engines:
        raise SystemExit(f"side_by_side: no engine could be started: {missing}")
    experts: dict[str, Any] = {}
    if args.model in WITH_EXPERTS and engines[0].name == OURS:
        experts["distinct experts of 8 tokens, expected"] = round(engines[0].ask("experts", 8), 1)
        experts["distinct experts of 1 token"] = round(engines[0].ask("experts", 1), 1)
    try:
        found, bounds = measure(measures, engines, args.rounds, args.threads)
        evicted = evicted_by(engines)
    finally:
        for engine in engines:
            engine.close()
    ours = next((kernels_of(one.description) for one in engines if one.name == OURS), "")
    rows = compare(found, goals_of(args.model, ours))
    peaks: dict[str, list[float]] = {}
    for instruction, rate in (one.peak for one in bounds if one.peak is not None):
        peaks.setdefault(instruction, []).append(rate / 1e9)
    report(
        f"side_by_side-{args.model}-{args.threads}",
        {
            "model": args.model,
            "file bytes": Path(path).stat().st_size,
            "threads": args.threads,
            "rounds": args.rounds,
            "engines": {engine.name: engine.description for engine in engines},
            "not started": missing,
            "evicted_tokens": evicted,
            "plain read of 512 MB, GB/s": spread([one.read / 1e9 for one in bounds]),
            "loop in registers, G/s": {name: spread(rates) for name, rates in peaks.items()},
            "tokens/s, medians": {
                name: {e: round(statistics.median(r), 2) for e, r in one.rates.items()}
                for name, one in found.items()
            },
            "comparisons": rows,
            **experts,
            "not possible": {name: one.refused for name, one in found.items() if one.refused},
        },
    )
    print_tables(found, rows, missing)


if __name__ == "__main__":
    main()
