"""Builds the tokenizers of GGUF files, by the kind of their vocabulary.

- Byte-level BPE, which GGUF files call `gpt2`. A file holds the vocabulary and the merges, but only
  the name of the pre-tokenizer, which `pre_tokenizers.py` defines.
- SentencePiece-style BPE, called `llama`. Such a file holds pieces and scores, but no merges: at
  every step SentencePiece merges the adjacent pair whose union is the piece with the highest score,
  the leftmost pair on a tie. Every way to split a piece into two pieces is therefore a merge, and
  the scores rank them. (Unigram would segment differently: it maximizes the sum of the scores.) The
  result equals SentencePiece's for all files whose normal pieces have distinct scores, which its
  own trainer guarantees.
- Gemma 4's: byte-pair merges of characters, in which "▁" stands for a space. Like a byte-level
  tokenizer it has merges and no scores; like a SentencePiece one it merges characters, and has byte
  pieces for characters that it lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from sinkstream import _core
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError
from sinkstream.text.tokenizers.pre_tokenizers import SINGLE_DIGITS, PreTokenizer

SPACE = "\u2581"  # ▁, which stands for a space inside a piece

# At worst, finding the merges of a piece takes time quadratic in its length. Real pieces have fewer
# than 100 characters; the largest vocabularies, of 262,144 pieces, have 2 million characters in
# total and half a million merges.
MAX_PIECE_CHARACTERS = 1024
MAX_CHARACTERS = 1 << 22
MAX_MERGES = 1 << 20


def byte_level_tokenizer(
    vocabulary: dict[str, int], merges: Sequence[str], rule: PreTokenizer
) -> Tokenizer:
    """Build a byte-level BPE tokenizer without special tokens.

    Args:
        vocabulary: Tokens in GPT-2's byte alphabet, with their ids.
        merges: Pairs of tokens with a space between them, in the order of merging.
        rule: How texts are split into words.
    """
    tokenizer = Tokenizer(merging_model(vocabulary, merges, ignore_merges=rule.whole_words))
    if rule.composed:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *map(_isolated, rule.splits),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def merging_model(vocabulary: dict[str, int], merges: Sequence[str], **options: Any) -> models.BPE:
    """Return the model of a vocabulary and its merges.

    Raises:
        CheckpointError: A merge is not a pair of tokens, or needs one that does not exist.
    """
    try:
        return models.BPE(vocabulary, _core.split_pairs(list(merges)), **options)
    except Exception as error:  # the package raises no specific types
        raise _bad_merge(vocabulary, merges, error) from None


def _isolated(split: str) -> pre_tokenizers.PreTokenizer:
    if split == SINGLE_DIGITS:  # as in the models' own files; its Unicode is newer
        return pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Split(Regex(split), "isolated")


def _bad_merge(
    vocabulary: dict[str, int], merges: Sequence[str], error: Exception
) -> CheckpointError:
    """Return the error for the first merge that is wrong."""
    where = "load: GGUF metadata: entry {} of `tokenizer.ggml.merges`"
    for index, merge in enumerate(merges):
        pair = merge.split(" ")
        if len(pair) != 2 or not all(token in vocabulary for token in [*pair, "".join(pair)]):
            return CheckpointError(
                f"{where.format(index)} must be two tokens, separated by a space, that together "
                f"spell a third, but is {quoted(merge)}."
            )
    return CheckpointError(f"load: GGUF metadata has no usable merges: {quoted(str(error))}.")


def sentencepiece_tokenizer(
    vocabulary: dict[str, int],
    tokens: list[str],
    ordinary: list[int],
    scores: list[float],
    *,
    unknown: str | None,
    add_space_prefix: bool,
) -> Tokenizer:
    """Build a SentencePiece-style BPE tokenizer without special tokens.

    Args:
        vocabulary: All pieces, with their ids.
        tokens: The piece of each id.
        ordinary: The ids of ordinary text, without control, unknown and byte pieces.
        scores: The score of each id.
        unknown: The piece for characters that have neither a piece nor byte pieces.
        add_space_prefix: Whether a space is prepended to a text.
    """
    tokenizer = Tokenizer(
        models.BPE(
            vocabulary,
            ranked_merges(tokens, ordinary, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    replace = normalizers.Replace(" ", SPACE)
    # As in SentencePiece, a text that starts with a space gets a second one.
    prefix = [normalizers.Prepend(SPACE)] if add_space_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, replace])
    strip = [decoders.Strip(" ", 1, 0)] if add_space_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def ranked_merges(
    tokens: list[str], ordinary: list[int], scores: list[float]
) -> list[tuple[str, str]]:
    """Return every split of an ordinary piece into two ordinary pieces, best first.

    Args:
        tokens: The piece of each id.
        ordinary: The ids of ordinary pieces.
        scores: The score of each id; never NaN.

    Raises:
        CheckpointError: A piece is too long, or there are too many merges.
    """
    _check_lengths([tokens[token_id] for token_id in ordinary])
    merges = _core.ranked_merges(tokens, ordinary, scores, MAX_MERGES)
    if merges is None:
        raise CheckpointError(
            "load: GGUF metadata: the pieces of `tokenizer.ggml.tokens` must have at most "
            f"{MAX_MERGES} merges, but have more."
        )
    return merges


def _check_lengths(pieces: Collection[str]) -> None:
    lengths = list(map(len, pieces))
    if max(lengths, default=0) > MAX_PIECE_CHARACTERS:
        longest = max(pieces, key=len)
        raise CheckpointError(
            "load: GGUF metadata: a piece of `tokenizer.ggml.tokens` must have at most "
            f"{MAX_PIECE_CHARACTERS} characters, but {quoted(longest)} has {len(longest)}."
        )
    characters = sum(lengths)
    if characters > MAX_CHARACTERS:
        raise CheckpointError(
            "load: GGUF metadata: the pieces of `tokenizer.ggml.tokens` must have at most "
            f"{MAX_CHARACTERS} characters in total, but have {characters}."
        )


def space_symbol_tokenizer(
    vocabulary: dict[str, int], merges: Sequence[str], *, unknown: str | None
) -> Tokenizer:
    """Build a tokenizer of Gemma 4's kind, without special tokens.

    Args:
        vocabulary: All pieces, with their ids.
        merges: Pairs of pieces with a space between them, in the order of merging.
        unknown: The piece for characters that have neither a piece nor byte pieces.
    """
    model = merging_model(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer
