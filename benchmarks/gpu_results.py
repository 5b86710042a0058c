"""Reduces a gpu.json of tests/gpu/run.sh to a file for `benchmarks/results`.

python benchmarks/gpu_results.py GPU_JSON COMMIT OUT
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from machine import ROOT

sys.path.insert(0, str(ROOT))
from tests.gpu.bench.report import numbers

# Number of tests.gpu.bench.report -> column and what it is multiplied by.
COLUMNS = {
    "tokens_per_s": ("tokens/s", 1),
    "share": ("share of bandwidth or of a product, %", 100),
    "growth": ("of linear growth, %", 100),
    "bytes_per_s": ("GB/s", 1e-9),
    "flops_per_s": ("TFLOP/s", 1e-12),
    "untraced_step_us": ("step, µs", 1),
    "gap_p50_us": ("gap between graphs, µs", 1),
    "sampling_p50_us": ("sampling, µs", 1),
}


def reduced(report: dict[str, Any], commit: str) -> dict[str, Any]:
    """Return the numbers of a report by subject and figure."""
    figures: dict[str, Any] = {}
    for name, value in numbers(report["bench"]).items():
        subject, figure, number = name.split(": ", 2)
        if number in COLUMNS:
            column, factor = COLUMNS[number]
            figures.setdefault(subject, {}).setdefault(figure, {})[column] = value * factor
    gpu = report["bench"]["figures"]["gpu"]["gpu"]["name"]
    return {"bench": "gpu", "processor": gpu, "commit": commit, **figures}


def main() -> None:
    """Write one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("commit")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    figures = reduced(json.loads(args.report.read_text(encoding="utf-8")), args.commit)
    args.out.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
