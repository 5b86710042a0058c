"""`benchmarks/peers/isolated.py`: engines whose process ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

BENCH = str(Path(__file__).parents[3] / "benchmarks")


def crash_when_asked(pipe: Connection) -> None:
    pipe.recv()
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_crash_of_an_engine_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    from peers.isolated import IsolatedPeer
    from peers.peer import NotPossible

    context = multiprocessing.get_context("fork")  # spawned processes cannot import this function
    peer = IsolatedPeer.__new__(IsolatedPeer)
    peer.name = "one that crashes"
    peer._pipe, theirs = context.Pipe()
    peer._process = context.Process(target=crash_when_asked, args=(theirs,))
    peer._process.start()
    theirs.close()
    for _ in range(3):  # the first one waits for an answer
        with pytest.raises(NotPossible, match="ended by signal 9, without an answer"):
            peer.ask("prefill", 512)
    from side_by_side_bench import evicted_by

    assert evicted_by([peer]) == {}
    peer.close()
