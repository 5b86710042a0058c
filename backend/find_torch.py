"""Finds the installed torch without importing it (an import takes a second, and may fail).

Used twice: `sinkstream_build` asks whether there is a torch to build against, and
`cmake/SinkstreamTorch.cmake` runs this file and reads the two lines that it prints, the folder and
the version. Standard library only: it runs before anything is installed.
"""

from __future__ import annotations

import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# A torch counts when its headers are there; which header names the version differs by release.
VERSION_HEADERS = (
    "include/torch/headeronly/version.h",
    "include/torch/csrc/api/include/torch/version.h",
)


def candidate_folders() -> Iterator[Path]:
    """Yield the folders that may hold a `torch` folder, most trusted first.

    An isolated build runs with its own `sys.path`, on which the environment that the package is
    built *for* does not appear; `sysconfig` still names it.
    """
    yield Path(sysconfig.get_path("purelib"))
    yield Path(sysconfig.get_path("platlib"))
    if sys.prefix == sys.base_prefix:  # a virtual environment does not see the user's folder
        yield Path(site.getusersitepackages())
    for entry in sys.path:
        if entry:
            yield Path(entry)


def find_torch() -> Path | None:
    """Return the folder of the first torch that carries its headers, or None."""
    for folder in candidate_folders():
        torch = folder / "torch"
        if any((torch / header).is_file() for header in VERSION_HEADERS):
            return torch
    return None


def torch_version(torch: Path) -> str:
    """Return the version in `version.py`, without the local part: "2.13.0" for "2.13.0+cpu"."""
    text = (torch / "version.py").read_text(encoding="utf-8")
    match = re.search(r"^__version__ = '([^'+]+)", text, re.MULTILINE)
    if match is None:
        raise ValueError(f"build: {torch / 'version.py'} names no version. Reinstall torch.")
    return match.group(1)


def main() -> int:
    """Print the folder and the version of torch on two lines; exits with 1 if there is none."""
    torch = find_torch()
    if torch is None:
        return 1
    print(torch)
    print(torch_version(torch))
    return 0


if __name__ == "__main__":
    sys.exit(main())
