"""Runs other projects' suites, and their clients, against our server.

    python -m tests.conformance [NAME…] [--cache FOLDER] [-k EXPRESSION]

Names are those of suites, `autobahn`, `schema` and `clients`. Ends with a table; the exit code is 1
if anything ended in another way than listed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from tests.conformance import client_runs, schema
from tests.conformance.autobahn import cases
from tests.conformance.sources import SourceError
from tests.conformance.suites import SUITES, run
from tests.conformance.verdict import KINDS, Verdict


def main() -> int:
    """Run, and print a table."""
    parser = argparse.ArgumentParser(prog="tests.conformance", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    parser.add_argument("--cache", type=Path, default=default / "sinkstream" / "conformance")
    parser.add_argument("-k", dest="selected", default="")
    options = parser.parse_args()
    known_names = (*SUITES, "autobahn", "schema", "clients")
    unknown = set(options.names) - set(known_names)
    if unknown:
        known = ", ".join(known_names)
        parser.error(f"NAME must be one of {known}, but is {sorted(unknown)[0]!r}.")
    rows: list[tuple[str, Verdict, float]] = []
    faults: list[str] = []
    cache = options.cache.expanduser()
    for name in options.names or known_names:
        if name == "clients":
            faults += run_clients(cache, options.selected)
            continue
        if name == "schema":
            found = schema.run(cache)
            print(f"{name:<20}{'failed' if found else 'passed':>8}")
            faults += [found] if found else []
            continue
        started = time.monotonic()
        try:
            if name == "autobahn":
                verdict = cases.run(cache, options.selected)
            else:
                verdict = run(SUITES[name], cache, selected=options.selected)
        except SourceError as error:
            faults.append(str(error))
            continue
        rows.append((name, verdict, time.monotonic() - started))
        faults += [f"{name}: {fault}" for fault in verdict.faults]
    if rows:
        print(table(rows))
    print("".join(f"\n{fault}" for fault in faults))
    return 1 if faults else 0


def run_clients(cache: Path, selected: str) -> list[str]:
    """Run the clients, say of each how it ended, and return what failed."""
    faults = []
    for ended in client_runs.run(cache, selected):
        word = "failed" if ended.fault else "passed"
        print(f"{ended.name:<20}{word:>8}{ended.seconds:>8.0f} s", flush=True)
        if ended.fault:
            faults.append(ended.fault)
    return faults


def table(rows: list[tuple[str, Verdict, float]]) -> str:
    """Return the counts of each suite."""
    lines = [f"{'suite':<12}{'run':>6}{'passed':>8}{'skipped':>9}"]
    lines[0] += "".join(f"{kind.replace('_', ' '):>11}" for kind in KINDS) + f"{'faults':>8}"
    for name, verdict, seconds in rows:
        counts = "".join(f"{verdict.by_kind[kind]:>11}" for kind in KINDS)
        line = f"{name:<12}{verdict.run:>6}{verdict.passed:>8}{verdict.skipped:>9}{counts}"
        lines.append(f"{line}{len(verdict.faults):>8}   {seconds:.0f} s")
        lines += [f"    {count:>3} {reason}" for reason, count in verdict.by_reason.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
