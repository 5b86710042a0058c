"""Whether a chat template shows the thought before a tool call while the model waits for results.

Some templates leave out thoughts only once the user writes again. Thoughts are then part of how a
model uses its tools.
"""

from __future__ import annotations

from typing import Any

from sinkstream.errors import InvalidArgument
from sinkstream.text.chat import ChatFormat
from sinkstream.text.messages import Message
from sinkstream.text.turns.template_turns import as_message, placeholders
from sinkstream.text.turns.turn_arguments import TEXT

# Templates that check ids want Mistral's: nine letters and digits.
_IDS = ("call_placeholder0", "plchldr00")


def shows_thoughts_of_calls(chat: ChatFormat) -> bool:
    """Return whether it does; False if the template refuses calls, results or thoughts."""
    question, thought, answer, _ = placeholders(chat, "")
    for call_id in _IDS:
        function = {"name": "placeholder", "arguments": "{}"}
        call: dict[str, Any] = {"id": call_id, "type": "function", "function": function}
        reply: Message = {
            **as_message("assistant", ""),
            "reasoning_content": thought,
            "thinking": thought,
            "tool_calls": [call],
        }
        result = {**as_message("tool", answer), "tool_call_id": call_id, "name": "placeholder"}
        said = [as_message("user", question), reply, result]
        try:
            written = chat.render(said, True, argument=TEXT)
        except InvalidArgument:
            continue
        return written.after(thought) is not None
    return False
