"""Loads with panel files, for tests and for the processes that these start. Imports little."""

from __future__ import annotations

from pathlib import Path

import sinkstream
from sinkstream import Model

PROMPT = list(range(5, 25))


def load(path: Path, cache: Path, **options: object) -> Model:
    return sinkstream.load(path, cache=cache, window=60, max_sequences=1, **options)  # type: ignore[arg-type]


def is_mapped(model: Model) -> bool:
    """Return whether all weights are mapped from a file."""
    capacity = model.capacity
    return capacity.mapped_weight_bytes == capacity.weight_bytes


def bits(model: Model) -> tuple[str, list[int]]:
    """Return a digest of the weights, and what they generate."""
    reply = model.generate(PROMPT, max_tokens=40, temperature=0, ignore_eos=True)
    return model._native.fingerprint(), reply.token_ids


def private_bytes(path: Path) -> tuple[int, int]:
    """Return the resident bytes of this process's mapping of a file, and those of it alone."""
    resident = private = 0
    is_of_file = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if "-" in name.split(" ")[0]:
            is_of_file = line.endswith(str(path))
        elif is_of_file and name == "Rss":
            resident += 1024 * int(rest.split()[0])
        elif is_of_file and name in ("Private_Clean", "Private_Dirty"):
            private += 1024 * int(rest.split()[0])
    return resident, private


def locked_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmLck:")[2].split()[0])
