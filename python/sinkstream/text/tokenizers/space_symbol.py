"""Builds Gemma 4's tokenizer: byte-pair merges of characters, in which "▁" stands for a space.

It is between the two older kinds. Like a byte-level tokenizer it has merges and no scores; like a
SentencePiece one it merges characters, and has byte pieces for characters that it lacks.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, normalizers

from sinkstream.text.tokenizers.byte_level import merging_model
from sinkstream.text.tokenizers.sentencepiece import SPACE


def space_symbol_tokenizer(
    vocabulary: dict[str, int], merges: Sequence[str], *, unknown: str | None
) -> Tokenizer:
    """Build such a tokenizer without special tokens.

    Args:
        vocabulary: All pieces, with their ids.
        merges: Pairs of pieces with a space between them, in the order of merging.
        unknown: The piece for characters that have neither a piece nor byte pieces.

    Raises:
        CheckpointError: A merge is not a pair of pieces, or needs one that does not exist.
    """
    model = merging_model(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer
