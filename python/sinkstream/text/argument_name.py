"""Names the argument that contains some text, for error messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ArgumentName:
    """An argument of a call. `str()` gives the beginning of every message about it."""

    call: str
    name: str

    def __str__(self) -> str:
        return f"{self.call}: `{self.name}`"


PROMPT = ArgumentName("stream", "prompt")
