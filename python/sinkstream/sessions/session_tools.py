"""The tools that a session was opened with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sinkstream.errors import CheckpointError, InvalidArgument
from sinkstream.request.options import TurnOptions
from sinkstream.request.tools import Tools, check_tools
from sinkstream.sessions.thoughts import Thoughts
from sinkstream.text.find_thoughts import shows_thoughts_of_calls
from sinkstream.text.template_turns import TemplateTurns
from sinkstream.text.turn_format import TurnFormat

_FIELD = "tools"


@dataclass(frozen=True, slots=True)
class SessionTools:
    """What the model may call in a conversation."""

    tools: Tools | None = None
    """None if the session was opened without tools."""
    keeps_thoughts: bool = False
    """Whether the chat template shows the thought before a call until the user writes again."""

    def of_turn(self, given: TurnOptions) -> Tools | None:
        """Return what one reply may call; takes that out of the arguments of `Session.stream`.

        Raises:
            TypeError: A value has the wrong type.
            InvalidArgument: `tool_choice` names none of the tools, or there are none.
        """
        definitions = None if self.tools is None else self.tools.as_given
        choice, parallel = given.pop("tool_choice", None), given.pop("parallel_tool_calls", None)
        return check_tools(definitions, choice, parallel)


NO_TOOLS = SessionTools()


def tools_of(tools: Tools | None, turns: TurnFormat) -> SessionTools:
    """Return the tools of a session whose conversation has the parts `turns`."""
    if tools is None or not isinstance(turns, TemplateTurns):
        return SessionTools(tools)
    return SessionTools(tools, shows_thoughts_of_calls(turns.chat))


def fields_of(thoughts: Thoughts, tools: Tools | None) -> dict[str, str | int]:
    """Return how a session file describes what a conversation does with thoughts and tools."""
    return thoughts.fields | ({} if tools is None else {_FIELD: json.dumps(tools.as_given)})


def check_unread_calls(tools: Tools | None) -> None:
    """Refuse calls that a reply to token ids must make.

    Raises:
        InvalidArgument: `tool_choice` demands calls.
    """
    if tools is not None and tools.choice == "required":
        raise InvalidArgument(
            'stream: `tool_choice` must be "auto", "none" or None, because `content` is token ids: '
            "tool calls in the reply are not recognized.",
            param="tool_choice",
        )


def tools_of_fields(fields: Mapping[str, str | int], name: str) -> Tools | None:
    """Return the tools in a session file; None if it has none.

    Args:
        fields: The fields of the file.
        name: The file's name, for errors.

    Raises:
        CheckpointError: They are not as `fields_of` writes them.
    """
    text = fields.get(_FIELD)
    if text is None:
        return None
    try:
        return check_tools(json.loads(str(text)), call="load_session")
    except (InvalidArgument, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"load_session: `tools` of {name} must be valid tools, as saved by a session, but are "
            f"not: {str(error).removeprefix('load_session: ').rstrip('.')}."
        ) from None
