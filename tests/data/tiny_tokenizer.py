"""A byte-level BPE tokenizer of 256 bytes, a few merges and three special tokens.

Its merges are listed and not trained, so it is the same everywhere. It is written as tokenizer.json
and as GGUF metadata; both must encode alike.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gguf
    from tokenizers import Tokenizer

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Ids 0, 1 and 2: end of text, start and end of a chat message."""

# fmt: off
MERGES = (
    "Ġ t", "h e", "a n", "i n", "Ġt he", "e r", "o n", "r e", "Ġ a", "Ġ w", "an d", "Ġ s",
    "o u", "in g", "Ġ o", "e n", "o r", "i s", "Ġ b", "Ġ and", "Ġo f", "Ġw a", "Ġwa s", "l l",
    "Ġs i", "Ġsi n", "Ġsin k",
)
# fmt: on

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class TinyTokenizer:
    """The tokenizer with GGUF's pre-tokenizer "smollm" or "qwen2"."""

    pre: str

    @property
    def tokens(self) -> list[str]:
        """List the tokens in the order of their ids, in the alphabet of byte-level BPE."""
        from tokenizers.pre_tokenizers import ByteLevel

        merged = [merge.replace(" ", "") for merge in MERGES]
        return [*SPECIAL_TOKENS, *sorted(ByteLevel.alphabet()), *merged]

    def build(self) -> Tokenizer:
        """Build the tokenizer with the `tokenizers` package."""
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
        from tokenizers import pre_tokenizers as pre

        merges = [(left, right) for left, right in (merge.split(" ") for merge in MERGES)]
        vocab = {token: i for i, token in enumerate(self.tokens)}
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        if self.pre == "smollm":
            split = [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)]
        else:
            tokenizer.normalizer = normalizers.NFC()
            split = [
                pre.Split(Regex(_QWEN2_SPLIT), "isolated"),
                pre.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        tokenizer.pre_tokenizer = pre.Sequence(split)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
        return tokenizer

    def end_ids(self) -> dict[str, int]:
        """Return the fields of config.json that name token ids."""
        return {"bos_token_id": 1, "eos_token_id": 2}

    def write_folder(self, folder: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json."""
        self.build().save(str(folder / "tokenizer.json"))
        fields: dict[str, Any] = {
            "add_bos_token": False,
            "bos_token": SPECIAL_TOKENS[1],
            "eos_token": SPECIAL_TOKENS[2],
            "chat_template": CHAT_TEMPLATE,
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(fields, indent=2))

    def write_gguf(self, writer: gguf.GGUFWriter, vocab_size: int) -> None:
        """Write the tokenizer as metadata; embedding rows without a token get a filler token."""
        from gguf import TokenType

        tokens = self.tokens
        fillers = [f"[PAD{i}]" for i in range(len(tokens), vocab_size)]
        types = [TokenType.CONTROL] * len(SPECIAL_TOKENS)
        types += [TokenType.NORMAL] * (len(tokens) - len(SPECIAL_TOKENS))
        types += [TokenType.UNUSED] * len(fillers)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list([*tokens, *fillers])
        writer.add_token_types(types)
        writer.add_token_merges(list(MERGES))
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(False)
        writer.add_chat_template(CHAT_TEMPLATE)
