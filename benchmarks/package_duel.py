"""Compares two builds of the package on whole models, interleaved.

    git worktree add /tmp/other COMMIT
    pip install --no-deps --no-build-isolation --target /tmp/base /tmp/other
    pip install --no-deps --no-build-isolation --target /tmp/new .
    python benchmarks/package_duel.py /tmp/base /tmp/new --model qwen3-0.6b-BF16 --models models/

Each build runs in its own process, with its own copy of the weights, and both measure a figure
before either measures the next. What memory a process is given makes it up to 6 % faster or slower
for as long as it lives, so both are started anew several times, in the other order each second
time. A ratio above 1: the second build is faster. The Python that runs this needs the package, too,
to find SmolLM2.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from dataclasses import dataclass, field
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


@dataclass
class Times:
    """The seconds of one measure, with the two builds side by side."""

    base: list[float] = field(default_factory=list)
    new: list[float] = field(default_factory=list)
    of_starts: list[float] = field(default_factory=list)
    """The median of the ratios since each start."""

    def measure(self, one: Measure, base: IsolatedPeer, new: IsolatedPeer, rounds: int) -> None:
        """Add rounds of two builds that have just been started."""
        found: dict[IsolatedPeer, list[float]] = {base: [], new: []}
        for number in range(rounds + 1):
            for peer in (base, new) if number % 2 else (new, base):
                seconds = peer.ask(one.method, *one.arguments)
                if number > 0:  # the first round warms up
                    found[peer].append(seconds)
        self.add(found[base], found[new])

    def add(self, base: list[float], new: list[float]) -> None:
        """Add the rounds of one start."""
        self.base += base
        self.new += new
        self.of_starts.append(statistics.median(a / b for a, b in zip(base, new, strict=True)))

    def figures(self, tokens: int) -> dict[str, object]:
        """Return both rates in tokens/s, and the quartiles of the rounds' ratios."""
        ratios = [a / b for a, b in zip(self.base, self.new, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return {
            "base": tokens / statistics.median(self.base),
            "new": tokens / statistics.median(self.new),
            "ratio": middle,
            "middle half": [low, high],
            "starts": self.of_starts,
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
    parser.add_argument("--starts", type=int, default=4, help="how often both are started")
    parser.add_argument("--rounds", type=int, default=5, help="of each start; at least 3")
    parser.add_argument("--measure", action="append", choices=names, help="may be repeated")
    args = parser.parse_args()
    if args.rounds < 3:
        parser.error(f"--rounds must be at least 3, but is {args.rounds}.")
    path = find_model(args.model, args.models)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])  # inherited by both
    folders = args.base.resolve(), args.new.resolve()
    times = {name: Times() for name in args.measure or names}
    figures: dict[str, object] = {"folders": [str(folder) for folder in folders]}
    for number in range(args.starts):
        order = folders[::-1] if number % 2 else folders
        peers = {folder: start(folder, path, args.threads) for folder in order}
        base, new = (peers[folder] for folder in folders)
        figures["builds"] = [base.description, new.description]
        for name in [name for name in times if name not in figures]:
            try:
                times[name].measure(names[name], base, new, args.rounds)
                print(f"start {number}: {name}: {times[name].of_starts[-1]:.3f}", file=sys.stderr)
            except NotPossible as reason:
                figures[name] = str(reason)
                print(f"{name}: {reason}", file=sys.stderr, flush=True)
        for peer in peers.values():
            peer.close()
    for name in [name for name in times if name not in figures]:
        figures[name] = times[name].figures(names[name].tokens)
    report(
        f"package_duel-{args.model}-{args.threads}",
        {"starts": args.starts, "rounds": args.rounds, **figures},
    )


if __name__ == "__main__":
    main()
