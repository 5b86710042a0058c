"""`trace`: a file for Perfetto with every step and every request, and no text."""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
import threading
from collections import Counter, defaultdict
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

import sinkstream
from sinkstream.observe import tracing
from sinkstream.observe.trace_events import ModelEvents
from tests.python.waiting import wait_until

PROMPT = [5, 9, 17]
Event = dict[str, Any]


def events_of(path: Path) -> list[Event]:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert set(document) == {"displayTimeUnit", "traceEvents", "otherData"}
    events: list[Event] = document["traceEvents"]
    return events


def expect_well_formed(events: list[Event]) -> None:
    """Check the fields that viewers require of each kind of event."""
    for event in events:
        assert {"ph", "name", "ts", "pid", "tid"} <= set(event), event
        assert all(type(event[key]) is int for key in ("ts", "pid", "tid")), event
        kind = event["ph"]
        assert kind in {"M", "X", "C", "b", "e", "i"}, event
        if kind == "X":
            assert type(event["dur"]) is int
            assert event["dur"] >= 0
        if kind in "be":
            assert event["cat"] == "request"
            assert isinstance(event["id"], str)
        if kind in "MC":
            assert event["args"]
    opened: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "b":
            opened[event["id"]].append(event)
        elif event["ph"] == "e":
            begun = opened[event["id"]].pop()
            assert begun["name"] == event["name"]
            assert begun["ts"] <= event["ts"]
    assert [name for stack in opened.values() for name in stack] == []


def slices(events: list[Event], name: str) -> list[Event]:
    return [event for event in events if event["ph"] == "X" and event["name"] == name]


