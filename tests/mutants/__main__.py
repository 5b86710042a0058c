"""Plant all mistakes, or the named ones, and report whether the tests notice each.

python -m tests.mutants                  # all, in C++ and in Python
python -m tests.mutants angles_in_float32
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.catalogue import Mutant
from tests.mutants.catalogue_cuda import NATIVE
from tests.mutants.catalogue_python import CATALOGUE_PYTHON
from tests.mutants.scratch_package import ScratchPackage
from tests.mutants.verdict import Runner, Verdict, verdict_on
from tests.mutants.workshop import ROOT, Workshop


def main() -> int:
    """Print a line per mistake; return 1 if one survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="[all]")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    everything = NATIVE + CATALOGUE_PYTHON
    unknown = set(options.names) - {mutant.name for mutant in everything}
    if unknown:
        parser.error(f"there is no mistake named {', '.join(sorted(unknown))}")
    chosen = [m for m in everything if not options.names or m.name in options.names]
    workshop = Workshop(options.folder)
    in_python = [mutant for mutant in chosen if mutant in CATALOGUE_PYTHON]
    package = ScratchPackage([killer for mutant in in_python for killer in mutant.killers])
    for runner, is_needed in ((workshop, len(chosen) > len(in_python)), (package, in_python)):
        if is_needed and (missing := runner.missing()) is not None:
            parser.error(missing)

    def timed(mutant: Mutant) -> tuple[Verdict, float]:
        started = time.perf_counter()
        runner: Runner = package if mutant in in_python else workshop
        return verdict_on(mutant, runner), time.perf_counter() - started

    survivors = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, (verdict, seconds) in zip(chosen, pool.map(timed, chosen), strict=True):
            survivors += not verdict.is_caught
            number = "" if mutant.museum is None else f"{mutant.museum}"
            print(f"{number:>2} {mutant.name:35} {verdict.word:9} {seconds:5.1f} s", flush=True)
            if not verdict.is_caught:
                print(verdict.report)
    print(f"{len(chosen) - survivors} of {len(chosen)} caught")
    return min(survivors, 1)


if __name__ == "__main__":
    sys.exit(main())
