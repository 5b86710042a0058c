"""The pre-tokenizers that GGUF files name: rules that split a text into words.

Merges happen only inside words. The table defines the names as llama.cpp's `llm_tokenizer_bpe`
does; the models' own `tokenizer.json` files confirm it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How one pre-tokenizer splits a text into words."""

    splits: tuple[str, ...]
    """Regular expressions, applied one after another; each isolates what it matches."""
    whole_words: bool = False
    """Whether a word that is a token always becomes that token, whatever the merges would give."""
    composed: bool = False
    """Whether the text is first normalized to Unicode's composed form (NFC)."""
    adds_bos: bool = False
    """Whether a text starts with the beginning-of-text token, if the file does not say."""


_PLAIN = PreTokenizer((_GPT2,))
_SINGLE_DIGITS = PreTokenizer((r"\p{N}", _GPT2))
_LLAMA = PreTokenizer((_LLAMA3,), whole_words=True, adds_bos=True)
# The models' own tokenizers normalize; llama.cpp does not, and differs on decomposed accents.
_QWEN = PreTokenizer((_QWEN2,), composed=True)

PRE_TOKENIZERS = {
    "dbrx": PreTokenizer((_LLAMA3,)),
    "deepseek-r1-qwen": _QWEN,
    # llama.cpp's choice for files whose converter did not know the model.
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "exaone4": _PLAIN,
    "falcon3": _LLAMA,
    "gpt-2": _PLAIN,
    "lfm2": _LLAMA,
    "llama-bpe": _LLAMA,
    "llama-v3": _LLAMA,
    "llama3": _LLAMA,
    "mpt": _PLAIN,
    "olmo": _PLAIN,
    "phi-2": _PLAIN,
    "pixtral": _LLAMA,
    "qwen2": _QWEN,
    "refact": _SINGLE_DIGITS,
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "smollm": _SINGLE_DIGITS,
    "stablelm2": PreTokenizer((_QWEN2,)),
    "starcoder": _SINGLE_DIGITS,
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True, adds_bos=True),
}
"""By the names that `tokenizer.ggml.pre` may have."""


def pre_tokenizer(name: str) -> PreTokenizer:
    """Return the pre-tokenizer with this name.

    Raises:
        CheckpointError: The name is unknown; the message lists the known ones.
    """
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        raise CheckpointError(
            f"load: GGUF metadata has the pre-tokenizer {quoted(name)}; "
            f"supported are {', '.join(sorted(PRE_TOKENIZERS))}."
        )
    return found
