"""Writes GGUF files in parts, with any part wrong on purpose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.python.checkpoint.gguf_bytes import I32, U16, GgufBytes, llama_bytes


def split(whole: GgufBytes, count: int, *, first_is_empty: bool = False) -> list[GgufBytes]:
    """Return the parts of a file as llama-gguf-split writes them."""
    holders = count - 1 if first_is_empty else count
    size = -(-len(whole.tensors) // holders)
    groups = [whole.tensors[i * size : (i + 1) * size] for i in range(holders)]
    if first_is_empty:
        groups.insert(0, [])
    parts = []
    for number, tensors in enumerate(groups):
        part = GgufBytes(keys=list(whole.keys) if number == 0 else [], tensors=list(tensors))
        part.add("split.no", U16, number).add("split.count", U16, count)
        parts.append(part.add("split.tensors.count", I32, len(whole.tensors)))
    return parts


def set_key(part: GgufBytes, name: str, kind: int, value: object) -> None:
    """Give a key of a part another value."""
    part.keys = [key for key in part.keys if key[0] != name]
    part.add(name, kind, value)


def write_parts(
    folder: Path,
    count: int = 3,
    change: Callable[[list[GgufBytes]], object] = lambda parts: None,
    *,
    first_is_empty: bool = False,
) -> list[Path]:
    """Write a tiny model in parts, after `change` has had them; return their paths."""
    parts = split(llama_bytes(), count, first_is_empty=first_is_empty)
    change(parts)
    return [
        part.write(folder / f"m-{number:05}-of-{count:05}.gguf")
        for number, part in enumerate(parts, 1)
    ]
