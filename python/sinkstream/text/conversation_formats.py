"""What a checkpoint's conversations look like, by `thinking`: their parts, and tags of thoughts.

Each is found by rendering, when it is first needed; what renders is imported then. Clients of a
server choose `thinking` and tools, so only recently used formats are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.text.lru_cache import LruCache
from sinkstream.text.thinking import Thinking
from sinkstream.text.thoughts.thought_reader import ThoughtTags
from sinkstream.text.tokenizers.token_bytes import TokenBytes
from sinkstream.text.turns.turn_arguments import TEXT

if TYPE_CHECKING:
    from sinkstream.text.turns.turn_format import TurnFormat

MOST_TURNS = 32
MOST_TAGS = 16
"""Templates have a handful of efforts."""


class ConversationFormats:
    """The formats of one checkpoint. Any thread may call it."""

    def __init__(self, text: TextFormat, table: TokenBytes | None) -> None:
        """Remember the tokenizer and template; `table` is None without a tokenizer."""
        self._text = text
        self._table = table
        self._turns: LruCache[tuple[Thinking, str], TurnFormat] = LruCache(MOST_TURNS)
        self._tags: LruCache[Thinking, ThoughtTags | None] = LruCache(MOST_TAGS)

    def turns(
        self, thinking: Thinking, tools: Sequence[Mapping[str, Any]] = (), key: str = ""
    ) -> TurnFormat:
        """Return the parts of conversations.

        Args:
            thinking: As `check_thinking` returns it.
            tools: Definitions of tools, which are part of the beginning of a conversation.
            key: The text of these definitions.

        Raises:
            InvalidArgument: The chat template fails, or cannot be split.
        """
        from sinkstream.text.turns.turn_format import detect_turn_format

        find = partial(detect_turn_format, self._text, thinking, tools)
        return self._turns.get((thinking, key), find)

    def tags(self, thinking: Thinking) -> ThoughtTags | None:
        """Return how to tell thoughts from text in replies to messages; None if there are none."""
        return self._tags.get(thinking, partial(self._find_tags, thinking))

    def _find_tags(self, thinking: Thinking) -> ThoughtTags | None:
        from sinkstream.text.chat import ChatFormat
        from sinkstream.text.thoughts.find_thoughts import find_thoughts

        text = self._text
        if text.tokenizer is None or text.chat_template is None or self._table is None:
            return None
        chat = ChatFormat(text, text.tokenizer, text.chat_template, TEXT, thinking=thinking)
        form = find_thoughts(chat, text.tokenizer)
        return None if form is None else ThoughtTags(form, self._table, text.end_token_ids)
