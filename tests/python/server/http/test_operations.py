"""What an operator sees: one line per request without its text, and how late the event loop is."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from contextlib import ExitStack
from functools import partial

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sinkstream.server.health import Delays, Health
from tests.python.server.http.running_server import CHAT, COMPLETIONS, ENDLESS, HELLO, Running

SECRET = "canary-of-a-prompt"
LINE = re.compile(
    r"(?P<id>[A-Za-z0-9_.-]+) (?P<method>[A-Z]+) (?P<route>\S+) (?P<status>\d+) "
    r"(?P<seconds>[\d.]+)s key=(?P<key>\S+) queued=(?P<queued>[\d.]+)s "
    r"choices=(?P<choices>\d+) prompt_tokens=(?P<prompt>\d+) generated_tokens=(?P<generated>\d+) "
    r"evicted=(?P<evicted>\d+) pinned=(?P<pinned>\d+) dropped=(?P<dropped>\d+) "
    r"finish=(?P<finish>\S+)"
)


def lines_of(caplog: pytest.LogCaptureFixture, request: str) -> list[re.Match[str]]:
    ignored = "server: the field"  # a line for the first request that has one
    lines = [message for message in caplog.messages if not message.startswith(ignored)]
    found = [LINE.fullmatch(message) for message in lines]
    assert all(found), caplog.messages
    return [line for line in found if line is not None and line["id"] == request]


def test_each_request_has_one_line_without_its_text(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="sinkstream.server")
    messages = [{"role": "user", "content": SECRET}]
    body = {"messages": messages, "max_tokens": 3, "ignore_eos": True, "n": 2, "seed": 1}
    wrong = {**body, "stop": [SECRET] * 100, "user": SECRET}
    requests = {
        "whole": (CHAT, body), "streamed": (CHAT, {**body, "stream": True}), "wrong": (CHAT, wrong),
        "nowhere": (f"/v1/{SECRET}", body), "text": (COMPLETIONS, {"prompt": SECRET, "seed": 1}),
    }  # fmt: skip
    for name, (path, sent) in requests.items():
        server.post(path, sent, **{"X-Request-Id": name, "X-Session-Id": SECRET})
    server.wait_until(lambda: len(caplog.messages) >= len(requests), "all are noted")
    (whole,), (streamed,), (refused,), (nowhere,), _ = (lines_of(caplog, n) for n in requests)
    for line in (whole, streamed):
        facts = (line["status"], line["choices"], line["generated"], line["finish"])
        assert facts == ("200", "2", "6", "length")
        assert int(line["prompt"]) > 0
    assert (refused["status"], refused["finish"]) == ("400", "invalid_argument")
    assert (nowhere["status"], nowhere["route"]) == ("404", "none")
    assert SECRET not in caplog.text


def test_a_client_that_leaves_has_a_line(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="sinkstream.server")
    with server.begin(COMPLETIONS, ENDLESS) as connection:
        while b"data: " not in connection.recv(1 << 16):
            pass
    server.wait_until(lambda: "finish=client_left" in caplog.text, "noted")


@pytest.mark.parametrize("streams", [True, False])
def test_what_was_generated_for_a_client_that_has_left_is_counted(
    server: Running, caplog: pytest.LogCaptureFixture, streams: bool
) -> None:
    """Its status is that of the response that has begun, or says that there was none."""
    caplog.set_level("INFO", logger="sinkstream.server")
    ended = server.metric("sinkstream_generated_tokens_total")
    body = {"prompt": "the", "max_tokens": 60_000, "ignore_eos": True, "stream": streams}
    with server.begin(COMPLETIONS, body):
        server.wait_until(
            lambda: server.metric("sinkstream_generated_tokens_total") > ended, "it generates"
        )
    server.wait_until(lambda: "finish=client_left" in caplog.text, "noted")
    (line,) = [found for text in caplog.messages if (found := LINE.fullmatch(text))
               and found["finish"] == "client_left"]  # fmt: skip
    assert line["status"] == ("200" if streams else "499")
    assert int(line["prompt"]) > 0 < int(line["generated"])


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", CHAT, {"messages": HELLO, "max_tokens": 2, "n": 2}),
        ("POST", COMPLETIONS, {"prompt": "a", "max_tokens": 2, "stream": True}),
        ("POST", "/v1/responses", {"input": "a", "max_output_tokens": 2}),
        ("GET", "/v1/sessions/sess_1/file", None),
    ],
)
def test_a_line_says_how_long_a_request_waited_for_a_seat(
    server: Running, caplog: pytest.LogCaptureFixture, method: str, path: str, body: object
) -> None:
    caplog.set_level("INFO", logger="sinkstream.server")
    ask = partial(server.ask, method, path, body)
    ask({"X-Request-Id": "first"})
    seats = server.model.capacity.max_sequences
    with ExitStack() as holding:
        for _ in range(seats):
            holding.enter_context(server.begin(COMPLETIONS, ENDLESS))
        server.wait_until(lambda: server.model.stats()["running"] == seats, "no seat is left")
        asking = threading.Thread(target=ask, args=[{"X-Request-Id": "queued"}])
        asking.start()
        server.wait_until(lambda: server.metric("sinkstream_waiting_replies") > 0, "queued")
        time.sleep(0.2)
    asking.join()
    server.wait_until(lambda: len(lines_of(caplog, "queued")) > 0, "noted")
    (first,), (queued,) = (lines_of(caplog, name) for name in ("first", "queued"))
    assert first["status"] == queued["status"]
    assert 0.2 <= float(queued["queued"]) <= float(queued["seconds"])
    assert float(first["queued"]) < float(queued["queued"])


def test_a_client_that_leaves_the_queue_has_a_line(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="sinkstream.server")
    seats = server.model.capacity.max_sequences
    with ExitStack() as holding:
        for _ in range(seats):
            holding.enter_context(server.begin(COMPLETIONS, ENDLESS))
        server.wait_until(lambda: server.model.stats()["running"] == seats, "no seat is left")
        with server.begin(CHAT, {"messages": HELLO}):
            server.wait_until(lambda: server.metric("sinkstream_waiting_replies") == 1, "queued")
            time.sleep(0.2)
        server.wait_until(lambda: "client_left" in caplog.text, "noted")
        (line,) = [found for text in caplog.messages if (found := LINE.fullmatch(text))
                   and found["finish"] == "client_left"]  # fmt: skip
    assert line["status"] == "499"
    assert 0.2 <= float(line["queued"]) <= float(line["seconds"])


def test_the_lag_of_the_event_loop_is_measured() -> None:
    async def run() -> tuple[float, float]:
        health = Health(10.0)
        watching = asyncio.create_task(health.run(lambda: None))
        await asyncio.sleep(0.15)
        before = health.lag_s  # what a busy machine delays
        time.sleep(before + 0.5)
        await asyncio.sleep(0.15)
        watching.cancel()
        return before, health.lag_s

    before, after = asyncio.run(run())
    assert after >= before + 0.3


def test_a_delay_is_counted_for_each_measurement_that_it_holds_up() -> None:
    now = [10.65]
    health = Health(10.0, clock=lambda: now[0])
    assert health.note_delay(10.1) == pytest.approx(10.6)
    assert slow_ones(health) == [5, 4, 1]  # of those due at 10.1, 10.2 to 10.6
    now[0] = 10.70
    assert health.note_delay(10.7) == 10.7
    assert slow_ones(health) == [5, 4, 1]
    assert health.delays.stats()["count"] == 7


def slow_ones(health: Health) -> list[int]:
    """Return how many delays exceed 100, 200 and 500 ms."""
    stats = health.delays.stats()
    within = dict(zip(stats["bounds_s"], stats["cumulative"], strict=True))
    return [stats["count"] - within[bound] for bound in (0.1, 0.2, 0.5)]


def test_a_delay_of_a_bound_does_not_exceed_it() -> None:
    delays = Delays()
    for delay_s in (0.0, 0.02, 0.020001, 100.0):
        delays.add(delay_s)
    stats = delays.stats()
    assert stats["cumulative"][stats["bounds_s"].index(0.02)] == 2
    assert (stats["cumulative"][-1], stats["count"]) == (3, 4)
    assert stats["sum_s"] == pytest.approx(100.040001)


def test_the_delays_are_a_histogram_among_the_metrics(server: Running) -> None:
    server.wait_until(
        lambda: server.metric("sinkstream_event_loop_delay_seconds_count") > 2, "measured"
    )
    text = server.ask("GET", "/metrics").body.decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    family = families["sinkstream_event_loop_delay_seconds"]
    assert family.type == "histogram"
    bounds = [sample.labels["le"] for sample in family.samples if sample.name.endswith("_bucket")]
    assert "0.02" in bounds
    assert bounds[-1] == "+Inf"
