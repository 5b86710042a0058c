"""A last message that the reply continues: rendered like the others, and cut after its text.

That is what transformers' `continue_final_message` does: the template writes the message itself,
and not a generation prompt, which may open a thought or begin another message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sinkstream.errors import InvalidArgument
from sinkstream.request.checks import ArgumentName
from sinkstream.text.messages import Message

if TYPE_CHECKING:
    from sinkstream.text.templates.traced_text import TracedText  # with Jinja, 2 MB

# Follows the text. The space at its end shows whether the template trims the message.
_MARK = "CONTINUE_FINAL_MESSAGE_TAG "


def check_open(messages: Sequence[Message], argument: ArgumentName) -> None:
    """Refuse a last message that no reply can continue.

    Raises:
        InvalidArgument: It is not the assistant's, or calls tools.
    """
    last = messages[-1]
    if last["role"] != "assistant":
        raise _refusal(f'have the role "assistant", but has the role "{last["role"]}"', argument)
    if last.get("tool_calls"):
        raise _refusal("have no `tool_calls`, but has some", argument)


def marked(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with a mark after the text of the last one."""
    *earlier, last = messages
    content = last["content"]
    if isinstance(content, str):
        return [*earlier, {**last, "content": content + _MARK}]
    *parts, part = content
    return [*earlier, {**last, "content": [*parts, {**part, "text": part["text"] + _MARK}]}]


def cut(written: TracedText, messages: Sequence[Message], argument: ArgumentName) -> TracedText:
    """Return a rendering of marked messages up to the mark, without it.

    White space at the end of the text is left out if the template trims the message.

    Raises:
        InvalidArgument: The template does not write the last message's text there.
    """
    content = messages[-1]["content"]
    text = content if isinstance(content, str) else content[-1]["text"]
    at = str.rfind(written, _MARK.strip())
    kept = written[: max(0, at)]
    if str.__str__(written[at : at + len(_MARK)]) != _MARK:
        kept = kept.rstrip()
    if at < 0 or not str.__str__(kept).rstrip().endswith(text.strip()):
        raise _refusal(
            "have text that the checkpoint's chat template writes unchanged, but the template "
            "changes it or leaves it out",
            argument,
        )
    return kept


def _refusal(rule: str, argument: ArgumentName) -> InvalidArgument:
    return InvalidArgument(
        f"{argument.call}: to be continued, the last message of `{argument.name}` must {rule}.",
        param=argument.name,
    )
