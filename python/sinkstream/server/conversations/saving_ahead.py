"""Writes snapshots of the sessions that give up their seats next, before a turn has to wait."""

from __future__ import annotations

import logging
import threading

from sinkstream.errors import SinkstreamError
from sinkstream.server.conversations.claim import SessionMoved
from sinkstream.server.conversations.states import States

logger = logging.getLogger("sinkstream")


class SavingAhead:
    """A thread that saves idle sessions while all seats are taken, so that one is freed quickly."""

    def __init__(self, states: States, count: int) -> None:
        """Keep the next `count` sessions to give up their seats saved."""
        self._states = states
        self._count = count
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="sinkstream-saving", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, after the snapshot that it is writing."""
        self._is_ending.set()
        self._states.residency.wake()
        self._thread.join()

    def _loop(self) -> None:
        states = self._states
        while (
            resident := states.residency.next_to_save(
                states.saving.needs_saving, self._count, self._is_ending
            )
        ) is not None:
            # Tried once, whatever comes of it; parking tries again.
            resident.tried = resident.node
            try:
                states.saving.save(resident)
            except SessionMoved:
                pass  # the replica that has taken the conversation saves it
            except (OSError, SinkstreamError) as error:
                logger.warning("store: a snapshot could not be written ahead: %s", error)
            finally:
                states.residency.release(resident)
