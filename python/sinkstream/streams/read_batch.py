"""A batch in which thoughts are separated from text."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sinkstream.text.thought_reader import ThoughtReader, joined

if TYPE_CHECKING:
    from sinkstream.streams.batch import Batch
    from sinkstream.text.thought_reader import Kind, Parts


class ReadBatch(NamedTuple):
    """What is known about the tokens of a batch."""

    tokens: list[tuple[Kind, Parts]]
    """For each token, what it belongs to, and the parts that it completes."""
    rest: Parts
    """What follows the last token."""

    def joined(self, kind: Kind) -> str:
        """Return everything of one kind that is known."""
        return "".join(joined(parts, kind) for _, parts in self.tokens) + joined(self.rest, kind)


def read_batch(reader: ThoughtReader, batch: Batch) -> ReadBatch:
    """Read the next batch of a stream."""
    tokens = []
    begin = 0
    for token_id, length in zip(batch.ids, batch.lengths, strict=True):
        tokens.append(reader.token(token_id, batch.text[begin : begin + length]))
        begin += length
    return ReadBatch(tokens, reader.push_text(batch.text[begin:]))
