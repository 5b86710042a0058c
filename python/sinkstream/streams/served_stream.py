"""A stream as a server reads it: all events at once, nothing kept, everything recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sinkstream.streams.batch import Batch
from sinkstream.streams.events import Event, FinishReason
from sinkstream.streams.stream import Stream
from sinkstream.text.marked_text import joined

if TYPE_CHECKING:
    from sinkstream.streams.inbox import ReadBatch
    from sinkstream.streams.kept_tokens import ScoredPrompt
    from sinkstream.text.marked_text import Parts


class ServedStream(Stream):
    """A stream for the server's own code.

    Attributes:
        record: Gets every batch before it is read, without thoughts. Set before the first read; the
            reply then ends with `drain`.
    """

    record: Callable[[Batch], None] | None = None

    @property
    def prompt_tokens(self) -> int:
        """Return the number of tokens in the request's prompt."""
        return self._inbox.prompt_tokens

    @property
    def window(self) -> tuple[int, int]:
        """Return S and W of its sequence."""
        return self._window

    @property
    def scored_prompt(self) -> ScoredPrompt:
        """Return the tokens of the prompt that have been scored."""
        return self._inbox.prompt

    @property
    def has_events(self) -> bool:
        """Return whether `anext_events` has left some."""
        return self._inbox.has_events

    def keep_no_tail(self) -> None:
        """Keep nothing of what will be read: neither `result` nor `thought` will be used."""
        self._inbox.keep_no_tail()

    async def anext_events(self, most: int | None = None) -> list[Event]:
        """Return all events since the last read, or `most`; wait if there are none. [] at the end.

        `has_events` says whether there are more.
        """
        events = await self._aread(partial(self._inbox.next_events, most))
        if not events:
            self._raise_error_once()
        return events

    def drain(self) -> FinishReason:
        """End the generation, record what has not been read, and return how it ended."""
        self._native.cancel()
        me = threading.get_ident()
        self._one_reader.claim(me)
        try:
            while (batch := self._native.take()) is not None:
                self._read_batch(batch)
            self._read_end()
        finally:
            self._one_reader.release(me)
        return self._native.finish_reason or "cancelled"

    def _end(self) -> None:
        if self.record is None:
            super()._end()
        else:
            self._native.cancel()  # `drain` takes what has not been read

    def _read_batch(self, batch: Batch) -> ReadBatch | None:
        read = super()._read_batch(batch)
        if self.record is not None:
            self.record(batch if read is None else batch._replace(text=read.joined("text")))
        return read

    def _read_end(self) -> Parts:
        held = super()._read_end()
        text = joined(held, "text")
        if text and self.record is not None:
            self.record(Batch(text, [], [], [], [], []))
        return held
