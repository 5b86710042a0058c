"""Small tokenizers of every supported family, and prose to train them on."""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    processors,
    trainers,
)
from tokenizers import pre_tokenizers as pre

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.text.tokenizers.from_gguf import text_format_from_gguf
from tests.data import tiny
from tests.python.text import templates

PROSE = (Path(tiny.__file__).parent / "prose.txt").read_text(encoding="utf-8")

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_SPLIT = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
QWEN_SPLIT = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"


def special(*tokens: str) -> list[AddedToken]:
    """Return control tokens."""
    return [AddedToken(token, special=True, normalized=False) for token in tokens]


def plain(*tokens: str) -> list[AddedToken]:
    """Return added tokens that are text."""
    return [AddedToken(token, special=False, normalized=False) for token in tokens]


def _train_byte_level(split: str, size: int = 600) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre.Sequence(
        [
            pre.Split(Regex(split), "isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([PROSE], trainer)
    return tokenizer


@lru_cache(maxsize=1)
def llama3() -> TextFormat:
    """Return byte-level BPE whose control tokens come after the model's own vocabulary."""
    tokenizer = _train_byte_level(LLAMA3_SPLIT)
    tokenizer.add_special_tokens(
        special(
            "<|begin_of_text|>",
            "<|end_of_text|>",
            *(f"<|reserved_special_token_{i}|>" for i in range(8)),
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
        )
    )
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=["<|begin_of_text|>", "$A"], special_tokens=[("<|begin_of_text|>", bos)]
    )
    return TextFormat(
        tokenizer,
        templates.LLAMA3,
        bos_token_id=bos,
        add_bos=True,
        end_token_ids=frozenset({tokenizer.token_to_id("<|eot_id|>")}),
        special_tokens={"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    )


@lru_cache(maxsize=1)
def qwen3() -> TextFormat:
    """Return byte-level BPE with normalization, and with added tokens that are text."""
    tokenizer = _train_byte_level(QWEN_SPLIT)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    tokenizer.add_tokens(plain("<tool_response>", "</tool_response>", "<think>", "</think>"))
    return TextFormat(
        tokenizer,
        templates.QWEN3,
        end_token_ids=frozenset({tokenizer.token_to_id("<|im_end|>")}),
        special_tokens={"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"},
    )


@lru_cache(maxsize=1)
def sentencepiece_metadata() -> dict[str, Any]:
    """Return a SentencePiece-style vocabulary as GGUF metadata holds it.

    Its pieces are merges of words, learned in order; the scores are the negative ranks, as
    SentencePiece's trainer gives them.
    """
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=700, show_progress=False, limit_alphabet=60)
    learner.train_from_iterator([PROSE], trainer)
    learned = sorted(learner.get_vocab().items(), key=lambda item: item[1])
    letters = [token for token, _ in learned if len(token) == 1]
    merged = [token for token, _ in learned if len(token) > 1]
    pieces = [*merged, *letters]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": templates.LLAMA2,
    }


def large_sentencepiece_metadata(count: int) -> dict[str, Any]:
    """Return a SentencePiece-style vocabulary of `count` random tokens as GGUF metadata holds it.

    Its pieces are pairs of earlier ones, the frequent ones more often, as in a learned vocabulary:
    of 262,144, they have 1.7 million characters and 308,000 merges.
    """
    draw = random.Random(0)
    letters = [*"abcdefghijklmnopqrstuvwxyz\u2581", *map(chr, range(0x4E00, 0x4E00 + 2000))]
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces = dict.fromkeys(letters)
    ranked = list(letters)
    while len(pieces) < count - len(special):
        first, second = (int(len(ranked) ** draw.random()) - 1 for _ in range(2))
        if draw.random() < 0.7:
            first = draw.randrange(len(ranked))
        piece = ranked[first] + ranked[second]
        if len(piece) <= 24 and piece not in pieces:
            pieces[piece] = None
            ranked.append(piece)
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(ranked)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*special, *ranked],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in range(len(ranked))],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


@lru_cache(maxsize=1)
def sentencepiece() -> TextFormat:
    """Return SentencePiece-style BPE that prepends a space to every text."""
    return text_format_from_gguf(sentencepiece_metadata())


@lru_cache(maxsize=1)
def sentencepiece_without_prefix() -> TextFormat:
    """Return SentencePiece-style BPE that leaves texts unchanged."""
    return text_format_from_gguf(
        sentencepiece_metadata() | {"tokenizer.ggml.add_space_prefix": False}
    )


@lru_cache(maxsize=1)
def metaspace_first() -> TextFormat:
    """Return SentencePiece as in newer folders: a space is prepended at the start only."""
    text = sentencepiece()
    assert text.tokenizer is not None
    tokenizer = Tokenizer(text.tokenizer.model)
    tokenizer.pre_tokenizer = pre.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = text.tokenizer.decoder
    tokenizer.add_special_tokens(special("<unk>", "<s>", "</s>"))
    return TextFormat(
        tokenizer,
        templates.LLAMA2,
        bos_token_id=1,
        add_bos=True,
        end_token_ids=frozenset({2}),
        special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
    )


FAMILIES = {
    "llama3": llama3,
    "metaspace_first": metaspace_first,
    "qwen3": qwen3,
    "sentencepiece": sentencepiece,
    "sentencepiece_without_prefix": sentencepiece_without_prefix,
}
