"""The options that are numbers, with their ranges."""

from __future__ import annotations

from sinkstream.request.options import OPTIONS
from sinkstream.request.value_kinds import Integer, Number

NUMBERS = {name: option.kind for name, option in OPTIONS.items() if isinstance(option.kind, Number)}
INTEGERS = {
    name: option.kind for name, option in OPTIONS.items() if isinstance(option.kind, Integer)
}
