r"""How a checkpoint's chat template writes tool calls, as plain data.

    <tool_call>\n{"name": "  f  ", "arguments":   {…}   }\n</tool_call>
    begin                   name middle        arguments  end

Between two calls, `between` takes the place of `end` and of a second `begin`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")

# Note: [Marked calls]
# As in the tags of thoughts, each control token is one character, its marker: a lone surrogate,
# which no decoded text contains. Other added tokens are text: a model may also spell them in
# letters, and for the grammar that is the same. One marker stands for the id of a call, where the
# template writes it.
FIRST_MARKER = 0xD900
ID_MARK = "\udfff"
ID_LENGTH = 9
"""The length of ids that a template writes: Mistral's have nine letters and digits."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """What is written around the names and the arguments of calls. See Note: [Marked calls]."""

    trigger: str
    """What the first call begins with, so that it cannot be taken for text."""
    is_bare: bool
    """Whether a call has no tag of its own, and is one only at the beginning of a reply."""
    begin: str
    """Up to the name of the first call, including the trigger."""
    middle: str
    """Between a name and its arguments."""
    between: str | None
    """Between arguments and the name of the next call; None if a reply has one call."""
    end: str
    """After the last arguments."""
    markers: Mapping[int, str]
    """The marker of each control token."""
    has_short_ids: bool
    """Whether the template accepts only ids of nine letters and digits."""

    @property
    def token_ids(self) -> dict[str, int]:
        """Return the control token of each marker."""
        return {marker: token_id for token_id, marker in self.markers.items()}

    def shown(self, marked: str) -> str:
        """Return marked text as a stream shows it: control tokens have no text."""
        return _MARKERS.sub("", marked)


_MARKERS = re.compile(f"[{chr(FIRST_MARKER)}-\udaff]")
