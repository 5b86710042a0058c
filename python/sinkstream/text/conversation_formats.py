"""A checkpoint's chat template in use: ids of conversations, their parts, and tags of thoughts.

What renders is imported, and each form found by rendering, when it is first needed. Clients of a
server choose `thinking` and tools, so only recently used formats are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import InvalidArgument, warn_caller
from sinkstream.request.checks import PROMPT, ArgumentName
from sinkstream.request.template_variables import Thinking, template_variables
from sinkstream.request.tools import Tools
from sinkstream.structured.lru_cache import LruCache
from sinkstream.text.message_forms import check_open
from sinkstream.text.messages import (
    MESSAGES,
    SYSTEM,
    TEXT,
    Message,
    check_messages,
    check_role,
    check_text,
    text_of_parts,
)
from sinkstream.text.plain_text import plain_encoder
from sinkstream.text.thought_reader import ThoughtTags
from sinkstream.text.tokenizers.encoding_limit import check_texts
from sinkstream.text.tokenizers.token_bytes import TokenBytes
from sinkstream.text.tools.call_format import CallFormat

if TYPE_CHECKING:
    from sinkstream.text.chat_format import ChatFormat
    from sinkstream.text.template_turns import Calls
    from sinkstream.text.turn_format import TurnFormat

MOST_TURNS = 32
MOST_TAGS = 16
"""Templates have a handful of efforts."""


class ConversationFormats:
    """The formats of one checkpoint. Any thread may call it.

    Attributes:
        text: Its tokenizer and template.
    """

    def __init__(self, text: TextFormat, table: TokenBytes | None) -> None:
        """Remember the tokenizer and template; `table` is None without a tokenizer."""
        self.text = text
        self._table = table
        self._chats: LruCache[tuple[Thinking, str], ChatFormat] = LruCache(MOST_TURNS)
        self._turns: LruCache[tuple[Thinking, str], TurnFormat] = LruCache(MOST_TURNS)
        self._tags: LruCache[Thinking, ThoughtTags | None] = LruCache(MOST_TAGS)
        self._calls: LruCache[Thinking, CallFormat | str] = LruCache(MOST_TAGS)

    def chat(
        self, thinking: Thinking, tools: Tools | None = None, argument: ArgumentName = PROMPT
    ) -> ChatFormat:
        """Return what renders and encodes conversations.

        Args:
            thinking: As `check_thinking` returns it.
            tools: What the model may call.
            argument: The argument that contains a conversation, for errors.

        Raises:
            InvalidArgument: There is no tokenizer or template, the template has an error, or it has
                no variable for `thinking`.
        """
        from sinkstream.text.chat_format import ChatFormat  # with Jinja, 2 MB

        text = self.text
        if text.tokenizer is None or text.chat_template is None:
            lacks = "tokenizer" if text.tokenizer is None else "chat template"
            remedy = "Pass token ids" if text.tokenizer is None else "Pass a string or token ids"
            raise InvalidArgument(
                "stream: `prompt` must not be a list of messages, because the checkpoint has "
                f"no {lacks}. {remedy} instead.",
                param="prompt",
            )
        make = partial(
            ChatFormat,
            text,
            text.tokenizer,
            text.chat_template,
            argument,
            thinking=thinking,
            tools=() if tools is None else tools.definitions,
            is_generic=tools is not None and self.has_generic_tools(thinking, tools),
        )
        return self._chats.get((thinking, "" if tools is None else tools.key), make)

    def checked(self, messages: Sequence[Any]) -> list[Message]:
        """Return a conversation as plain data, which is about to be rendered.

        Raises:
            TypeError: It is not a list of mappings, or a value has the wrong type.
            InvalidArgument: It is empty, a message is malformed, or its texts are longer than the
                caller may encode.
        """
        checked = check_messages(messages)
        if self.text.tokenizer is not None:
            check_texts(self.text.tokenizer, checked)
        return checked

    def encode_chat(
        self,
        messages: Sequence[Any],
        thinking: Thinking = None,
        tools: Tools | None = None,
        *,
        add_generation_prompt: bool = True,
        is_open: bool = False,
    ) -> list[int]:
        """Encode a conversation.

        Args:
            messages: Mappings with `role` (one of `messages.ROLES`) and `content`, a string or a
                list of text parts; None if there are `tool_calls`. It is always plain text,
                whatever it looks like.
            thinking: Whether the model thinks before it replies, or with which effort. If None, the
                template's default.
            tools: What the model may call.
            add_generation_prompt: Whether to end with the start of the assistant's reply.
            is_open: Whether to end with the text of the last message, which the reply continues:
                then there is no generation prompt.

        Returns:
            Token ids. If no message contains control tokens, they equal those of transformers'
            `apply_chat_template`.

        Raises:
            TypeError: `messages` is not a list of mappings, or a value has the wrong type.
            InvalidArgument: There are no messages, a message is malformed, the checkpoint has no
                tokenizer or template, or the template fails or refuses. Or the last message cannot
                be continued.
        """
        checked = self.checked(messages)
        chat = self.chat(thinking, tools)
        ids = chat.encode_whole(checked, add_generation_prompt, is_open=is_open)
        if omitted := chat.omitted(checked):
            warn_caller(
                f'stream: `prompt` has a message with the role "{omitted}", but the checkpoint\'s '
                "chat template omits it."
            )
        return ids

    def turns(self, thinking: Thinking, tools: Tools | None = None) -> TurnFormat:
        """Return the parts of conversations, for the same arguments.

        Raises:
            InvalidArgument: The chat template fails, or cannot be split.
        """
        find = partial(self._find_turns, thinking, tools)
        return self._turns.get((thinking, "" if tools is None else tools.key), find)

    def _find_turns(self, thinking: Thinking, tools: Tools | None) -> TurnFormat:
        """Detect the parts of conversations.

        Without a template there are no roles: the session is one growing text that opens with the
        beginning-of-text token, and messages and replies follow each other directly. Without a
        tokenizer there is no text at all: only ids can be fed.
        """
        if self.text.tokenizer is None or self.text.chat_template is None:
            template_variables((), thinking, TEXT)  # refuses any
            return PlainTurns(self.text)
        from sinkstream.text import turn_format

        chat = self.chat(thinking, tools, TEXT)
        return turn_format.turn_format_of(chat, self.text.end_token_ids)

    def date_in(self, thinking: Thinking) -> str:
        """Return the date that the template writes now; "" if it writes none."""
        if self.text.tokenizer is None or self.text.chat_template is None:
            return ""
        writes = self.chat(thinking, argument=TEXT).template.may_write_date
        return str(date.today()) if writes else ""

    def tags(self, thinking: Thinking) -> ThoughtTags | None:
        """Return how to tell thoughts from text in replies to messages; None if there are none."""
        return self._tags.get(thinking, partial(self._find_tags, thinking))

    def has_generic_tools(self, thinking: Thinking, tools: Tools) -> bool:
        """Return whether tools have the generic form: asked for, or the template has none."""
        return tools.is_generic or isinstance(self._own_calls(thinking), str)

    def calls(self, thinking: Thinking, tools: Tools) -> CallFormat:
        """Return how the model calls tools.

        Raises:
            InvalidArgument: There is no chat template, or replies have channels.
        """
        from sinkstream.text.tools.generic_form import GENERIC_CALLS
        from sinkstream.text.tools.learn_call_format import has_channels

        found = self._own_calls(thinking)
        if not self.has_generic_tools(thinking, tools):
            assert isinstance(found, CallFormat)
            return found
        tags = self.tags(thinking)
        has_template = self.text.tokenizer is not None and self.text.chat_template is not None
        is_impossible = not has_template or has_channels(None if tags is None else tags.form)
        if is_impossible and isinstance(found, str):
            raise InvalidArgument(found, param="tools")
        return GENERIC_CALLS

    def _own_calls(self, thinking: Thinking) -> CallFormat | str:
        """Return how the template itself writes calls, or a sentence that says why it cannot."""
        return self._calls.get(thinking, partial(self._find_calls, thinking))

    def _find_calls(self, thinking: Thinking) -> CallFormat | str:
        from sinkstream.text.tools.learn_call_format import learn_call_format  # with Jinja, 2 MB

        tags = self.tags(thinking)
        try:
            return learn_call_format(
                self.text, thinking, None if tags is None else tags.form.spelled()
            )
        except InvalidArgument as error:
            return str(error)

    def _find_tags(self, thinking: Thinking) -> ThoughtTags | None:
        from sinkstream.text.find_thoughts import find_thoughts

        text = self.text
        if text.tokenizer is None or text.chat_template is None or self._table is None:
            return None
        form = find_thoughts(self.chat(thinking, argument=TEXT), text.tokenizer)
        return None if form is None else ThoughtTags(form, self._table, text.end_token_ids)


@dataclass(frozen=True)
class PlainTurns:
    """Parts of one growing text, if the checkpoint has no chat template, or no tokenizer either.

    Each message continues the text. See `TurnFormat`.
    """

    text: TextFormat

    @property
    def is_exact(self) -> bool:
        """Whether the session takes only ids, which need no splitting."""
        return self.text.tokenizer is None

    @property
    def difference(self) -> str:
        """A sentence that says how turns are encoded."""
        if self.is_exact:
            return ""
        return (
            "The checkpoint has no chat template: the session is one growing text without roles, "
            "whose parts are encoded separately."
        )

    def opening(self, system: str | None) -> list[int]:
        """Return the beginning-of-text token, if the checkpoint adds one, and the system text."""
        if system is None:
            return self.text.bos_ids
        return self.text.bos_ids + self._encode(system, SYSTEM, is_first=True)

    def whole(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of all texts; the roles have no effect."""
        return self.history(messages)

    def history(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of all texts; the roles have no effect."""
        ids = list(self.text.bos_ids)
        for i, message in enumerate(messages):
            ids += self._encode(_text_of(message), MESSAGES, is_first=i == 0)
        return ids

    def user(self, content: str, *, after: str | None) -> list[int]:
        """Return the ids of a text."""
        return self._encode(content, TEXT, is_first=after is None)

    def message(self, role: str, content: str, *, after: str | None) -> list[int]:
        """Return the ids of the text; the role has no effect."""
        check_role(role)
        return self._encode(content, TEXT, is_first=after is None)

    def request(
        self, said: Message, *more: Message, after: str | None, calls: Calls = ()
    ) -> list[int]:
        """Return the ids of messages' texts."""
        ids = self._encode(_text_of(said), MESSAGES, is_first=after is None)
        for message in more:
            ids += self.reply(_text_of(message))
        return ids

    def read(self, said: Message, *, after: str | None, calls: Calls = ()) -> list[int]:
        """Return the ids of a message's text."""
        return self.request(said, after=after)

    def reply(self, content: str) -> list[int]:
        """Return the ids of a text."""
        return self._encode(content, TEXT, is_first=False)

    def open_reply(
        self, said: Message, *more: Message, after: str | None, calls: Calls = ()
    ) -> list[int]:
        """Return the ids of messages' texts."""
        check_open((said, *more), PROMPT)
        return self.request(said, *more, after=after)

    def exchange(
        self,
        said: Message,
        reply: Message,
        *,
        after: str | None,
        is_earlier: bool = False,
        calls: Calls = (),
    ) -> list[int]:
        """Return the ids of two texts."""
        return self.request(said, reply, after=after)

    def earlier_turn(
        self,
        messages: Sequence[Message],
        *,
        after: str | None,
        before: tuple[str, ...],
        calls: Calls = (),
    ) -> list[int]:
        """Return the ids of all texts."""
        return self.request(*messages, after=after)

    def closing(self, last_id: int | None, calls: Calls = ()) -> list[int]:
        """Return no ids: the text just continues."""
        return []

    def _encode(self, content: str, argument: ArgumentName, *, is_first: bool) -> list[int]:
        content = check_text(content, argument)
        if self.text.tokenizer is None:
            raise InvalidArgument(
                f"{argument} must not be a string, because the checkpoint has no tokenizer. "
                "Pass token ids instead.",
                param=argument.name,
            )
        encoder = plain_encoder(self.text.tokenizer)
        if is_first:
            return encoder.encode(content, argument=argument)
        return encoder.encode_after("a", content, argument=argument)  # any letter: not at the start


def _text_of(message: Message) -> str:
    content = message.get("content")
    if content is None:
        raise InvalidArgument(
            f"{MESSAGES} must have `content` in every message: the checkpoint has no chat "
            "template.",
            param=MESSAGES.name,
        )
    return content if isinstance(content, str) else text_of_parts(content)
