"""Facts that every result must name: the GPU, its driver, the tools and the commit.

    python -m tests.gpu.facts FILE [--rehearse]
    python -m tests.gpu.facts --carry | xargs pip download --no-deps --dest .whl

Exits with 1 if there is no GPU, or if a package that other parts need is missing or does not have a
version that pyproject.toml accepts. The second form prints the packages that a machine with a GPU
and torch usually lacks.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from benchmarks.machine import ROOT, commit, processor

# Of the extra `test`, whose versions are exact for its own sake: here any is good enough.
ANY_VERSION = ("gguf", "libgguf", "pytest")
ASKED = (
    "name,driver_version,memory.total,memory.used,clocks.sm,clocks.mem,power.limit,mig.mode.current"
)


def output(*command: str) -> str:
    """Return a program's output, or why there is none."""
    if shutil.which(command[0]) is None:
        return f"{command[0]} is not on PATH"
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    return (done.stdout if done.returncode == 0 else done.stdout + done.stderr).strip()


def line_with(word: str, text: str) -> str:
    """Return the first line with a word, or the whole text."""
    return next((line for line in text.splitlines() if word in line), text)


def version(package: str) -> str:
    """Return an installed package's version, or "missing"."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def pyproject() -> dict[str, list[str]]:
    """Return the requirements of the build, of the package and of the extra `test`."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {
        "build": content["build-system"]["requires"],
        "run": content["project"]["dependencies"],
        "test": content["project"]["optional-dependencies"]["test"],
    }


def name_of(requirement: str) -> str:
    """Return a requirement's package, as in `torch` for "torch>=2.11"."""
    return re.split(r"[^\w-]", requirement)[0]


def needed() -> list[str]:
    """Return the requirements of all parts of run.sh."""
    groups = pyproject()
    return [*groups["build"], *groups["run"], *ANY_VERSION]


def carried() -> list[str]:
    """Return the requirements that a machine with torch usually lacks."""
    groups = pyproject()
    exact = [each for each in groups["test"] if name_of(each) in ("gguf", "libgguf")]
    return [*groups["build"], "pathspec", *exact]


def unmet(requirements: list[str]) -> list[str]:
    """Return a phrase for each requirement that the installed packages do not meet.

    Requirements of packages that are met are checked as well, because `pip install --no-deps` does
    not; those of torch are torch's.
    """
    from packaging.requirements import Requirement

    found, waiting, known = [], [Requirement(each) for each in requirements], set()
    while waiting:
        requirement = waiting.pop(0)
        if str(requirement) in known:
            continue
        known.add(str(requirement))
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        has = version(requirement.name)
        if has == "missing":
            found.append(f"{requirement} is missing")
        elif not requirement.specifier.contains(has, prereleases=True):
            found.append(f"{requirement} is {has}")
        elif requirement.name != "torch":
            waiting += map(Requirement, metadata.requires(requirement.name) or [])
    return found


def tree() -> str:
    """Return the commit, or $COMMIT if the tree is a copy without history."""
    return os.environ.get("COMMIT") or commit()


def gather() -> dict[str, object]:
    """Return all facts, without running anything on the GPU."""
    smi = output("nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader")
    return {
        "commit": tree(),
        "gpu": smi.splitlines()[0] if smi else "none",
        "nvcc": line_with("release", output("nvcc", "--version")),
        "compute_sanitizer": shutil.which("compute-sanitizer") or "missing",
        "cmake": output("cmake", "--version").splitlines()[0],
        "compiler": output(os.environ.get("CXX", "c++"), "--version").splitlines()[0],
        "processor": processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in sorted(map(name_of, needed()))},
        "unmet": unmet(needed()),
    }


def main() -> int:
    """Write the facts, and check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--rehearse", action="store_true", help="a GPU may be missing")
    parser.add_argument("--carry", action="store_true", help="print requirements, and end")
    args = parser.parse_args()
    if args.carry:
        print("\n".join(carried()))
        return 0
    if args.file is None:
        parser.error("FILE is missing")
    facts = gather()
    args.file.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(facts, indent=2))
    if problems := facts["unmet"]:
        assert isinstance(problems, list)
        print(
            f"facts: packages must have the versions of pyproject.toml, but {'; '.join(problems)}. "
            "Carry wheels in .whl: python -m tests.gpu.facts --help"
        )
    has_gpu = args.rehearse or shutil.which("nvidia-smi") is not None
    if not has_gpu:
        print("facts: a GPU is required, but nvidia-smi was not found.")
    return 1 if problems or not has_gpu else 0


if __name__ == "__main__":
    sys.exit(main())
