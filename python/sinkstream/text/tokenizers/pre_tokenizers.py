"""The pre-tokenizers that GGUF files name: rules that split a text into words.

Merges happen only inside words. The table defines the names as llama.cpp's `llm_tokenizer_bpe`
does; the models' own `tokenizer.json` files confirm it.
"""

from __future__ import annotations

from dataclasses import dataclass

from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError

SINGLE_DIGITS = r"\p{N}"
"""Each digit is a word of its own."""

GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"  # a letter's word may begin with one other character
_WORDS = rf"{_BEFORE}\p{{L}}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_BREAKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = rf"{_SIGNS}|{_BREAKS}"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
# Accents belong to the letters before them.
_QWEN35 = (
    rf"{_CONTRACTIONS}|{_BEFORE}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
    rf"|{_BREAKS}"
)
# A word begins where the case rises.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SMALL, _LARGE = rf"{_BEFORE}{_UPPER}*{_LOWER}+", rf"{_BEFORE}{_UPPER}+{_LOWER}*"
_PATHS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BREAKS}"
_TEKKEN = rf"{_SMALL}|{_LARGE}|\p{{N}}|{_PATHS}"
_GPT4O = rf"{_SMALL}{_CONTRACTIONS}?|{_LARGE}{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_PATHS}"
_YOUTU = rf"{_SMALL}{_CONTRACTIONS}?|{_LARGE}{_CONTRACTIONS}?|\p{{N}}|{_PATHS}"
_YOUTU_ASIAN = (
    r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
)
# Letters that have a case, in the version of Unicode that the model was trained with.
_CASED = (
    r"[\p{Lu}\p{Ll}\p{Lt}&&[^\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c8f\u2d00-\u2d2f\ua790-\ua7ff"
    r"\uab30-\uab6f\x{10570}-\x{105bf}\x{10d50}-\x{10d8f}\x{16e40}-\x{16edf}"
    r"\x{1d400}-\x{1dfff}]]"
)
_HAN_HANGUL = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_HAN_KANA = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_ASCII_SIGN = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_V3_WORDS = rf"{_ASCII_SIGN}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
_V3 = rf"{_V3_WORDS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BREAKS}"
_SPARK = rf"{_V3_WORDS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+"
_PUNCTUATION = r"[\p{P}\$\+<=>\^~\|`]+"
_SENTENCES = r" ?[^(\s|.,!?…。，、।۔،)]+"
_SEED = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BREAKS}"
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_EXAONE_MOE = (
    rf"{_CONTRACTIONS}|{_BEFORE}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_JAIS2_SPACES = "|".join(rf"\s{{{length}}}(?!\S)" for length in (512, 256, 128, 64, 32, 16, 8, 4))
_JAIS2 = (
    rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_SIGNS}|\s*[\r\n]+|{_JAIS2_SPACES}"
    r"|\s{1,2}(?!\S)|\s"
)
# Digits in threes, counted from the right.
_THREES = r"\p{Nd}{1,3}(?=(?:\p{Nd}{3})*\b)"


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


_PLAIN = PreTokenizer((GPT2_SPLIT,))
_SINGLE_DIGITS = PreTokenizer((SINGLE_DIGITS, GPT2_SPLIT))
_LLAMA = PreTokenizer((_LLAMA3,), whole_words=True, adds_bos=True)
# Some of the models' own tokenizers normalize; llama.cpp never does, and differs on decomposed
# accents.
_NEOX = PreTokenizer((GPT2_SPLIT,), composed=True)
_QWEN = PreTokenizer((_QWEN2,), composed=True)
_DEEPSEEK_V3 = PreTokenizer((r"\p{N}{1,3}", _HAN_KANA, _V3))
_O200K = PreTokenizer((_GPT4O,))
_LING = PreTokenizer((_BAILING,))
_AYA = PreTokenizer((_THREES, _GPT4O))

