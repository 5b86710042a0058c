"""Facts that every result must name: the GPU, its driver, the tools and the commit.

    python -m tests.gpu.facts FILE [--rehearse]

Exits with 1 if there is no GPU or a package that other parts need is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from benchmarks.machine import commit, processor

NEEDED = (
    "gguf",
    "jinja2",
    "numpy",
    "pybind11",
    "pytest",
    "rich",
    "scikit-build-core",
    "tokenizers",
    "torch",
    "typer",
)
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
        "packages": {name: version(name) for name in NEEDED},
    }


def main() -> int:
    """Write the facts, and check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rehearse", action="store_true", help="a GPU may be missing")
    args = parser.parse_args()
    facts = gather()
    args.file.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(facts, indent=2))
    if args.rehearse:
        return 0
    packages = facts["packages"]
    assert isinstance(packages, dict)
    missing = [name for name, found in packages.items() if found == "missing"]
    if missing:
        print(f"facts: packages must be installed, but these are missing: {', '.join(missing)}.")
    has_gpu = shutil.which("nvidia-smi") is not None
    if not has_gpu:
        print("facts: a GPU is required, but nvidia-smi was not found.")
    return 1 if missing or not has_gpu else 0


if __name__ == "__main__":
    sys.exit(main())
