"""The options that are numbers, with their ranges."""

from __future__ import annotations

from sinkstream.request.options import OPTIONS
from sinkstream.request.value_kinds import Integer, Number

NUMBERS = {name: option.kind for name, option in OPTIONS.items() if isinstance(option.kind, Number)}
INTEGERS = {
    name: option.kind for name, option in OPTIONS.items() if isinstance(option.kind, Integer)
}

# A kind of its own would take an option out of the tests of these ranges.
assert NUMBERS.keys() == {
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "timeout_s",
}
assert INTEGERS.keys() == {
    "max_tokens",
    "top_k",
    "logprobs",
    "prompt_logprobs",
    "seed",
    "stream_interval",
}
