"""Speed beside other engines: the same file, the same threads, alternating in one run.

    python tests/bench/side_by_side_bench.py
    python tests/bench/side_by_side_bench.py --model qwen3-0.6b-Q4_0 --models models --rounds 5

The model is `smollm2`, or one of random weights in a real shape (`random_gguf.py`; written below
`--models` if it is not there). Measured are: reading a prompt of 512 tokens; one more token behind
16, 1,024 and 2,048 cached ones; one more token of 8 and of 32 sequences behind 256 each. Each
engine runs in a process of its own and sleeps while another is measured. A round asks every engine
for every figure once, so that a slow moment of the machine hits all of them; a plain read of 512 MB
stands beside. Of the engines other than ours the best median counts. An engine that is not
installed, or does not load the file, is listed with its reason. Needs the extra `bench`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import report
from peers.isolated import ENGINES, IsolatedPeer
from peers.peer import NotPossible

OURS = "sinkstream"
READ = "plain read of 512 MB"
_PROBE_BYTES = 512 << 20
_BASELINES = ("transformers, sinks token by token", "transformers, window recomputed")


@dataclass(frozen=True)
class Measure:
    """One figure of an engine: a method of `Peer`, its arguments, and the tokens that it yields."""

    name: str
    method: str
    arguments: tuple[int, ...]
    tokens: int


MEASURES = (
    Measure("prefill of 512", "prefill", (512,), 512),
    Measure("decode at 16", "decode", (16, 48), 1),
    Measure("decode at 1,024", "decode", (1024, 32), 1),
    Measure("decode at 2,048", "decode", (2048, 32), 1),
    Measure("batch of 8 at 256", "batch", (8, 256, 12), 8),
    Measure("batch of 32 at 256", "batch", (32, 256, 6), 32),
)

Rates = dict[str, dict[str, list[float]]]  # measure -> engine -> tokens/s, one a round


def find_model(name: str, folder: Path) -> str:
    """Return the path of a model by its name, writing it if it is one of random weights."""
    if name == "smollm2":
        from sinkstream.checkpoint import open_checkpoint

        checkpoint = open_checkpoint("smollm2")
        checkpoint.source.close()
        return checkpoint.path
    from random_gguf import write

    shape, _, kind = name.rpartition("-")
    return str(write(shape, kind, folder))


def start(names: list[str], path: str, threads: int) -> tuple[list[IsolatedPeer], dict[str, str]]:
    """Start the engines; those that cannot be started are told with their reason."""
    engines, missing = [], {}
    for name in names:
        print(f"loading {name}", file=sys.stderr, flush=True)
        try:
            engines.append(IsolatedPeer(name, path, threads))
        except NotPossible as reason:
            missing[name] = str(reason)
    return engines, missing


def measure(
    engines: list[IsolatedPeer], rounds: int, threads: int
) -> tuple[Rates, dict[str, dict[str, str]]]:
    """Ask every engine for every figure, round by round."""
    from sinkstream import _core

    rates: Rates = {one.name: {} for one in MEASURES}
    rates[READ] = {"GB/s": []}
    refused: dict[str, dict[str, str]] = {}
    for number in range(rounds):
        for one in MEASURES:
            rate = _core.read_rate(_PROBE_BYTES, threads) / 1e9
            rates[READ]["GB/s"].append(rate)
            for engine in engines:
                if engine.name in refused.get(one.name, {}):
                    continue
                try:
                    seconds = engine.ask(one.method, *one.arguments)
                except NotPossible as reason:
                    refused.setdefault(one.name, {})[engine.name] = str(reason)
                    continue
                rates[one.name].setdefault(engine.name, []).append(one.tokens / seconds)
            print(f"round {number + 1}: {one.name}", file=sys.stderr, flush=True)
    return rates, refused


def figures_of(by_engine: dict[str, list[float]]) -> dict[str, Any]:
    """Return medians, and our ratio to the best engine that is not ours, round by round."""
    medians = {name: statistics.median(found) for name, found in by_engine.items()}
    figures: dict[str, Any] = {f"{name}, tokens/s": round(m, 1) for name, m in medians.items()}
    peers = [n for n in medians if not n.startswith(OURS) and n not in _BASELINES]
    if OURS in medians and peers:
        best = max(peers, key=lambda name: medians[name])
        ratios = [a / b for a, b in zip(by_engine[OURS], by_engine[best], strict=True)]
        figures["best peer"] = best
        figures["ratio"] = round(statistics.median(ratios), 2)
        figures["ratio, smallest and largest"] = [round(min(ratios), 2), round(max(ratios), 2)]
    return figures


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--models", type=Path, default=Path("build/models"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--engine", action="append", choices=list(ENGINES), help="these only")
    args = parser.parse_args()
    names = args.engine or list(ENGINES)
    path = find_model(args.model, args.models)
    engines, missing = start(names, path, args.threads)
    try:
        rates, refused = measure(engines, args.rounds, args.threads)
        evicted = {engine.name: int(engine.ask("evicted")) for engine in engines}
    finally:
        for engine in engines:
            engine.close()
    read = rates.pop(READ)["GB/s"]
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
            f"{READ}, GB/s": round(statistics.median(read), 1),
            **{name: figures_of(by_engine) for name, by_engine in rates.items()},
            "not possible": refused,
        },
    )


if __name__ == "__main__":
    main()
