"""The argument that a text came in, for the sentences of errors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ArgumentName:
    """An argument of a call; as a text it is how every sentence about it begins."""

    call: str
    name: str

    def __str__(self) -> str:
        return f"{self.call}: `{self.name}`"


PROMPT = ArgumentName("stream", "prompt")
