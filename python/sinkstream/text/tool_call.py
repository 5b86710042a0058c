"""A tool call in a reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class ToolCall:
    """A tool call in a reply."""

    id: str
    """Chosen at random when the call begins. The message with the tool's result repeats it."""
    name: str
    arguments: str = ""
    """A JSON object as text: the part that has been read."""

    def as_message(self) -> dict[str, Any]:
        """Return it as an item of `tool_calls` in the assistant's message."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}
