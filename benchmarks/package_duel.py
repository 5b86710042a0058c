"""Compares two builds of the package on whole models, interleaved.

    git worktree add /tmp/other COMMIT
    pip install --no-deps --no-build-isolation --target /tmp/base /tmp/other
    pip install --no-deps --no-build-isolation --target /tmp/new .
    python benchmarks/package_duel.py /tmp/base /tmp/new --model qwen3-0.6b-BF16 --models models/

Each build runs in its own process, with its own copy of the weights, and both measure a figure
before either measures the next. A ratio above 1: the second build is faster. The Python that runs
this needs the package, too, to find SmolLM2.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path

from machine import report
from peers.isolated import IsolatedPeer
from peers.peer import NotPossible
from side_by_side_bench import MEASURES, Measure, find_model


def start(folder: Path, path: str, threads: int) -> IsolatedPeer:
    """Start sinkstream from a folder: the new process inherits this one's module path."""
    if not (folder / "sinkstream" / "__init__.py").is_file():
        sys.exit(f"package_duel: {folder} must hold an installed sinkstream, but does not.")
    sys.path.insert(0, str(folder))
    try:
        peer = IsolatedPeer("sinkstream", path, threads)
    finally:
        sys.path.remove(str(folder))
    cores = {file for file in peer.mapped_files() if file.name.startswith("_core.")}
    if not any(core.is_relative_to(folder) for core in cores):
        peer.close()
        sys.exit(f"package_duel: Python must take sinkstream from {folder}, but takes {cores}.")
    return peer


def compare(one: Measure, base: IsolatedPeer, new: IsolatedPeer, rounds: int) -> dict[str, object]:
    """Return both rates in tokens/s, and the quartiles of the rounds' ratios."""
    seconds: dict[IsolatedPeer, list[float]] = {base: [], new: []}
    for number in range(rounds + 1):
        for peer in (base, new) if number % 2 else (new, base):
            found = peer.ask(one.method, *one.arguments)
            if number > 0:  # the first round warms up
                seconds[peer].append(found)
    ratios = [a / b for a, b in zip(seconds[base], seconds[new], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    print(f"{one.name}: {middle:.3f} ({low:.3f} - {high:.3f})", file=sys.stderr, flush=True)
    return {
        "base": one.tokens / statistics.median(seconds[base]),
        "new": one.tokens / statistics.median(seconds[new]),
        "ratio": middle,
        "middle half": [low, high],
    }


def main() -> None:
    """Compare the chosen measures."""
    names = {one.name: one for one in MEASURES}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", type=Path, help="a folder with the package")
    parser.add_argument("new", type=Path, help="another one")
    parser.add_argument("--model", default="smollm2", help="as in side_by_side_bench.py")
    parser.add_argument("--models", type=Path, default=Path("models"), help="random weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15, help="at least 3")
    parser.add_argument("--measure", action="append", choices=names, help="may be repeated")
    args = parser.parse_args()
    if args.rounds < 3:
        parser.error(f"--rounds must be at least 3, but is {args.rounds}.")
    path = find_model(args.model, args.models)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])  # inherited by both
    folders = args.base.resolve(), args.new.resolve()
    base, new = (start(folder, path, args.threads) for folder in folders)
    figures: dict[str, object] = {"folders": [str(folder) for folder in folders]}
    figures["builds"] = [base.description, new.description]
    for one in [names[name] for name in args.measure or names]:
        try:
            figures[one.name] = compare(one, base, new, args.rounds)
        except NotPossible as reason:
            figures[one.name] = str(reason)
            print(f"{one.name}: {reason}", file=sys.stderr, flush=True)
    for peer in (base, new):
        peer.close()
    report(f"package_duel-{args.model}-{args.threads}", {"rounds": args.rounds, **figures})


if __name__ == "__main__":
    main()
