"""Shared by the parts: the model, threads, and the server to compare with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sinkstream.checkpoint.stores.packages import locate


@dataclass(frozen=True)
class Setting:
    """What all parts run with."""

    threads: int
    path: Path | None = None  # None: SmolLM2
    llama_server: str | None = None  # its binary

    def model(self) -> Path:
        """Return the model's file."""
        return self.path or locate("smollm2")

    def options(self) -> list[str]:
        """Return the options of `sinkstream serve` for the model and its threads."""
        return ["--model", str(self.model()), "--threads", str(self.threads)]
