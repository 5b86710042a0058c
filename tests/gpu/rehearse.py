"""Rehearses the three calls of run.sh in an empty folder, as on a machine with a GPU and no more.

    python -m tests.gpu.rehearse FOLDER [--gpu build/tests/cpp/_cuda_emulated.so] [--wheels .whl]

FOLDER, which must not exist, gets a copy of the tree without history, and a Python with torch and
what it needs, but without gguf, pybind11, scikit-build-core and sinkstream: those come from the
wheels, and the package is built there. There is no git, no nvcc and, if the system allows it, no
network. The emulator takes the GPU's place. The package is built before the three calls, which
takes minutes, less with CMAKE_CXX_COMPILER_LAUNCHER=ccache, which is passed on. Exits with 1 if a
call fails, leaves more than eight files, or takes nine minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from benchmarks.machine import ROOT

# What such a machine does not have. Everything else of this Python is there, as links.
LACKING = ("gguf", "libgguf", "llama_cpp", "pybind11", "scikit_build_core", "sinkstream", "_sink")
NO_PROGRAMS = ("git", "nvcc", "curl", "wget", "ssh", "nvidia-smi", "compute-sanitizer", "pytest")
PASSED_ON = ("CMAKE_CXX_COMPILER_LAUNCHER", "CMAKE_GENERATOR", "CCACHE_DIR", "CCACHE_CONFIGPATH")
MOST_FILES, MOST_SECONDS = 8, 540
MOST_BUILDS = (
    8  # calls that only build, until the package is built: here may be fewer cores than there
)


def copy_tree(folder: Path) -> None:
    """Copy what git knows or would add, without its history."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def make_python(folder: Path) -> Path:
    """Make an environment with links to this one's packages, without LACKING; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    paths = {Path(path) for path in (*sys.path, sysconfig.get_path("purelib"))}
    for source in (path for path in paths if path.name == "site-packages"):
        for entry in source.iterdir():
            is_lacking = entry.name.startswith(LACKING) or entry.suffix == ".pth"
            if not is_lacking and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def make_programs(folder: Path) -> None:
    """Link every program of this machine's PATH, without NO_PROGRAMS."""
    folder.mkdir()
    for source in map(Path, os.environ["PATH"].split(":")):
        for entry in source.iterdir() if source.is_dir() else ():
            is_lacking = entry.name.startswith(NO_PROGRAMS) or entry.name.startswith("python")
            if not is_lacking and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry.resolve())


def without_network() -> list[str]:
    """Return a command that runs another without network, or nothing if the system forbids it."""
    command = ["unshare", "--net", "--map-root-user"]
    allowed = subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    return command if allowed else []


def build(folder: Path, environment: dict[str, str]) -> bool:
    """Build the package, in as many calls as it takes; return whether it is built."""
    started = time.monotonic()
    for _ in range(MOST_BUILDS):
        done = subprocess.run(
            [*without_network(), "tests/gpu/run.sh", "1", "--rehearse", "--only", "build"],
            cwd=folder / "tree",
            env=environment | {"OUT": str(folder / "out-build")},
            check=False,
        )
        if done.returncode == 0:
            print(f"built in {time.monotonic() - started:.0f} s", flush=True)
            return True
    return False


def call(number: int, folder: Path, environment: dict[str, str]) -> list[str]:
    """Run one call; return what is wrong with it."""
    out = folder / f"out-{number}"
    started = time.monotonic()
    done = subprocess.run(
        [*without_network(), "tests/gpu/run.sh", str(number), "--rehearse"],
        cwd=folder / "tree",
        env=environment | {"OUT": str(out)},
        check=False,
    )
    seconds = time.monotonic() - started
    files = sorted(path.name for path in out.iterdir())
    report = json.loads((out / "gpu.json").read_text(encoding="utf-8"))
    problems = [
        f"{part['name']}: {part['status']}" for part in report["parts"] if part["status"] != "ok"
    ]
    if done.returncode:
        problems.append(f"exit code {done.returncode}")
    if len(files) > MOST_FILES:
        problems.append(f"{len(files)} files: {', '.join(files)}")
    if seconds > MOST_SECONDS:
        problems.append(f"{seconds:.0f} s")
    parts = ", ".join(f"{part['name']} {part['seconds']} s" for part in report["parts"])
    print(f"call {number}: {seconds:.0f} s ({parts}), {len(files)} files", flush=True)
    return [f"call {number}: {problem}" for problem in problems]


def main() -> int:
    """Make the machine, and run the calls."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpu", type=Path, default=ROOT / "build/tests/cpp/_cuda_emulated.so")
    parser.add_argument("--wheels", type=Path, default=ROOT / ".whl")
    parser.add_argument("--calls", type=int, nargs="+", default=[1, 2, 3])
    args = parser.parse_args()
    folder = args.folder.resolve()
    if folder.exists():
        parser.error(f"FOLDER must be new, but {folder} exists.")
    if not args.wheels.is_dir():
        parser.error(
            f"--wheels must be a folder, but {args.wheels} is not. README.md says how to fill it."
        )
    if not args.gpu.is_file():
        parser.error(f"--gpu must be a file, but {args.gpu} is not. `make build-tests` builds it.")
    folder.mkdir(parents=True)
    (folder / "home").mkdir()
    copy_tree(folder / "tree")
    shutil.copytree(args.wheels, folder / "tree" / ".whl", dirs_exist_ok=True)
    shutil.copy2(args.gpu, folder / "the_gpu.so")
    make_programs(folder / "programs")
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | {
        "PATH": str(folder / "programs"),
        "HOME": str(folder / "home"),
        "COMMIT": "rehearsed",
        "OMP_NUM_THREADS": "1",  # torch's threads would wait for missing processors
        "PYTHON": str(make_python(folder / "python")),
        "SINKSTREAM_CUDA_LIBRARY": str(folder / "the_gpu.so"),
    }
    if not without_network():
        print("this system does not allow to take the network away")
    if not build(folder, environment):
        print("the package cannot be built")
        return 1
    problems = [problem for number in args.calls for problem in call(number, folder, environment)]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
