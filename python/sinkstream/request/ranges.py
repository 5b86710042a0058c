"""What a stream's numbers may be: the limits of the native `validate`, for all of Python.

The defaults of a checkpoint are held to the same table when it is opened, so that no stream is
refused for a value that nobody gave.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `low` to `high`, both included unless `is_open` says otherwise."""

    low: float
    high: float
    is_open: bool = False
    """Whether `low` itself is out of range."""

    def __contains__(self, value: float) -> bool:
        """Return whether `value` is in the range; NaN is in none."""
        return self.low <= value <= self.high and not (self.is_open and value == self.low)

    def __str__(self) -> str:
        return f"{'(' if self.is_open else '['}{self.low:g}, {self.high:g}]"


# By argument of `Model.stream`. csrc/sampling/params.cc is what refuses; a test compares the two.
NUMBERS = {
    "temperature": Range(0, 100),
    "top_p": Range(0, 1, is_open=True),
    "min_p": Range(0, 1),
    "repetition_penalty": Range(0.01, 100),
    "presence_penalty": Range(-100, 100),
    "frequency_penalty": Range(-100, 100),
}
SECONDS = {"timeout_s": Range(0, 1e9, is_open=True)}
# Lowest and highest. The native core cannot even be handed a number that its own types do not hold.
WHOLE = {
    "top_k": (0, 2**31 - 1),
    "logprobs": (0, 20),
    "seed": (0, 2**64 - 1),
    "max_tokens": (0, 2**53),
    "stream_interval": (1, 2**20),
}
