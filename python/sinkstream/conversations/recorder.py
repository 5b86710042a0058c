"""Follows a reply as it is read: counts and hashes it, and commits it in parts."""

from __future__ import annotations

import time
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sinkstream.conversations.canonical import ReplyHash
from sinkstream.conversations.claim import Claim
from sinkstream.conversations.node import NewNode
from sinkstream.conversations.store import Store

if TYPE_CHECKING:
    from sinkstream.streams.batch import Batch

# What the end of the process may cost at most.
_PART_TOKENS = 256
_PART_S = 2.0


class Recorder:
    """For one thread at a time: the reader's, then the one that ends the turn.

    Attributes:
        count: Tokens generated so far.
        last_id: The id of the last one; None before the first.
        part: The number of the next part.
        ids: The ids that have not been committed yet; stays empty without a store.
    """

    def __init__(self, new: NewNode, store: Store | None, claim: Claim) -> None:
        self._node_id = new.id
        self._store = store
        self._claim = claim
        self._hash = ReplyHash(new.before)
        self._hash.add(new.given)
        self._committed_at = time.monotonic()
        self._text: list[str] = []
        self.count = 0
        self.last_id: int | None = None
        self.part = 0
        self.ids: array[int] = array("i")

    def add(self, batch: Batch) -> None:
        """Note what has been received."""
        self._hash.add(batch.text)
        if batch.ids:
            self.count += len(batch.ids)
            self.last_id = int(batch.ids[-1])
        if self._store is None:
            return
        self.ids.extend(batch.ids)
        self._text.append(batch.text)
        now = time.monotonic()
        is_due = len(self.ids) >= _PART_TOKENS or now - self._committed_at >= _PART_S
        if self.ids and is_due:
            part = (self._node_id, self.part, self.ids, self.text)
            if self._store.try_add_part(self._claim, *part):
                self.part += 1
                self.ids = array("i")
                self._text = []
            self._committed_at = now

    @property
    def text(self) -> str:
        """Return the text that has not been committed yet."""
        return "".join(self._text)

    def digest(self, calls: Sequence[Mapping[str, Any]] = ()) -> bytes:
        """Return the hash of the conversation up to here, with the reply's `tool_calls`."""
        return self._hash.digest(calls)
