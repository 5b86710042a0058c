"""What a response's conversation begins with: instructions and tools, for one request."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from sinkstream.request.tools import Tools
from sinkstream.server.tools import as_chat_tools, tools_of


class Opening(NamedTuple):
    """Two responses whose openings are equal can share a conversation."""

    instructions: str | None
    tools: str
    """The tools as text with sorted keys; "" without tools."""


def opening_with(instructions: str | None, tools: Tools | None) -> Opening:
    """Return the opening of a request."""
    # A response repeats its tools with their keys in another order.
    text = "" if tools is None else json.dumps(tools.definitions, sort_keys=True)
    return Opening(instructions, text)


def opening_of_echo(echo: dict[str, Any]) -> Opening:
    """Return the opening of a response, from the fields that repeat its request."""
    tools = tools_of(as_chat_tools(echo["tools"]), None, None)
    return opening_with(echo["instructions"], tools)
