"""`tests/bench/peers/isolated.py`: engines that end by themselves."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

BENCH = str(Path(__file__).parents[3] / "tests" / "bench")


def test_an_engine_that_crashes_cannot_do_a_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    from peers.isolated import IsolatedPeer
    from peers.peer import NotPossible

    context = multiprocessing.get_context("spawn")
    peer = IsolatedPeer.__new__(IsolatedPeer)
    peer._pipe, theirs = context.Pipe()
    peer._process = context.Process(target=os.abort)
    peer._process.start()
    theirs.close()
    for ask in (peer.ask, peer.ask_all):
        with pytest.raises(NotPossible, match="ended by SIGABRT, without an answer"):
            ask("prefill", 512)
    peer.close()
