"""What the system says about this machine's processor."""

from __future__ import annotations

import platform
import re
from pathlib import Path

# The instruction sets that a kernel table may need, as /proc/cpuinfo names them.
_INSTRUCTIONS = (
    "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16",
    "amx_int8", "asimd", "asimddp", "bf16", "i8mm", "sve",
)  # fmt: skip

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


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
