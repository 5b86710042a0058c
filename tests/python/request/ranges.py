"""The options that are numbers, with their ranges."""

from __future__ import annotations

from sinkstream.request.kinds import Integer, Number
from sinkstream.request.options import OPTIONS

NUMBERS = {name: option.kind for name, option in OPTIONS.items() if isinstance(option.kind, Number)}
INTEGERS = {
    name: option.kind for name, option in OPTIONS.items() if isinstance(option.kind, Integer)
}
