#!/usr/bin/env python3
"""Runs nvcc for CMake, and keeps what ptxas says of a kernel's file for `tests/gpu/registers.py`.

    cmake -DCMAKE_CUDA_COMPILER_LAUNCHER=tests/gpu/compile_and_keep_log.py

So a build and `make test-registers` after it compile the kernels once. Only commands with the
options of registers.py are recorded.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.gpu import registers
from tests.gpu.registers import OPTIONS, SOURCES, SPILLS


def recorded(command: list[str]) -> tuple[Path, str] | None:
    """Return the kernels' file that a command compiles, and for which architecture."""
    paths = [Path(word).resolve() for word in command if word.endswith(".cu")]
    archs = [arch for arch in SPILLS if any(f"code=[sm_{arch}]" in word for word in command)]
    names = {Path(word).name for word in command}
    if len(paths) != 1 or len(archs) != 1 or not {"nvcc", *OPTIONS} <= names:
        return None
    if not paths[0].is_relative_to(SOURCES / "kernels/cuda"):
        return None
    return paths[0], archs[0]


def main(command: list[str]) -> int:
    """Run the command; return its exit status."""
    subject = recorded(command)
    if subject is None:
        os.execvp(command[0], command)
    done = subprocess.run([*command, "-Xptxas=-v"], stderr=subprocess.PIPE, text=True, check=False)
    lines = done.stderr.splitlines(keepends=True)
    sys.stderr.writelines(line for line in lines if not is_report(line))
    if done.returncode == 0:
        path, arch = subject
        nvcc = next(word for word in command if Path(word).name == "nvcc")  # not the first: ccache
        version = registers.version_of(nvcc)
        registers.keep(registers.kept_log(path, arch, registers.KEPT, version), done.stderr)
    return done.returncode


def is_report(line: str) -> bool:
    """Tell whether a line is what -v adds."""
    return re.match(r"ptxas info|    \d+ bytes stack frame", line) is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