PRE_TOKENIZERS = {
    "a.x-4.0": _PLAIN,
    "bailingmoe": _LING,
    "bailingmoe2": _LING,
    "bloom": PreTokenizer((_SENTENCES,)),
    "chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "codeshell": _SINGLE_DIGITS,
    "cohere2moe": _AYA,
    "command-r": PreTokenizer((SINGLE_DIGITS, GPT2_SPLIT), composed=True),
    "dbrx": PreTokenizer((_LLAMA3,)),
    "deepseek-coder": PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_HANGUL, SINGLE_DIGITS)
    ),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?{_CASED}+",
            r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            _HAN_HANGUL,
            r"\p{N}+",
        )
    ),
    "deepseek-r1-qwen": _QWEN,
    "deepseek-v3": _DEEPSEEK_V3,
    # llama.cpp's choice for files whose converter did not know the model.
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2_SPLIT, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "exaone": _SINGLE_DIGITS,
    "exaone-moe": PreTokenizer((_EXAONE_MOE,)),
    "exaone4": _PLAIN,
    "falcon": PreTokenizer((_PUNCTUATION, GPT2_SPLIT, r"[0-9][0-9][0-9]")),
    "falcon-h1": _LLAMA,
    "falcon3": _LLAMA,
    "gigachat": _PLAIN,
    "glm4": PreTokenizer((_LLAMA3,), whole_words=True),
    "glm5": PreTokenizer((_LLAMA3,), whole_words=True),
    "gpt-2": _PLAIN,
    "gpt-4o": _O200K,
    "gpt3-finnish": PreTokenizer((_SENTENCES,)),
    "granite-docling": _PLAIN,
    "grok-2": PreTokenizer((_QWEN2,)),
    "hunyuan": PreTokenizer((_QWEN2,)),
    "hunyuan-dense": _DEEPSEEK_V3,
    "hy_v4": _DEEPSEEK_V3,
    "jais": _PLAIN,
    "jais-2": PreTokenizer((_JAIS2,)),
    "joyai-llm": _DEEPSEEK_V3,
    "kanana2": _O200K,
    "kormo": PreTokenizer((_QWEN2,)),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", _QWEN2)),
    "lfm2": _LLAMA,
    "llada-moe": _LING,
    "llama-bpe": _LLAMA,
    "llama-v3": _LLAMA,
    "llama3": _LLAMA,
    "llama4": _O200K,
    "megrez": PreTokenizer((_QWEN2,)),
    "mellum": _PLAIN,
    "mellum2": _SINGLE_DIGITS,
    "midm-2.0": _LLAMA,
    "minerva-7b": _SINGLE_DIGITS,
    "minicpm5": PreTokenizer(
        (r"\p{N}{1,3}", rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}+|{_REST}"), whole_words=True
    ),
    "minimax-m2": _O200K,
    "mpt": _NEOX,
    "olmo": _NEOX,
    "phi-2": _PLAIN,
    "pixtral": _LLAMA,
    "poro-chat": PreTokenizer((_SENTENCES,)),
    "qwen2": _QWEN,
    "qwen35": PreTokenizer((_QWEN35,), composed=True),
    "refact": _SINGLE_DIGITS,
    "seed-coder": PreTokenizer((_SEED,)),
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "smollm": _SINGLE_DIGITS,
    "solar-open": PreTokenizer((_QWEN2,)),
    "spark2_5": PreTokenizer((r"\p{N}{1,3}", _HAN_KANA, _SPARK, SINGLE_DIGITS)),
    "stablelm2": PreTokenizer((_QWEN2,)),
    "starcoder": _SINGLE_DIGITS,
    "superbpe": PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "talkie": _O200K,
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True, adds_bos=True),
    "tiny_aya": _AYA,
    "trillion": _PLAIN,
    "ufakzeka": PreTokenizer((rf"{_WORDS}|\p{{N}}|{_REST}",)),
    "viking": PreTokenizer((_SENTENCES, SINGLE_DIGITS)),
    "youtu": PreTokenizer((_YOUTU_ASIAN, _YOUTU), whole_words=True),
}
"""By the names that `tokenizer.ggml.pre` may have."""


# Of several names for the same rule, the ones that programs know best.
_USUAL = ("llama-bpe", "qwen2", "smollm", "gpt-2", "gpt-4o", "deepseek-v3", "dbrx")


def name_of(splits: tuple[str, ...], *, whole_words: bool, composed: bool) -> str | None:
    """Return the name of the pre-tokenizer with this rule, or None if there is none."""
    wanted = (splits, whole_words, composed)
    for name in (*_USUAL, *sorted(PRE_TOKENIZERS)):
        rule = PRE_TOKENIZERS[name]
        if (rule.splits, rule.whole_words, rule.composed) == wanted:
            return name
    return None


def pre_tokenizer(name: str) -> PreTokenizer:
    """Return the pre-tokenizer with this name.

    Raises:
        CheckpointError: The name is unknown; the message lists the known ones.
    """
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        raise CheckpointError(
            f"load: GGUF metadata has the pre-tokenizer {quoted(name)}; "
            f"the supported ones are {', '.join(sorted(PRE_TOKENIZERS))}."
        )
    return found
