"""What every report names: the processor with its family, and the commit."""

from __future__ import annotations

import json
import os
import pathlib
import platform
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]


def processor() -> str:
    """Return the processor's name, vendor and family as the kernel reports them."""
    fields: dict[str, str] = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    words = fields.get("flags", "").split()
    sets = [word for word in ("avx2", "avx512_bf16", "avx512_vnni", "amx_bf16") if word in words]
    return (
        f"{fields.get('model name', platform.machine())}, family {fields.get('cpu family', '?')} "
        f"model {fields.get('model', '?')} ({', '.join(sets) or 'no vector sets'}), "
        f"{len(os.sched_getaffinity(0))} cores"
    )


def commit() -> str:
    """Return the short commit hash, with a plus if the tree differs from it."""

    def git(*words: str) -> str:
        try:
            return subprocess.run(
                ["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False
            ).stdout.strip()
        except OSError:  # there is no git
            return ""

    return (git("rev-parse", "--short", "HEAD") or "none") + ("+" if git("status", "-s") else "")


def status_kib(*names: str, pid: int | str = "self") -> int:
    """Return the sum of fields of a process's /proc/PID/status, in KiB."""
    total = 0
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in names:
            total += int(value.split()[0])
    return total


def report(name: str, figures: dict[str, Any]) -> None:
    """Print the figures, and write them as JSON where $BENCH_OUT names a folder."""
    whole = {"bench": name, "processor": processor(), "commit": commit(), **figures}
    text = json.dumps(whole, indent=2)
    print(text)
    out = os.environ.get("BENCH_OUT")
    if out:
        folder = pathlib.Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(text + "\n")
    sys.stdout.flush()
