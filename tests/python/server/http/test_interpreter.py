"""The interpreter's settings while servers run, and when garbage is collected."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

import sinkstream
from sinkstream.server.config import ServerConfig
from sinkstream.server.process_settings import (
    SWITCH_S,
    YOUNG_AFTER,
    collect_repeatedly,
    set_for_serving,
)
from sinkstream.server.serve import serve


def current() -> tuple[tuple[int, int, int], float]:
    return gc.get_threshold(), sys.getswitchinterval()


def test_what_is_loaded_is_left_aside_until_the_server_ends() -> None:
    kept = [[] for _ in range(1000)]  # type: ignore[var-annotated]
    with set_for_serving():
        assert gc.get_freeze_count() > len(kept)
    assert gc.get_freeze_count() == 0


def test_the_last_of_several_servers_restores_the_settings() -> None:
    before = current()
    serving = (YOUNG_AFTER, *before[0][1:]), pytest.approx(SWITCH_S)
    one, other = set_for_serving(), set_for_serving()
    one.__enter__()
    assert current() == serving
    other.__enter__()
    assert current() == serving
    one.__exit__(None, None, None)  # the first one ends first
    assert current() == serving
    assert gc.get_freeze_count() > 0
    other.__exit__(None, None, None)
    assert current() == before
    assert gc.get_freeze_count() == 0


def test_a_server_that_answers_has_its_settings(tiny_folder: Callable[[str], Path]) -> None:
    before, stop, seen = current(), threading.Event(), []

    def on_ready(address: str, model: sinkstream.Model) -> None:
        seen.append((gc.get_freeze_count() > 0, gc.get_threshold()[0]))
        stop.set()

    serve(
        ServerConfig(port=0, store="none", drain_s=0),
        lambda: sinkstream.load(tiny_folder("llama"), window=60, threads=1),
        on_ready,
        stop=stop,
    )
    assert seen == [(True, YOUNG_AFTER)]
    assert current() == before


@pytest.mark.parametrize(("is_idle", "at_latest_s", "count"), [(True, 60.0, 3), (False, 0.0, 3)])
def test_garbage_is_collected_at_idle_moments_and_at_the_latest_after_a_time(
    is_idle: bool, at_latest_s: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert collections(is_idle, at_latest_s, count, monkeypatch) == count


def test_garbage_is_not_collected_while_the_server_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert collections(False, 60.0, 1, monkeypatch) == 0


def collections(
    is_idle: bool, at_latest_s: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> int:
    """Return how many collections there are until there are `most`, or for a tenth of a second."""
    calls: list[None] = []

    async def main() -> None:
        done = asyncio.Event()

        def collect() -> None:
            calls.append(None)
            if len(calls) == most:
                done.set()

        monkeypatch.setattr(gc, "collect", collect)
        task = asyncio.create_task(collect_repeatedly(lambda: is_idle, 0.001, at_latest_s))
        await asyncio.wait({asyncio.create_task(done.wait())}, timeout=60 if most > 1 else 0.1)
        task.cancel()

    asyncio.run(main())
    monkeypatch.undo()
    return len(calls)
