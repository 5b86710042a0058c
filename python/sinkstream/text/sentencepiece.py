"""Builds SentencePiece-style BPE tokenizers, which GGUF files call `llama`.

Such a file holds pieces and scores and no merges: at every step SentencePiece merges the adjacent
pair whose union is the piece with the highest score, the leftmost of equals. Every way to cut a
piece into two pieces is therefore a merge, and the scores rank them. (Unigram would choose another
segmentation: it maximises the sum of the scores.) The result equals SentencePiece's for all files
whose ordinary pieces have different scores, which its own trainer guarantees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tokenizers import Tokenizer, decoders, models, normalizers

SPACE = "\u2581"  # ▁, which stands for a space inside a piece


def sentencepiece_tokenizer(
    vocabulary: Mapping[str, int],
    ordinary: Iterable[str],
    scores: Sequence[float],
    *,
    unknown: str | None,
    add_space_prefix: bool,
) -> Tokenizer:
    """Build a SentencePiece-style BPE tokenizer without special tokens.

    Args:
        vocabulary: All pieces, with their ids.
        ordinary: Those that ordinary text is merged into; control, unknown and byte pieces are not.
        scores: The score of each id.
        unknown: The piece for characters that have neither a piece nor byte pieces.
        add_space_prefix: Whether a text is encoded as if a space stood before it.
    """
    tokenizer = Tokenizer(
        models.BPE(
            dict(vocabulary),
            ranked_merges(vocabulary, ordinary, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    replace = normalizers.Replace(" ", SPACE)
    # As SentencePiece does, a text that starts with a space gets a second one.
    prefix = [normalizers.Prepend(SPACE)] if add_space_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, replace])
    strip = [decoders.Strip(" ", 1, 0)] if add_space_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def ranked_merges(
    vocabulary: Mapping[str, int], ordinary: Iterable[str], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Return every cut of an ordinary piece into two ordinary characters or pieces, best first."""
    mergeable = set(ordinary)
    found: list[tuple[float, int, int, str, str]] = []
    for piece in mergeable:
        score = scores[vocabulary[piece]]
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in mergeable and right in mergeable:
                # Of two cuts of one piece the longer left part goes first: of overlapping pairs
                # in a run of equal characters that is the leftmost.
                found.append((-score, -cut, vocabulary[piece], left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]
