"""Encodes prompts, messages and parts of conversations with a checkpoint's text alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.request.template_variables import Thinking
from sinkstream.request.tools import Tools
from sinkstream.text import chat_format
from sinkstream.text import prompt as prompts
from sinkstream.text.conversation_formats import ConversationFormats
from sinkstream.text.turn_format import TurnFormat


def encode_chat(
    text: TextFormat,
    messages: Sequence[Any],
    *,
    add_generation_prompt: bool = True,
    is_open: bool = False,
    thinking: Thinking = None,
    tools: Sequence[Mapping[str, Any]] = (),
    timeout_s: float = chat_format.TEMPLATE_SECONDS,
) -> list[int]:
    """Return the ids of messages, as a stream's prompt, after at most `timeout_s` in a template."""
    given = Tools(tuple(tools)) if tools else None
    formats = ConversationFormats(text, None)
    with patch.object(chat_format, "TEMPLATE_SECONDS", timeout_s):
        return formats.encode_chat(
            messages,
            thinking,
            given,
            add_generation_prompt=add_generation_prompt,
            is_open=is_open,
        )


def encode_prompt(text: TextFormat, vocab_size: int, prompt: Any) -> list[int]:
    """Return the ids of a prompt of any kind."""
    if prompts.is_chat(prompt):
        return ConversationFormats(text, None).encode_chat(prompt)
    return prompts.encode_prompt(text, vocab_size, prompt)


def detect_turn_format(
    text: TextFormat,
    thinking: Thinking = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> TurnFormat:
    """Return the parts of conversations, as a session reads them."""
    given = Tools(tuple(tools)) if tools else None
    return ConversationFormats(text, None).turns(thinking, given)
