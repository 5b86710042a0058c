"""Whole models with another build of the package beside this one, by turns.

    git worktree add /tmp/other COMMIT
    pip install --no-deps --no-build-isolation --target /tmp/base /tmp/other
    pip install --no-deps --no-build-isolation --target /tmp/new .
    python benchmarks/package_duel.py /tmp/base /tmp/new --model qwen3-0.6b-BF16 --models models/

Each build has a process of its own, with its own copy of the weights, and both are asked for the
same figure before either is asked for the next. Ratios above 1: the second one is faster. The
Python that runs this needs the package, too, to find SmolLM2.
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
    """Start sinkstream from a folder: a new process finds modules where this one does."""
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


def compare(one: Measure, base: IsolatedPeer, new: IsolatedPeer, turns: int) -> dict[str, object]:
    """Return the rates of both in tokens/s and the ratio of each turn, its middle and its ends."""
    seconds: dict[IsolatedPeer, list[float]] = {base: [], new: []}
    for turn in range(turns + 1):
        for peer in (base, new) if turn % 2 else (new, base):
            found = peer.ask(one.method, *one.arguments)
            if turn > 0:  # the first one warms up
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
    """Compare what was asked for."""
    names = {one.name: one for one in MEASURES}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", type=Path, help="a folder that has the package")
    parser.add_argument("new", type=Path, help="another one")
    parser.add_argument("--model", default="smollm2", help="as in side_by_side_bench.py")
    parser.add_argument("--models", type=Path, default=Path("models"), help="random weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=15, help="at least 3")
    parser.add_argument("--measure", action="append", choices=names, help="may be repeated")
    args = parser.parse_args()
    if args.turns < 3:
        parser.error(f"--turns must be at least 3, but is {args.turns}.")
    path = find_model(args.model, args.models)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])  # and both to come
    folders = args.base.resolve(), args.new.resolve()
    base, new = (start(folder, path, args.threads) for folder in folders)
    figures: dict[str, object] = {"folders": [str(folder) for folder in folders]}
    figures["builds"] = [base.description, new.description]
    for one in [names[name] for name in args.measure or names]:
        try:
            figures[one.name] = compare(one, base, new, args.turns)
        except NotPossible as reason:
            figures[one.name] = str(reason)
            print(f"{one.name}: {reason}", file=sys.stderr, flush=True)
    for peer in (base, new):
        peer.close()
    report(f"package_duel-{args.model}-{args.threads}", {"turns": args.turns, **figures})


if __name__ == "__main__":
    main()
