"""What a generator yields."""

from __future__ import annotations

from typing import TypedDict

from sinkstream.streams.events import FinishReason


class Usage(TypedDict):
    """Counts of tokens."""

    prompt_tokens: int
    """Tokens that this turn reads: the input, what the template puts around it, and the last token
    of the previous reply."""
    completion_tokens: int
    """Tokens generated so far, including a stop token."""
    total_tokens: int
    """Their sum."""


class Timing(TypedDict):
    """Counts and times of a turn that has ended."""

    context_tokens: int
    """Tokens read before the first one was generated: `prompt_tokens`."""
    context_time: float
    """Seconds from the call to the first token; 0 if there is none."""
    total_tokens: int
    """What to add to `start_pos` for the next turn."""
    generation_time_list: list[float]
    """Seconds for each token after the first. Every entry is their mean, measured where tokens are
    generated, so a slow reader does not change it."""


class Output(TypedDict):
    """One value of a generator."""

    text: str
    """The whole reply so far."""
    usage: Usage
    finish_reason: FinishReason | None
    """Why the turn has ended, in the last value; None before."""
    timing: Timing | None
    """In the last value; None before."""
