"""The devices that models can run on: this machine's processor, and the GPU if there is one."""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sinkstream import _core

# The instruction sets that a kernel table may need, as /proc/cpuinfo names them.
_INSTRUCTIONS = (
    "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16",
    "amx_int8", "asimd", "asimddp", "bf16", "i8mm", "sve",
)  # fmt: skip

_GROUP = Path("/sys/fs/cgroup")  # in a container, its own limits are at the root
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, as `sinkstream info` shows it."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    total_bytes: int
    free_bytes: int
    """At the time of `find_gpu()`."""
    driver_compiles: bool
    """Whether the driver compiles the kernels at the first load, because they have no machine code
    for this GPU."""


def cuda_library_path() -> str:
    """Return the path of the library with the CUDA kernels, which need not exist.

    The environment variable SINKSTREAM_CUDA_LIBRARY overrides it: tests set it to a library that
    emulates a GPU on the CPU.
    """
    default = Path(_core.__file__).with_name("_cuda.so")
    return os.environ.get("SINKSTREAM_CUDA_LIBRARY") or str(default)


def find_gpu() -> Gpu | str:
    """Return the GPU, or a sentence explaining why there is none."""
    found = _core.find_gpu(cuda_library_path())
    problem = found.pop("problem")
    return str(problem) if problem else Gpu(**found)


def cpuinfo(field: str) -> str:
    """Return a field of the first processor in /proc/cpuinfo; "" if it is missing."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""


def processor_name() -> str:
    """Return the CPU's name with its family and model, which some names leave unclear."""
    name = cpuinfo("model name") or platform.machine()
    family, number = cpuinfo("cpu family"), cpuinfo("model")
    return f"{name} (family {family}, model {number})" if family else name


def instructions() -> list[str]:
    """Return the known instruction sets that the CPU has."""
    found = (cpuinfo("flags") or cpuinfo("Features")).split()
    return [name for name in _INSTRUCTIONS if name in found]


def huge_pages() -> str | None:
    """Return the system's mode of transparent huge pages: "always", "madvise" or "never".

    None if the system does not say.
    """
    try:
        chosen = re.search(r"\[(\w+)\]", _HUGE_PAGES.read_text(encoding="ascii"))
    except OSError:
        return None
    return chosen[1] if chosen else None


def available_bytes() -> int:
    """Return how much memory programs can still get, within a container's limit."""
    available = 0
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    with suppress(OSError, ValueError):  # no container, or no limit: "max"
        limit = int((_GROUP / "memory.max").read_text(encoding="ascii"))
        used = int((_GROUP / "memory.current").read_text(encoding="ascii"))
        available = min(available, max(0, limit - used))
    return available
