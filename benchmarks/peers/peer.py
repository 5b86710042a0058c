"""What every engine is asked to do."""

from __future__ import annotations

from abc import ABC, abstractmethod

PREFILL_CHUNK = 512  # tokens that the engines which leave the choice to the caller read at once


def prompt(tokens: int) -> list[int]:
    """Return ids that every model of the comparison has, and that are not all the same."""
    return [100 + i % 400 for i in range(tokens)]


class NotPossible(Exception):
    """The engine cannot do this; the message says why."""


class Peer(ABC):
    """One engine with one model, loaded in the constructor."""

    @abstractmethod
    def prefill(self, tokens: int) -> float:
        """Return the seconds from an empty cache to the logits behind a prompt."""

    @abstractmethod
    def decode(self, cached: int, tokens: int) -> float:
        """Return the seconds of one token, one sequence, the mean of `tokens` behind `cached`."""

    def batch(self, sequences: int, cached: int, tokens: int) -> float:
        """Return the seconds of one token of all sequences together, likewise."""
        raise NotPossible("it has no batches that could be compared")

    def endless(self, capacity: int, tokens: int) -> list[float]:
        """Return the seconds of each token of a stream that never holds more than `capacity`."""
        raise NotPossible("it has no endless stream that could be compared")

    def shifts(self) -> list[int]:
        """Return which tokens of the last endless stream shifted the cache before them."""
        raise NotPossible("its cache does not shift")

    def evicted(self) -> int:
        """Return the tokens that have left a cache so far: a figure must not come from fewer."""
        return 0

    @abstractmethod
    def describe(self) -> str:
        """Return version and settings."""
