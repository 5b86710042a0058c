"""Token ids and text of a model, as the routes show them. Blocks, so it is called on the pool."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import Tokenizer

from sinkstream.errors import InvalidArgument
from sinkstream.host import Host
from sinkstream.request.checks import PROMPT, ArgumentName, as_ids
from sinkstream.request.template_variables import Thinking
from sinkstream.request.tools import Tools
from sinkstream.text.plain_text import check_characters, plain_encoder
from sinkstream.text.prompt import encode_prompt
from sinkstream.text.tokenizers import encoding_of
from sinkstream.text.tokenizers.encoding_limit import check_count, check_length
from sinkstream.text.tokenizers.token_bytes import ReplyBytes, TokenBytes, decode_bytes


class Texts:
    """The tokenizer, the template and the bytes of each token."""

    def __init__(self, host: Host) -> None:
        self._formats = host.formats
        self._text = host.text
        self._vocab_size = host.spec.vocab_size
        self._table = host.table

    def encode(self, content: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the ids of text.

        Args:
            content: The text.
            add_special: Whether to begin with the beginning-of-text token, if there is one.
            parse_special: Whether the literals of control tokens stand for these tokens, rather
                than plain text.

        Raises:
            InvalidArgument: There is no tokenizer, or the text is not Unicode.
        """
        tokenizer = self._tokenizer()
        check_characters(content, PROMPT)
        ids = list(self._text.bos_ids) if add_special else []
        if parse_special:
            check_length(tokenizer, content)
            return ids + list(encoding_of(tokenizer, content).ids)
        return ids + (plain_encoder(tokenizer).encode(content) if content else [])

    def encode_prompt(self, prompt: str) -> list[int]:
        """Return the ids of a text; as a prompt, they are the same.

        Raises:
            Exception: Any error of a prompt that `Model.stream` raises.
        """
        return encode_prompt(self._text, self._vocab_size, prompt)

    def encode_messages(
        self,
        messages: Sequence[Any],
        thinking: Thinking,
        tools: Tools | None,
        *,
        add_generation_prompt: bool,
        is_open: bool,
    ) -> list[int]:
        """Return the ids of a conversation; see `ConversationFormats.encode_chat`."""
        return self._formats.encode_chat(
            messages,
            thinking,
            tools,
            add_generation_prompt=add_generation_prompt,
            is_open=is_open,
        )

    def decode(self, ids: Sequence[int], name: str = "tokens") -> str:
        """Return the text of ids, without control tokens; `name` is their argument.

        Raises:
            InvalidArgument: An id is not in the vocabulary, or there are too many.
            TypeError: An id is not an integer.
        """
        check_count(len(ids), ArgumentName("stream", name))
        checked = as_ids("stream", name, ids, self._vocab_size)
        return decode_bytes(self._bytes(), checked).decode("utf-8", "replace")

    def offsets(self, ids: Iterable[int]) -> list[int]:
        """Return, for each token, the number of characters before it.

        A token that begins within a character counts from the start of that character.
        """
        shown = ReplyBytes(self._bytes(), ())
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        offsets, length = [], 0
        for token_id in ids:
            offsets.append(length)
            length += len(decoder.decode(shown.next(token_id)))
        return offsets

    def piece(self, token_id: int) -> bytes:
        """Return the bytes of one token; for a control token, those of its literal."""
        if self.is_control(token_id):
            return str(self._tokenizer().id_to_token(token_id)).encode()
        return self._bytes().pieces[token_id]

    def is_control(self, token_id: int) -> bool:
        """Return whether a token is not part of any text, such as one that ends a reply."""
        return token_id in self._bytes().special

    def tokenizer_info(self) -> dict[str, Any]:
        """Return the control tokens and the chat template, in vLLM's form."""
        self._tokenizer()
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **self._text.special_tokens,
            "chat_template": self._text.chat_template,
        }

    @property
    def template(self) -> str | None:
        """Return the chat template's source, if there is one."""
        return self._text.chat_template

    def render(
        self,
        messages: Sequence[Any],
        thinking: Thinking,
        tools: Tools | None,
        *,
        add_generation_prompt: bool,
        is_open: bool,
    ) -> str:
        """Return what the chat template writes; see `encode_messages`."""
        tokenizer = self._tokenizer()
        if self._text.chat_template is None:
            raise InvalidArgument("stream: the checkpoint must have a chat template, but has none.")
        chat = self._formats.chat(thinking, tools)
        passage = chat.render(
            self._formats.checked(messages), add_generation_prompt, is_open=is_open
        )
        return "".join(
            piece if isinstance(piece, str) else str(tokenizer.id_to_token(piece))
            for piece in passage.pieces
        )

    @property
    def table(self) -> TokenBytes:
        """Return the bytes of each token.

        Raises:
            InvalidArgument: There is no tokenizer.
        """
        return self._bytes()

    def _tokenizer(self) -> Tokenizer:
        if self._text.tokenizer is None:
            raise InvalidArgument("stream: the checkpoint must have a tokenizer, but has none.")
        return self._text.tokenizer

    def _bytes(self) -> TokenBytes:
        self._tokenizer()
        assert self._table is not None
        return self._table
