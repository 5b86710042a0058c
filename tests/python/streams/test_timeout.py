"""`timeout_s`: a limit like `max_tokens`, in seconds from the call."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream import Finished
from sinkstream.request.options import OPTIONS
from tests.python.waiting import wait_until_idle

PROMPT = [5, 9, 17]


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    folder = tiny_folder("llama")
    with sinkstream.load(folder, sinks=4, window=60, threads=1, max_sequences=2) as loaded:
        yield loaded


def limited(model: sinkstream.Model, timeout_s: float | None, **options: Any) -> sinkstream.Stream:
    given = {"temperature": 1.0, "seed": 7, "ignore_eos": True, **options}
    return model.stream(PROMPT, timeout_s=timeout_s, **given)


def test_a_stream_ends_at_its_deadline_with_what_it_has(model: sinkstream.Model) -> None:
    whole = limited(model, None, max_tokens=5000).result()
    for timeout_s in (0.5, 5, 50):  # the first is enough unless the machine is busy
        begin = time.monotonic()
        running = limited(model, timeout_s)
        pieces = list(running)
        assert time.monotonic() - begin >= timeout_s
        result = running.result()
        if len(result.token_ids) > 10:
            break
    assert result.finish_reason == running.finish_reason == "timeout"
    assert result.text == "".join(pieces)
    assert len(result.token_ids) > 10
    count = min(len(result.token_ids), 4000)
    assert result.token_ids[:count] == whole.token_ids[:count] or result.dropped_tokens > 0


def test_every_way_of_reading_tells_of_the_deadline(model: sinkstream.Model) -> None:
    *_, last = limited(model, 0.05).events()
    assert isinstance(last, Finished)
    assert last.reason == "timeout"
    assert asyncio.run(limited(model, 0.05).aresult()).finish_reason == "timeout"
    result = model.generate(PROMPT, timeout_s=0.05, max_tokens=None, ignore_eos=True)
    assert result.finish_reason == "timeout"
    results = model.generate([PROMPT] * 5, timeout_s=0.1, max_tokens=None, ignore_eos=True)
    assert [result.finish_reason for result in results] == ["timeout"] * 5


def test_a_stream_that_is_not_read_releases_its_memory_at_its_deadline(
    model: sinkstream.Model,
) -> None:
    ended = model.stats()["finished"]["timeout"]
    unread = [limited(model, 1.5) for _ in range(2)]
    deadline = time.monotonic() + 30
    while model.stats()["finished"]["timeout"] < ended + 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    wait_until_idle(model)
    assert [running.result().finish_reason for running in unread] == ["timeout"] * 2


def test_a_stream_that_waits_for_memory_ends_at_its_deadline(model: sinkstream.Model) -> None:
    holders = [limited(model, None) for _ in range(2)]
    result = limited(model, 0.2).result()
    assert (result.text, result.token_ids, result.finish_reason) == ("", [], "timeout")
    for holder in holders:
        holder.close()


def test_a_deadline_that_is_not_reached_changes_nothing(model: sinkstream.Model) -> None:
    for timeout_s in (None, 60, 1e9, 60.5):
        result = limited(model, timeout_s, max_tokens=5).result()
        assert (len(result.token_ids), result.finish_reason) == (5, "length")


def test_the_deadline_counts_from_the_call(
    model: sinkstream.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now - 10)
    result = limited(model, 5).result()
    assert (result.token_ids, result.finish_reason) == ([], "timeout")


@pytest.mark.parametrize(
    "value", [0, -0.0, -1, 1.001e9, float("nan"), float("inf"), -float("inf"), 2**63, 10**400]
)
def test_a_timeout_must_be_in_its_range(model: sinkstream.Model, value: float) -> None:
    sentence = f"stream: `timeout_s` must be in {OPTIONS['timeout_s'].kind}, but is "
    with pytest.raises(sinkstream.InvalidArgument, match=re.escape(sentence)) as info:
        limited(model, value)
    assert info.value.param == "timeout_s"


@pytest.mark.parametrize("value", [True, "1", b"1", [1.0], 1j, {}])
def test_a_timeout_must_be_a_number(model: sinkstream.Model, value: Any) -> None:
    with pytest.raises(TypeError, match="`timeout_s` must be a number"):
        limited(model, value)
