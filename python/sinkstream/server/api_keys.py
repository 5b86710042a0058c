"""The API keys of a server, and how much each may use compared with the others."""

from __future__ import annotations

import hashlib
from pathlib import Path

from sinkstream.errors import InvalidArgument
from sinkstream.request.value_kinds import Number
from sinkstream.server.config import ServerConfig

WEIGHT = Number(0.01, 100)


def tenant_of(key: str) -> str:
    """Return what a key is called everywhere else: its hash."""
    return hashlib.sha256(key.encode("latin-1")).hexdigest()


def weights_of(config: ServerConfig) -> dict[str, float]:
    """Return the weight of each tenant; empty if clients need no key.

    Raises:
        InvalidArgument: A line of the file of keys is not valid, or the file cannot be read.
    """
    keys = dict.fromkeys(config.api_keys, 1.0)
    if config.api_key_file:
        keys |= _read(Path(config.api_key_file))
    return {tenant_of(key): weight for key, weight in keys.items()}


def _read(path: Path) -> dict[str, float]:
    """Return the keys of a file: one in a line, with its weight after a space."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        rule = f"must name a file that can be read, but {path} cannot be: {reason}."
        raise _refusal(rule) from None
    keys = {}
    for number, line in enumerate(lines, 1):
        parts = line.partition("#")[0].split()
        if not parts:
            continue
        key, weight = parts[0], _weight(parts[1]) if len(parts) == 2 else 1.0
        if len(parts) > 2 or weight is None or not key.isascii() or not key.isprintable():
            raise _refusal(
                "must have a key of printable ASCII in each line, and may have its weight in "
                f"{WEIGHT} after a space, but line {number} of {path} has something else."
            )
        keys[key] = weight
    if not keys:
        raise _refusal(f"must name a file with at least one key, but {path} has none.")
    return keys


def _weight(text: str) -> float | None:
    try:
        weight = float(text)
    except ValueError:
        return None
    return weight if weight in WEIGHT else None


def _refusal(rule: str) -> InvalidArgument:
    return InvalidArgument(f"serve: `api_key_file` {rule}", param="api_key_file")
