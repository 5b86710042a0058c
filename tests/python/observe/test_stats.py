"""`Model.stats`: its counts add up, whatever happens to requests."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from tests.python.waiting import wait_until, wait_until_idle

PROMPT = [5, 9, 17]


def expect_consistent(stats: dict[str, Any]) -> None:
    ended = sum(stats["finished"].values())
    assert stats["requests"] == stats["waiting"] + stats["running"] + ended
    assert stats["used_pages"] + stats["free_pages"] == stats["pages"]
    assert stats["step_times"]["count"] == stats["steps"]
    assert stats["step_times"]["sum_s"] == stats["step_s"]
    for times in (stats["step_times"], stats["first_token_times"]):
        assert len(times["bounds_s"]) == len(times["cumulative"])
        assert all(a < b for a, b in itertools.pairwise(times["bounds_s"]))
        assert all(a <= b for a, b in itertools.pairwise([*times["cumulative"], times["count"]]))


def test_counts_add_up_after_every_kind_of_end(folder: Path) -> None:
    with sinkstream.load(folder, sinks=4, window=60, threads=1) as model:
        replies = [model.generate(PROMPT, max_tokens=n, ignore_eos=True) for n in (3, 100)]
        cancelled = model.stream(PROMPT, ignore_eos=True)
        next(cancelled.events())
        cancelled.cancel()
        rest = cancelled.result()
        parked = model.stream(PROMPT, ignore_eos=True)
        wait_until(lambda: model.stats()["parked"] == 1)
        stats = model.stats()
        expect_consistent(stats)
        assert (stats["running"], stats["requests"]) == (1, 4)
        assert stats["finished"]["length"] == 2
        assert stats["finished"]["cancelled"] == 1
        assert stats["queue_lag"] == parked.stats.consumer_lag > 0
        assert stats["used_pages"] > 0
        parked.close()
        wait_until_idle(model)
        stats = model.stats()
        expect_consistent(stats)
        assert (stats["queue_lag"], stats["used_pages"]) == (0, 0)
        assert stats["finished"]["cancelled"] == 2
        ended = [*(reply.stats for reply in replies), rest.stats, parked.stats]
        assert stats["generated_tokens"] == sum(one.generated_tokens for one in ended)
        assert stats["evicted_tokens"] == sum(one.evicted_tokens for one in ended)
        assert stats["prompt_tokens"] == 4 * len(PROMPT)
        assert stats["first_token_times"]["count"] == 4


def test_a_request_whose_wait_times_out_is_counted_as_an_error(folder: Path) -> None:
    with sinkstream.load(folder, sinks=4, window=60, threads=1, max_sequences=1) as model:
        with model.stream(PROMPT, ignore_eos=True):
            waiting = model.stream(PROMPT, ignore_eos=True)
            with pytest.raises(sinkstream.CapacityError) as caught:
                waiting.result()
        assert caught.value.request_id == waiting.request_id == 2
        wait_until_idle(model)
        expect_consistent(model.stats())
        assert model.stats()["finished"]["error"] == 1


def test_stats_are_plain_and_fit_into_json(model: sinkstream.Model) -> None:
    stats = model.stats()
    assert json.loads(json.dumps(stats)) == stats


def test_stats_of_a_closed_model_are_its_last_ones(folder: Path) -> None:
    model = sinkstream.load(folder, sinks=4, window=60, threads=1)
    model.stream(PROMPT, ignore_eos=True)
    model.close()
    stats = model.stats()
    expect_consistent(stats)
    assert (stats["running"], stats["finished"]["cancelled"], stats["is_dead"]) == (0, 1, False)


def test_every_key_is_documented(model: sinkstream.Model) -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "monitoring.md"
    text = page.read_text(encoding="utf-8")
    assert [key for key in model.stats() if f"| `{key}` |" not in text] == []


def test_requests_count_from_one_and_say_their_number(folder: Path) -> None:
    with sinkstream.load(folder, sinks=4, window=60, threads=1) as model:
        for number in (1, 2, 3):
            with model.stream(PROMPT, max_tokens=2) as stream:
                started = next(stream.events())
                assert isinstance(started, sinkstream.Started)
                assert started.request_id == stream.request_id == number
                assert stream.result().stats.request_id == number
