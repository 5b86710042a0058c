"""Puts what the parts of run.sh have left into one JSON and one text.

    python tests/gpu/summary.py WORK OUT

WORK has `parts.tsv`, a line for each part that has ended (name, status, exit code, seconds), and
what parts have written: facts.json, tests.xml, bench.json. Knows neither torch nor the package, so
that it works whatever has failed.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

Report = dict[str, Any]


def read_parts(work: Path) -> list[Report]:
    """Return the parts that have ended."""
    parts = []
    for line in (work / "parts.tsv").read_text(encoding="utf-8").splitlines():
        name, status, code, seconds = line.split("\t")
        parts.append(
            {"name": name, "status": status, "exit_code": int(code), "seconds": int(seconds)}
        )
    return parts


def read_json(path: Path) -> Report | None:
    """Return what a part has written; None if it has not come so far."""
    try:
        found: Report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def read_tests(path: Path) -> Report | None:
    """Return the counts of a JUnit file, and the names of what failed or was skipped."""
    try:
        cases = list(ElementTree.parse(path).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return None

    def names(*kinds: str) -> list[str]:
        return [
            str(case.get("name")) for case in cases if any(case.find(k) is not None for k in kinds)
        ]

    failed, skipped = names("failure", "error"), names("skipped")
    return {
        "passed": len(cases) - len(failed) - len(skipped),
        "failed": failed,
        "skipped": skipped,
    }


def gather(work: Path) -> Report:
    """Return everything that is there."""
    return {
        "facts": read_json(work / "facts.json"),
        "parts": read_parts(work),
        "tests": read_tests(work / "tests.xml"),
        "bench": read_json(work / "bench.json"),
    }


def bench_lines(bench: Report) -> list[str]:
    """Return the figures as tables."""
    copy = bench["copy_bytes_per_s"]
    place = "a rehearsal: no figures of a card" if bench["is_rehearsal"] else bench["card"]
    lines = [
        "",
        f"bench: {place}, commit {bench['commit']}, copy {copy / 1e9:.0f} GB/s",
        f"{'model':22} {'figure':16} {'tokens/s':>10}  beside",
    ]
    for model, figures in bench["models"].items():
        for name, values in figures.items():
            if name == "error":
                lines.append(f"{model:22} {values}")
            elif name == "load":
                lines.append(f"{model:22} {name:16} {'':>10}  {values['seconds']:.1f} s")
            elif name == "between tokens":
                lines.append(
                    f"{model:22} {name:16} {1000 / values['p50_ms']:10.1f}  p50 "
                    f"{values['p50_ms']:.3f} ms, p99 {values['p99_ms']:.3f} ms, longest "
                    f"{values['longest_ms']:.1f} ms of {values['tokens']}, "
                    f"{values['evicted_tokens']} evicted"
                )
            else:
                beside = ""
                if "bytes_per_step" in values:
                    share = values["bytes_per_step"] * values["steps_per_s"] / copy
                    beside = f"{values['steps_per_s']:.1f} steps/s, {100 * share:.2g} % of copy"
                lines.append(f"{model:22} {name:16} {values['tokens_per_s']:10.1f}  {beside}")
    lines += [f"left out for want of time: {name}" for name in bench["left_out"]]
    return lines


def as_text(report: Report) -> str:
    """Return the summary that is printed."""
    facts = report["facts"] or {}
    lines = [f"{name}: {facts[name]}" for name in ("card", "commit", "nvcc") if name in facts]
    if "packages" in facts:
        lines.append(f"torch {facts['packages']['torch']}, python {facts['python']}")
    lines.append("")
    for part in report["parts"]:
        code = f", exit code {part['exit_code']}" if part["exit_code"] else ""
        lines.append(f"{part['name']:12} {part['status']:12} {part['seconds']:4} s{code}")
    if tests := report["tests"]:
        counts = f"{tests['passed']} passed, {len(tests['failed'])} failed"
        lines += ["", f"tests: {counts}, {len(tests['skipped'])} skipped"]
        lines += [f"  failed: {name}" for name in tests["failed"]]
        lines += [f"  skipped: {name}" for name in tests["skipped"]]
    if report["bench"]:
        lines += bench_lines(report["bench"])
    return "\n".join(lines) + "\n"


def main(work: Path, out: Path) -> None:
    """Write both."""
    report = gather(work)
    (out / "gpu.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    (out / "gpu.txt").write_text(as_text(report), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
