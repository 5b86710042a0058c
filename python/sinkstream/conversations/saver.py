"""Writes the snapshots that are due, and those of sessions that give up their seats next."""

from __future__ import annotations

import logging
import threading

from sinkstream.conversations.claim import SessionMoved
from sinkstream.conversations.states import States
from sinkstream.errors import SinkstreamError

logger = logging.getLogger("sinkstream")


class Saver:
    """A thread that saves idle sessions.

    A session that has grown by a window is saved before its next turn, however soon that comes.
    While all seats are taken, the next ones to be freed are saved, so that freeing one is quick.
    """

    def __init__(self, states: States, count: int) -> None:
        """Keep the next `count` sessions to give up their seats saved."""
        self._states = states
        self._count = count
        self._is_ending = threading.Event()
        states.residency.set_saver(True)
        self._thread = threading.Thread(target=self._run, name="sinkstream-saver", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, after the snapshot that it is writing."""
        self._is_ending.set()
        self._states.residency.wake()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop()
        finally:
            self._states.residency.set_saver(False)

    def _loop(self) -> None:
        states = self._states
        while (
            resident := states.residency.next_to_save(
                states.saving.needs_saving, self._count, self._is_ending
            )
        ) is not None:
            # Tried once, whatever comes of it; upkeep and parking try again.
            resident.tried = resident.node
            try:
                states.saving.save(resident)
            except SessionMoved:
                pass  # the replica that has taken the conversation saves it
            except (OSError, SinkstreamError) as error:
                logger.warning("store: a snapshot could not be written: %s", error)
            finally:
                states.residency.release(resident)
