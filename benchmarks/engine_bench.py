"""Measures the engine around its kernels: throughput, fairness, latency, shutdown, memory.

    python benchmarks/engine_bench.py                          # all parts
    python benchmarks/engine_bench.py --only stop --only gil
    python benchmarks/engine_bench.py --only churn --churn-streams 1000

Each part is a file in `engine/`, whose docstring defines its figures; `--PART-SIZE` changes its
sizes. Each part runs in its own process, so none leaves threads or memory to the next. The report
goes to standard output, a table with goals to standard error.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from engine import churn, gil, idle_consumers, long_prompt, many, stop, throughput
from engine.row import Outcome, table
from engine.setting import Setting
from machine import commit, processor, report

# name -> a module with `Sizes` and `measure(setting, sizes)`
PARTS: dict[str, Any] = {
    "throughput": throughput,
    "many": many,
    "long_prompt": long_prompt,
    "idle_consumers": idle_consumers,
    "stop": stop,
    "churn": churn,
    "gil": gil,
}


def numbers(text: str) -> tuple[int, ...]:
    """Parse "8,32"."""
    return tuple(int(part) for part in text.split(","))


def add_sizes(parser: argparse.ArgumentParser, parts: Mapping[str, Any]) -> None:
    """Add an option for each field of every part's `Sizes`."""
    for name, part in parts.items():
        group = parser.add_argument_group(name)
        for field in dataclasses.fields(part.Sizes):
            kind = numbers if isinstance(field.default, tuple) else type(field.default)
            option = f"--{name}-{field.name}".replace("_", "-")
            group.add_argument(option, type=kind, default=field.default, metavar="N")


def sizes_of(parts: Mapping[str, Any], name: str, args: argparse.Namespace) -> Any:
    """Return a part's sizes as the command line gives them."""
    kind = parts[name].Sizes
    return kind(**{f.name: getattr(args, f"{name}_{f.name}") for f in dataclasses.fields(kind)})


def run(name: str, setting: Setting, sizes: Any) -> Outcome:
    """Measure one part in this process."""
    outcome: Outcome = PARTS[name].measure(setting, sizes)
    return outcome


def run_in_a_process(name: str, setting: Setting, sizes: Any) -> Outcome:
    """Measure one part in a new process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(run, name, setting, sizes).result()


def print_table(name: str, outcome: Outcome) -> None:
    """Print figures and goals to standard error, headed by the machine and the commit."""
    head = f"{name} · {processor()} · {outcome.threads} threads · commit {commit()}"
    print("\n".join(["", head, *table(outcome.rows)]), file=sys.stderr, flush=True)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", choices=list(PARTS), help="run this part only; may be repeated"
    )
    parser.add_argument("--path", default=None, help="a checkpoint [SmolLM2]")
    parser.add_argument("--threads", type=int, default=None)
    add_sizes(parser, PARTS)
    args = parser.parse_args()
    setting = Setting(args.path, args.threads)
    names = args.only or list(PARTS)
    outcomes = {}
    for name in names:
        outcomes[name] = run_in_a_process(name, setting, sizes_of(PARTS, name, args))
        print_table(name, outcomes[name])
    report(
        "engine" if args.only is None else "engine-" + "-".join(names),
        {
            name: {
                "threads": outcome.threads,
                "sizes": dataclasses.asdict(sizes_of(PARTS, name, args)),
                "evicted_tokens": outcome.evicted_tokens,
                "rows": [row.as_dict() for row in outcome.rows],
                "series": outcome.series,
            }
            for name, outcome in outcomes.items()
        },
    )


if __name__ == "__main__":
    main()