def test_it_has_every_step_nested_and_in_order(model: sinkstream.Model, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    model.generate(PROMPT, max_tokens=3, ignore_eos=True)  # before the block: not in the trace
    model._native.finish_step()
    before = model.stats()
    with sinkstream.trace(path):
        result = model.generate(
            PROMPT * 30, max_tokens=6000, ignore_eos=True, speculation=0, temperature=0
        )
    after = model.stats()
    events = events_of(path)
    expect_well_formed(events)
    steps, forwards, delivers = (slices(events, name) for name in ("step", "forward", "deliver"))
    assert [step["args"]["step"] for step in steps] == list(range(before["steps"], after["steps"]))
    assert len(steps) >= 6000
    assert len(steps) == len(forwards) == len(delivers)
    for step, forward, deliver in zip(steps, forwards, delivers, strict=True):
        assert step["ts"] == forward["ts"]
        assert forward["ts"] + forward["dur"] == deliver["ts"]
        assert deliver["ts"] + deliver["dur"] == step["ts"] + step["dur"]
    for first, second in itertools.pairwise(steps):
        assert first["ts"] + first["dur"] <= second["ts"]
    read = sum(step["args"]["prompt_tokens"] for step in steps)
    assert read == after["prompt_tokens"] - before["prompt_tokens"] == 90
    decoded = sum(step["args"]["decoding"] for step in steps)
    assert decoded == len(result.token_ids) - 1  # the first token is the prompt's last step
    counters = {event["name"] for event in events if event["ph"] == "C"}
    assert counters == {"decoding sequences", "prompt tokens read", "free pages"}
    (ended,) = [e for e in events if e["ph"] == "e" and e["name"].startswith("request ")]
    assert ended["args"] == {
        "finish_reason": "length",
        "prompt_tokens": 90,
        "generated_tokens": 6000,
    }
    phases = [e["name"] for e in events if e["ph"] == "b"]
    # The reader is fast, but the stream may be parked for a moment.
    assert [name for name in phases if name != "parked"][:4] == [
        ended["name"],
        "waiting",
        "prefill",
        "decode",
    ]


def test_models_that_are_loaded_and_closed_in_the_block_are_in_it(
    folder: Path, model: sinkstream.Model, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    with sinkstream.trace(path):
        with sinkstream.load(folder, sinks=4, window=60, threads=1) as other:
            other.generate(PROMPT, max_tokens=20, ignore_eos=True, speculation=0)
            model.generate(PROMPT, max_tokens=10, ignore_eos=True, speculation=0)
        steps = other.stats()["steps"]
    events = events_of(path)
    expect_well_formed(events)
    counts = Counter(event["pid"] for event in slices(events, "step"))
    assert sorted(counts.values()) == [10, steps] == [10, 20]
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert all(f": llama, {folder.name}" in named[pid] for pid in counts)


def test_only_the_given_model_is_traced(
    folder: Path, model: sinkstream.Model, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    with (
        sinkstream.load(folder, sinks=4, window=60, threads=1) as other,
        sinkstream.trace(path, model=other),
    ):
        model.generate(PROMPT, max_tokens=20, ignore_eos=True)
        other.generate(PROMPT, max_tokens=5, ignore_eos=True, speculation=0)
    assert len(slices(events_of(path), "step")) == 5


def test_requests_that_are_open_at_either_end_are_shown(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    with model.stream(PROMPT, ignore_eos=True) as running:
        next(running.events())
        with sinkstream.trace(path, model=model):
            wait_until(lambda: model.stats()["parked"] == 1)
        name = f"request {running.request_id}"
    events = events_of(path)
    expect_well_formed(events)
    (end,) = [event for event in events if event["ph"] == "e" and event["name"] == name]
    assert end["args"] == {"finish_reason": None, "shown_until": "end of the trace"}
    assert "parked" in [event["name"] for event in events if event["ph"] == "b"]


def test_the_file_is_complete_after_an_exception(model: sinkstream.Model, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    def fail_inside() -> None:
        with sinkstream.trace(path):
            model.generate(PROMPT, max_tokens=5, ignore_eos=True)
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        fail_inside()
    assert len(slices(events_of(path), "step")) == 5
    assert list(tmp_path.iterdir()) == [path]


def test_a_former_file_stays_until_the_new_one_is_complete(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    path.write_text("former")
    with sinkstream.trace(path, model=model):
        assert path.read_text() == "former"
    assert events_of(path)


@pytest.mark.parametrize("name", ["", "missing/trace.json", "nul\0.json"])
def test_a_path_that_cannot_be_written_is_refused_at_once(
    name: str, tmp_path: Path, model: sinkstream.Model
) -> None:
    block = sinkstream.trace(f"{tmp_path}/{name}")
    with pytest.raises(
        sinkstream.InvalidArgument, match="trace: `path` must be a writable file"
    ) as caught:
        block.__enter__()
    assert caught.value.param == "path"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong", ["model", MagicMock()])
def test_what_is_not_a_model_is_refused(wrong: Any, tmp_path: Path) -> None:
    block = sinkstream.trace(tmp_path / "trace.json", model=wrong)
    with pytest.raises(TypeError, match="trace: `model` must be"):
        block.__enter__()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_finished_is_an_error_and_leaves_nothing(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object, events: object) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "trace.json"
    block = sinkstream.trace(path, model=model)
    block.__enter__()
    monkeypatch.setattr(tracing._TraceFile, "add", fail)
    model.generate(PROMPT, max_tokens=5, ignore_eos=True)
    with pytest.raises(OSError, match="No space left"):
        block.__exit__(None, None, None)
    assert list(tmp_path.iterdir()) == []


def test_lost_steps_are_marked_counted_and_warned_of(
    model: sinkstream.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector sleeps while 6,000 steps pass through a ring of 4,096."""
    monkeypatch.setattr(tracing, "_SHORTEST_S", 3600.0)
    path = tmp_path / "trace.json"
    begin = model.stats()["steps"]
    with (
        pytest.warns(UserWarning, match=r"trace: 1904 records were overwritten"),
        sinkstream.trace(path, model=model),
    ):
        model.generate(PROMPT, max_tokens=6000, ignore_eos=True, speculation=0)
    events = events_of(path)
    expect_well_formed(events)
    (mark,) = [event for event in events if event["ph"] == "i"]
    assert (mark["name"], mark["args"]) == ("lost steps", {"count": 6000 - 4096})
    steps = [step["args"]["step"] for step in slices(events, "step")]
    assert steps == list(range(begin + 6000 - 4096, begin + 6000))
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["otherData"]["lost_records"] == 6000 - 4096


def test_nothing_is_left_running(model: sinkstream.Model, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with sinkstream.trace(tmp_path / "trace.json"):
        assert set(threading.enumerate()) > before
    assert set(threading.enumerate()) == before


def test_a_child_that_leaves_the_block_harms_nothing(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    block = sinkstream.trace(path, model=model)
    block.__enter__()
    child = os.fork()
    if child == 0:
        os._exit(leave_trace(block, path.with_name("child.json")))
    _, status = os.waitpid(child, 0)
    model.generate(PROMPT, max_tokens=5, ignore_eos=True)
    block.__exit__(None, None, None)
    assert status == 0
    assert len(slices(events_of(path), "step")) == 5
    assert slices(events_of(path.with_name("child.json")), "step") == []


def leave_trace(block: AbstractContextManager[None], path: Path) -> int:
    """Leave the parent's block, and write a trace without a model."""
    try:
        block.__exit__(None, None, None)
        with sinkstream.trace(path):
            pass
    except BaseException:
        return 1
    return 0


def test_a_secret_is_nowhere(
    model: sinkstream.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="sinkstream")
    secret = "xyzzy-4711"
    path = tmp_path / "trace.json"
    with sinkstream.trace(path):
        reply = model.generate(
            f"The word is {secret}.", max_tokens=40, ignore_eos=True, stop=f"{secret}!"
        )
    assert reply.token_ids
    told = path.read_text() + caplog.text + json.dumps(model.stats())
    told += sinkstream.prometheus_text(model)
    assert "request" in told
    assert secret not in told
    assert "xyzzy" not in told


# ---- the events alone ----------------------------------------------------------------------------


def shown(lines: Any) -> list[Event]:
    return [json.loads(line) for line in lines]


def test_counters_fall_to_zero_when_nothing_runs() -> None:
    events = ModelEvents(1, "model", 0)
    lines = events.steps([(0, 1.0, 1.1, 1.2, 2, 0, 5), (1, 3.0, 3.1, 3.2, 2, 0, 5)])
    counted = [(e["ts"], e["args"]["value"]) for e in shown(lines) if e["name"][:8] == "decoding"]
    assert counted == [(1_000_000, 2), (1_200_000, 0), (3_000_000, 2)]


def test_times_keep_slices_that_touch_touching() -> None:
    edges = [1234.5 + k * math.pi * 1e-6 for k in range(1000)]
    events = ModelEvents(1, "model", 0)
    steps = [(i, *edges[3 * i : 3 * i + 3], 1, 0, 5) for i in range(300)]
    steps = [(i, b, f, e, d, p, g) for i, b, f, e, d, p, g in steps]
    lines = shown(events.steps(steps))
    for step, forward, deliver in zip(
        slices(lines, "step"), slices(lines, "forward"), slices(lines, "deliver"), strict=True
    ):
        assert forward["dur"] + deliver["dur"] == step["dur"]


def test_steps_that_overlap_lie_on_two_tracks_and_never_on_one() -> None:
    events = ModelEvents(1, "model", 0)
    steps = [
        (i, float(i), i + 1.9, i + 2.0, 1, 0, 5) for i in range(9)
    ]  # each begins before the last ends
    lines = shown(events.steps([*steps, (9, 20.0, 21.9, 22.0, 1, 0, 5)]))
    expect_well_formed(lines)
    tracks = [step["tid"] for step in slices(lines, "step")]
    assert tracks == [1, 2, 1, 2, 1, 2, 1, 2, 1, 1]
    for track in (1, 2):
        spans = [(e["ts"], e["dur"]) for e in slices(lines, "step") if e["tid"] == track]
        assert all(at + length <= later for (at, length), (later, _) in itertools.pairwise(spans))
    for name in ("forward", "deliver"):
        assert [event["tid"] for event in slices(lines, name)] == tracks
    named = [event["args"]["name"] for event in lines if event["name"] == "thread_name"]
    assert named == ["generation, overlapping steps"]


def test_a_gap_among_phases_begins_requests_anew() -> None:
    events = ModelEvents(1, "model", 1_000_000)
    lines = shown(events.phase_changes([(1, 1.5, "waiting", None, 3, 0)]))
    lines += shown(events.close(2_000_000, "records were lost"))
    lines += shown(events.phase_changes([(1, 2.5, "parked", None, 3, 9)]))
    lines += shown(events.phase_changes([(1, 2.6, "finished", "stop", 3, 9)]))
    expect_well_formed(lines)
    begun = [e["ts"] for e in lines if e["ph"] == "b" and e["name"] == "request 1"]
    assert begun == [1_500_000, 2_000_000]
