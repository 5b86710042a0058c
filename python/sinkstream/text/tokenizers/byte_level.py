"""Builds byte-level BPE tokenizers, which GGUF files call `gpt2`.

A GGUF file holds the vocabulary and the merges, but only the name of the pre-tokenizer, which
`pre_tokenizers.py` defines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from sinkstream import _core
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError
from sinkstream.text.tokenizers.pre_tokenizers import SINGLE_DIGITS, PreTokenizer


def byte_level_tokenizer(
    vocabulary: dict[str, int], merges: Sequence[str], rule: PreTokenizer
) -> Tokenizer:
    """Build a byte-level BPE tokenizer without special tokens.

    Args:
        vocabulary: Tokens in GPT-2's byte alphabet, with their ids.
        merges: Pairs of tokens with a space between them, in the order of merging.
        rule: How texts are split into words.

    Raises:
        CheckpointError: A merge is not a pair of tokens, or needs one that does not exist.
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
