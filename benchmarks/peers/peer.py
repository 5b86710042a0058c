"""The interface of every engine."""

from __future__ import annotations

from abc import ABC, abstractmethod

PREFILL_CHUNK = 512  # tokens of a forward, for engines that let the caller choose


def prompt(tokens: int) -> list[int]:
    """Return ids that every compared model has, and that are not all equal."""
    return [100 + i % 400 for i in range(tokens)]


class NotPossible(Exception):
    """The engine cannot do this; the message says why."""


class Peer(ABC):
    """One engine with one model, loaded in the constructor."""

    @abstractmethod
    def prefill(self, tokens: int) -> float:
        """Return the seconds from an empty cache to the logits after a prompt."""

    @abstractmethod
    def decode(self, cached: int, tokens: int) -> float:
        """Return the seconds per token of one sequence: the mean of `tokens` at `cached` tokens."""

    def batch(self, sequences: int, cached: int, tokens: int) -> float:
        """Return the seconds of a step of all sequences, likewise a mean."""
        raise NotPossible("it has no comparable batches")

    def evicted(self) -> int:
        """Return the tokens evicted so far: fewer than expected would falsify a figure."""
        return 0

    @abstractmethod
    def describe(self) -> str:
        """Return the version and the settings."""
