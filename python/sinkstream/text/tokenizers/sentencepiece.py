"""Builds SentencePiece-style BPE tokenizers, which GGUF files call `llama`.

Such a file holds pieces and scores, but no merges: at every step SentencePiece merges the adjacent
pair whose union is the piece with the highest score, the leftmost pair on a tie. Every way to split
a piece into two pieces is therefore a merge, and the scores rank them. (Unigram would segment
differently: it maximizes the sum of the scores.) The result equals SentencePiece's for all files
whose normal pieces have distinct scores, which its own trainer guarantees.
"""

from __future__ import annotations

from collections.abc import Collection

from tokenizers import Tokenizer, decoders, models, normalizers

from sinkstream import _core
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError

SPACE = "\u2581"  # ▁, which stands for a space inside a piece

# At worst, finding the merges of a piece takes time quadratic in its length. Real pieces have fewer
# than 100 characters; the largest vocabularies, of 262,144 pieces, have 2 million characters in
# total and half a million merges.
MAX_PIECE_CHARACTERS = 1024
MAX_CHARACTERS = 1 << 22
MAX_MERGES = 1 << 20


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
