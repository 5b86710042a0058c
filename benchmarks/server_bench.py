"""Measures `sinkstream serve`: long conversations, many streams, clients that do not read,
and what a client's longest requests do to others.

    python benchmarks/server_bench.py                          # all parts
    python benchmarks/server_bench.py --only turns --turns-turns 50
    python benchmarks/server_bench.py --only streams --llama-server build/bin/llama-server

Each part is a file in `server/`, whose docstring defines its figures. Servers run in processes of
their own, on this machine. Needs the extra `serve`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from engine.row import table
from engine_bench import add_sizes, sizes_of
from machine import report
from server import crowd, neighbours, restart, streams, turns
from server.setting import Setting

# name -> a module with `Sizes` and `measure(setting, sizes)`
PARTS: dict[str, Any] = {
    "turns": turns,
    "restart": restart,
    "streams": streams,
    "crowd": crowd,
    "neighbours": neighbours,
}


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="may be repeated")
    parser.add_argument("--path", type=Path, help="a model's file; default: SmolLM2")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--llama-server", metavar="BINARY", help="compare with llama.cpp's server")
    add_sizes(parser, PARTS)
    args = parser.parse_args()
    setting = Setting(args.threads, args.path, args.llama_server)
    figures: dict[str, Any] = {"threads": args.threads}
    for name in args.only or PARTS:
        outcome = PARTS[name].measure(setting, sizes_of(PARTS, name, args))
        print(f"\n{name}\n" + "\n".join(table(outcome.rows)), file=sys.stderr, flush=True)
        figures[name] = {
            "rows": [row.as_dict() for row in outcome.rows],
            "evicted_tokens": outcome.evicted_tokens,
            "series": outcome.series,
        }
    report("server", figures)


if __name__ == "__main__":
    main()
