"""The tools of a request, and the calls in its reply, in the forms of OpenAI's two APIs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sinkstream.errors import InvalidArgument
from sinkstream.request.tools import Tools, check_tools
from sinkstream.server.errors import invalid
from sinkstream.text.tool_call import ToolCall

_PARAMS = ("tool_choice", "parallel_tool_calls", "tools")


def tools_of(tools: Any, tool_choice: Any, parallel_tool_calls: bool | None) -> Tools | None:
    """Return the tools of a request, in the form of chat completions; None if it has none.

    Raises:
        ApiError: They are malformed, or `tool_choice` names none of them.
    """
    try:
        return check_tools(tools, tool_choice, parallel_tool_calls, call="body")
    except InvalidArgument as error:
        raise invalid(str(error), error.param) from None
    except TypeError as error:
        param = next(name for name in _PARAMS if f"`{name}`" in str(error))
        raise invalid(str(error), param) from None


def as_chat_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Return the functions of the Responses API in the form of chat completions."""
    return [
        {
            "type": tool.get("type"),
            "function": {name: value for name, value in tool.items() if name != "type"},
        }
        for tool in tools or ()
    ]


@dataclass(slots=True)
class CallDelta:
    """What has been added to one of a reply's calls."""

    index: int
    begun: ToolCall | None = None
    """The call without arguments, if it has just begun."""
    arguments: str = ""


@dataclass(slots=True)
class CallDeltas:
    """Follows the calls of a reply."""

    _sent: list[int] = field(default_factory=list)

    def next(self, calls: Sequence[ToolCall]) -> list[CallDelta]:
        """Return what has been added since the last time."""
        deltas = []
        for index, call in enumerate(calls[max(0, len(self._sent) - 1) :], len(self._sent[:-1])):
            if index == len(self._sent):
                deltas.append(CallDelta(index, ToolCall(call.id, call.name)))
                self._sent.append(0)
            if len(call.arguments) > self._sent[index]:
                deltas.append(CallDelta(index, arguments=call.arguments[self._sent[index] :]))
                self._sent[index] = len(call.arguments)
        return deltas


def as_chunk(delta: CallDelta) -> dict[str, Any]:
    """Return an item of `delta.tool_calls` in a chunk of a chat completion."""
    if delta.begun is None:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    return {"index": delta.index, **delta.begun.as_message()}
