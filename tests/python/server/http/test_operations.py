"""What an operator sees: one line per request without its text, and how late the event loop is."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from contextlib import ExitStack
from functools import partial

import pytest

from sinkstream.server.pulse import Pulse
from tests.python.server.http.running_server import CHAT, COMPLETIONS, ENDLESS, HELLO, Running

SECRET = "canary-of-a-prompt"
LINE = re.compile(
    r"(?P<id>[A-Za-z0-9_.-]+) (?P<method>[A-Z]+) (?P<route>\S+) (?P<status>\d+) "
    r"(?P<seconds>[\d.]+)s queued=(?P<queued>[\d.]+)s "
    r"choices=(?P<choices>\d+) prompt_tokens=(?P<prompt>\d+) generated_tokens=(?P<generated>\d+) "
    r"finish=(?P<finish>\S+)"
)


def lines_of(caplog: pytest.LogCaptureFixture, request: str) -> list[re.Match[str]]:
    found = [LINE.fullmatch(message) for message in caplog.messages]
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
    assert 0.2 <= float(line["queued"]) <= float(line["seconds"])


def test_the_lag_of_the_event_loop_is_measured() -> None:
    async def run() -> tuple[float, float]:
        pulse = Pulse(10.0)
        watching = asyncio.create_task(pulse.run(lambda: None))
        await asyncio.sleep(0.15)
        before = pulse.lag_s  # what a busy machine delays
        time.sleep(before + 0.5)
        await asyncio.sleep(0.15)
        watching.cancel()
        return before, pulse.lag_s

    before, after = asyncio.run(run())
    assert after >= before + 0.3
