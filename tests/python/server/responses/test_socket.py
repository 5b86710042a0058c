"""`WS /v1/responses`: lanes, forks, cancelling, refusals, and clients that do not behave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket as socket_module
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import websockets
from openai import AsyncOpenAI, OpenAI
from openai.lib.responses_websocket import (
    AsyncResponsesWebSocketSession,
    ResponsesWebSocketLimits,
)
from websockets.sync.client import ClientConnection, connect

from sinkstream.server import service as service_module
from sinkstream.server.errors import ApiError
from sinkstream.server.pool import Pool
from sinkstream.server.responses import socket_route
from sinkstream.server.responses.socket_route import Create, Incoming, read
from tests.python.server.http.running_server import Running, running
from tests.python.server.http.stopped_engine import stopped_engine
from tests.python.server.responses.checking import (
    ASKED,
    ENDLESS,
    KEY,
    RESPONSES,
    checked_events,
    create,
    deltas,
    text_of,
)

LIMITS = ResponsesWebSocketLimits(
    max_lanes=9,
    max_events_per_lane=100_000,
    max_events=100_000,
    max_bytes_per_lane=1 << 26,
    max_bytes=1 << 28,
    max_response_bytes=None,
)
ENDS = ("response.completed", "response.incomplete", "response.failed")


def opened(server: Running, **more: Any) -> ClientConnection:
    headers = more.pop("headers", KEY)
    address = f"ws://127.0.0.1:{server.port}{RESPONSES}"
    return connect(address, additional_headers=headers, **more)


def send(socket: ClientConnection, given: Any = "the sea", **more: Any) -> None:
    socket.send(json.dumps({"type": "response.create", "input": given, **ASKED, **more}))


def receive(socket: ClientConnection) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(socket.recv(timeout=60))
    return event


def until_end(socket: ClientConnection) -> list[dict[str, Any]]:
    """Return the events of the response that runs."""
    events = [receive(socket)]
    while events[-1]["type"] not in ENDS:
        assert events[-1]["type"] != "error", events[-1]
        events.append(receive(socket))
    return checked_events(events)


def refusal(socket: ClientConnection) -> dict[str, Any]:
    event = receive(socket)
    assert event["type"] == "error", event
    assert set(event["error"]) - {"headers"} == {"message", "type", "param", "code"}
    return event


@pytest.fixture
def socket(server: Running) -> Iterator[ClientConnection]:
    with opened(server) as found:
        yield found


def test_a_socket_sends_the_events_of_a_stream(server: Running, socket: ClientConnection) -> None:
    send(socket, "the sea")
    events = until_end(socket)
    whole = create(server, "the sea").json
    assert events[0]["sequence_number"] == 0
    assert deltas(events) == text_of(whole) == text_of(events[-1]["response"])
    assert all("stream_id" not in event for event in events)
    send(socket, "go on", previous_response_id=events[-1]["response"]["id"])
    second = until_end(socket)[-1]["response"]
    assert second["sinkstream"]["state"] == "resident"
    found = server.ask("GET", f"{RESPONSES}/{second['id']}", None, KEY).json
    assert found == second


def test_openais_client_talks_over_a_socket(client: OpenAI, server: Running) -> None:
    with client.responses.connect() as connection:
        connection.send({"type": "response.create", "input": "the sea", **ASKED})  # type: ignore[arg-type,misc]
        text = ""
        for event in connection:
            if event.type == "response.output_text.delta":
                text += event.delta
            if event.type in ENDS:
                break
    assert text == text_of(create(server, "the sea").json)


def test_lanes_are_bitwise_what_http_says(server: Running) -> None:
    """Six lanes of five turns each at the same time, against the same turns one by one."""
    lanes, turns = 6, 5

    def asked(lane: int, turn: int) -> dict[str, Any]:
        return {"input": f"lane {lane}, say {turn}", **ASKED, "seed": lane * 100 + turn}

    async def talk(session: AsyncResponsesWebSocketSession, number: int) -> list[str]:
        lane, texts = session.lane(f"lane-{number}"), []
        previous: dict[str, Any] = {}
        for turn in range(turns):
            await lane.send({"type": "response.create", **asked(number, turn), **previous})  # type: ignore[typeddict-item]
            response = await lane.get_final_response()
            texts.append(response.output_text)
            previous = {"previous_response_id": response.id}
        return texts

    async def all_lanes() -> list[list[str]]:
        address = f"http://127.0.0.1:{server.port}/v1"
        async with (
            AsyncOpenAI(base_url=address, api_key="a") as client,
            client.responses.connect() as connection,
            AsyncResponsesWebSocketSession(connection, limits=LIMITS) as session,
        ):
            return await asyncio.gather(*(talk(session, number) for number in range(lanes)))

    over_socket = asyncio.run(all_lanes())
    for number in range(lanes):
        previous: dict[str, Any] = {}
        for turn in range(turns):
            body = asked(number, turn)
            response = create(server, body.pop("input"), **body, **previous).json
            assert over_socket[number][turn] == text_of(response)
            previous = {"previous_response_id": response["id"]}


def test_requests_of_one_lane_are_answered_in_order(socket: ClientConnection) -> None:
    for seed in (1, 2, 3):
        send(socket, "the sea", seed=seed, stream_id="a", metadata={"n": str(seed)})
    numbers = [until_end(socket)[-1]["response"]["metadata"]["n"] for _ in range(3)]
    assert numbers == ["1", "2", "3"]


@pytest.mark.parametrize("store", [True, False])
def test_a_response_is_forked_on_another_lane(
    server: Running, socket: ClientConnection, store: bool
) -> None:
    send(socket, "the sea", store=store, stream_id="a")
    first = until_end(socket)[-1]["response"]["id"]
    texts = []
    for lane in ("b", "a"):
        asked = {"previous_response_id": first, "store": store, "stream_id": lane}
        send(socket, "go on", **asked)
        events = until_end(socket)
        assert {event["stream_id"] for event in events} == {lane}
        texts.append(text_of(events[-1]["response"]))
    assert texts[0] == texts[1]
    parent = create(server, "the sea").json["id"]
    assert texts[0] == text_of(create(server, "go on", previous_response_id=parent).json)


def test_what_is_not_stored_is_continued_once(socket: ClientConnection, server: Running) -> None:
    send(socket, "the sea", store=False)
    first = until_end(socket)[-1]["response"]["id"]
    assert server.ask("GET", f"{RESPONSES}/{first}", None, KEY).status == 404
    send(socket, "go on", store=False, previous_response_id=first)
    assert until_end(socket)[-1]["response"]["sinkstream"]["state"] == "resident"
    send(socket, "go on", store=False, previous_response_id=first)
    assert refusal(socket)["error"]["code"] == "previous_response_not_found"


REFUSED: list[tuple[str | bytes, str, str | None]] = [
    ("rubbish", "invalid_json", None),
    ("", "invalid_json", None),
    ("[1]", "invalid_json", None),
    ("{" * 5000, "invalid_json", None),
    (b"\xff\xfe", "invalid_json", None),
    ("{}", "unknown_event_type", None),
    ('{"type": 1}', "unknown_event_type", None),
    ('{"type": "response.steer", "stream_id": "a"}', "unknown_event_type", "a"),
    ('{"type": "response.create"}', "invalid_argument", None),
    ('{"type": "response.create", "input": "a", "temperature": -1, "stream_id": "b"}',
     "invalid_argument", "b"),
    ('{"type": "response.create", "input": "a", "background": true}', "invalid_argument", None),
    ('{"type": "response.create", "input": "a", "generate": false}', "unsupported", None),
    ('{"type": "response.create", "input": "a", "stream_id": ""}', "invalid_stream_id", None),
    ('{"type": "response.create", "input": "a", "stream_id": "a b"}', "invalid_stream_id", None),
    ('{"type": "response.create", "input": "a", "stream_id": 1}', "invalid_argument", None),
    ('{"type": "response.create", "input": "a", "previous_response_id": "resp_none"}',
     "previous_response_not_found", None),
    ('{"type": "response.cancel"}', "response_not_found", None),
    ('{"type": "response.cancel", "response_id": "resp_none"}', "response_not_found", None),
]  # fmt: skip


def test_what_is_refused_leaves_the_socket_open(socket: ClientConnection) -> None:
    for message, code, lane in REFUSED:
        socket.send(message)
        event = refusal(socket)
        assert event["error"]["code"] == code, message
        assert event.get("stream_id") == lane, message
        assert event["status"] in (400, 404)
    send(socket)
    assert until_end(socket)[-1]["type"] == "response.incomplete"


def test_a_response_is_cancelled_by_lane_or_by_id(
    server: Running, socket: ClientConnection
) -> None:
    for by_id in (False, True):
        send(socket, stream_id="a", **{**ENDLESS})
        events = [receive(socket)]
        while events[-1]["type"] != "response.output_text.delta":
            events.append(receive(socket))
        name = events[0]["response"]["id"]
        which = {"response_id": name} if by_id else {"stream_id": "a"}
        socket.send(json.dumps({"type": "response.cancel", **which}))
        events += until_end(socket)
        checked_events(events)
        last = events[-1]
        assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
        assert deltas(events) == text_of(last["response"])
        found = server.ask("GET", f"{RESPONSES}/{name}", None, KEY).json
        assert found["status"] == "cancelled"


def test_a_client_that_leaves_ends_all_its_lanes(server: Running) -> None:
    with opened(server) as leaving:
        for lane in ("a", "b", "c"):
            send(leaving, stream_id=lane, **ENDLESS)
        kinds = set()
        while len(kinds) < 3:
            event = receive(leaving)
            if event["type"] == "response.output_text.delta":
                kinds.add(event["stream_id"])
    server.wait_until(lambda: server.model.stats()["running"] == 0, "replies go on")
    server.wait_until(lambda: sockets(server) == 0, "the socket is open")


def sockets(server: Running) -> float:
    text = server.ask("GET", "/metrics", None, KEY).body.decode()
    (line,) = [one for one in text.splitlines() if one.startswith("sinkstream_open_sockets ")]
    return float(line.split()[1])


def test_lanes_have_a_largest_number(socket: ClientConnection, server: Running) -> None:
    for number in range(32):
        send(socket, stream_id=f"lane{number}", max_output_tokens=1)
        until_end(socket)
    send(socket, stream_id="one-more")
    assert refusal(socket)["error"]["code"] == "websocket_stream_limit_reached"
    send(socket)  # the lane without a name does not count
    until_end(socket)


def test_requests_that_wait_have_a_largest_number(
    socket: ClientConnection, server: Running
) -> None:
    for _ in range(70):
        send(socket, **ENDLESS, stream_id="a")
    event = receive(socket)
    while event["type"] != "error":
        event = receive(socket)
    assert (event["status"], event["error"]["code"]) == (429, "capacity")
    socket.close()
    server.wait_until(lambda: server.model.stats()["running"] == 0, "replies go on")


def test_sockets_have_a_largest_number(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "MAX_SOCKETS", 2)
    with running(tiny_folder("llama"), api_keys=("a",)) as server:
        with opened(server), opened(server):
            with pytest.raises(websockets.InvalidStatus) as refused:
                opened(server)
            response = refused.value.response
            assert response.status_code == 429
            assert response.headers["retry-after"] == "1"
            error = json.loads(response.body or b"")["error"]
            assert error["code"] == "websocket_connection_limit_reached"
        server.wait_until(lambda: sockets(server) == 0, "a socket is open")
        with opened(server) as again:
            send(again)
            until_end(again)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"X-Api-Key": "wrong"}, 401),
        ({**KEY, "Origin": "https://evil.example"}, 403),
        ({"Authorization": "Bearer b"}, 101),
    ],
)
def test_a_socket_is_guarded_like_a_request(
    server: Running, headers: dict[str, str], status: int
) -> None:
    if status == 101:
        with opened(server, headers=headers) as found:
            send(found)
            until_end(found)
        return
    with pytest.raises(websockets.InvalidStatus) as refused:
        opened(server, headers=headers)
    assert refused.value.response.status_code == status
    assert set(json.loads(refused.value.response.body or b"")) == {"error"}


def test_another_key_continues_nothing(server: Running) -> None:
    name = create(server, "a secret").json["id"]
    with opened(server, headers={"X-Api-Key": "b"}) as stranger:
        send(stranger, "go on", previous_response_id=name)
        assert refusal(stranger)["error"]["code"] == "previous_response_not_found"


def test_a_message_has_a_largest_size(server: Running) -> None:
    with opened(server) as found:
        with contextlib.suppress(websockets.ConnectionClosed):
            send(found, "a" * (40 << 20))
        with pytest.raises(websockets.ConnectionClosed) as closed:
            found.recv(timeout=60)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009


def test_a_message_may_be_as_large_as_a_body(socket: ClientConnection) -> None:
    """2 MiB, most of it a field that is not one of OpenAI's."""
    send(socket, "the sea", padding="a" * (2 << 20))
    until_end(socket)


def test_requests_that_wait_have_a_largest_size(socket: ClientConnection, server: Running) -> None:
    for _ in range(5):
        send(socket, **ENDLESS, stream_id="a", padding="a" * (10 << 20))
    event = receive(socket)
    while event["type"] != "error":
        event = receive(socket)
    assert (event["status"], event["error"]["code"]) == (429, "capacity")
    assert "at most 33554432 bytes in total" in event["error"]["message"]
    socket.close()
    server.wait_until(lambda: server.model.stats()["running"] == 0, "replies go on")


def test_a_client_that_never_reads_is_sent_no_more(server: Running) -> None:
    """Its lane waits with the next response, and others are answered."""
    asked = {"max_output_tokens": 200, "top_logprobs": 20, "store": False}
    each = 12  # of which the buffers of both sides take one or two
    before = server.model.stats()["generated_tokens"]
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            deaf = stack.enter_context(opened(server, max_queue=1, close_timeout=0.1))
            for _ in range(each):
                send(deaf, **asked)
        with opened(server) as other:
            for _ in range(5):
                send(other)
                assert until_end(other)[-1]["type"] == "response.incomplete"
        assert server.ask("GET", "/health", None, KEY).status == 200
        seen, generated = -1, 0
        while generated > seen or generated < 3 * 200:
            seen = generated
            time.sleep(0.5)
            generated = server.model.stats()["generated_tokens"] - before - 5 * 8
        assert generated < 3 * 200 * each / 2
    server.wait_until(lambda: sockets(server) == 0, "a socket is open")


def test_a_socket_that_is_broken_off_is_forgotten(server: Running) -> None:
    for _ in range(20):
        with opened(server) as broken:
            send(broken, **ENDLESS)
            broken.socket.shutdown(socket_module.SHUT_RDWR)
    server.wait_until(lambda: server.model.stats()["running"] == 0, "replies go on")
    server.wait_until(lambda: sockets(server) == 0, "a socket is open")


def test_a_drain_ends_the_running_response_and_goes_away(
    tiny_folder: Callable[[str], Path],
) -> None:
    with contextlib.ExitStack() as stack:
        with running(tiny_folder("llama"), drain_s=60) as server:
            busy = stack.enter_context(opened(server, headers={}))
            idle = stack.enter_context(opened(server, headers={}))
            send(busy, max_output_tokens=400)
            send(busy, max_output_tokens=400)
            assert receive(busy)["type"] == "response.created"
        events = [receive(busy)]
        while events[-1]["type"] != "error":
            events.append(receive(busy))
        assert events[-2]["type"] == "response.incomplete"
        assert events[-2]["response"]["usage"]["output_tokens"] == 400
        assert events[-1]["error"]["code"] == "draining"
        for one in (busy, idle):
            with pytest.raises(websockets.ConnectionClosed) as closed:
                one.recv(timeout=10)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001


def test_lanes_are_answered_while_another_waits(server: Running) -> None:
    with opened(server) as found:
        send(found, **ENDLESS, stream_id="long")
        begun = time.monotonic()
        send(found, stream_id="short")
        event = receive(found)
        while event["type"] not in ENDS:
            event = receive(found)
            assert time.monotonic() - begun < 60
        assert event["stream_id"] == "short"


def test_a_socket_is_told_that_the_engine_has_stalled(
    tiny_folder: Callable[[str], Path],
) -> None:
    with running(tiny_folder("llama"), watchdog_s=1.0) as server, opened(server, headers={}) as one:
        send(one, **ENDLESS)
        assert receive(one)["type"] == "response.created"
        with stopped_engine(server.model):
            event = receive(one)
            while event["type"] != "error":
                event = receive(one)
            assert (event["status"], event["error"]["code"]) == (503, "stalled")
        server.wait_until(lambda: server.ask("GET", "/health").status == 200, "healthy again")
        send(one)
        assert until_end(one)[-1]["type"] == "response.incomplete"


def test_the_memory_of_responses_is_bounded(server: Running) -> None:
    """Three of 107 MiB fit into what one of two keys may have of 512 MiB."""
    costly = {**ENDLESS, "top_logprobs": 1, "store": False}
    with opened(server) as found:
        for lane in range(5):
            send(found, **costly, stream_id=f"lane{lane}")
        event = receive(found)
        while event["type"] != "error":
            event = receive(found)
        assert (event["status"], event["error"]["code"]) == (429, "capacity")
        assert event["stream_id"] == "lane3"
    server.wait_until(lambda: server.model.stats()["running"] == 0, "replies go on")
    assert create(server, "the sea").status == 200


@pytest.mark.parametrize("timeout_s", [5.0, None])
def test_a_message_that_is_not_parsed_in_time_is_refused(timeout_s: float | None) -> None:
    pool, go_on = Pool(), threading.Event()
    message = json.dumps({"type": "response.create", "input": "a" * (1 << 17)})

    async def read_while_busy() -> None:
        busy = [pool.submit(lambda: go_on.wait(60)) for _ in range(2)]
        reading = asyncio.create_task(read(message, pool, time.monotonic() - 9, timeout_s))
        if timeout_s is None:
            await asyncio.sleep(0)
            go_on.set()
            assert isinstance((await reading).content, Create)
        else:
            refused = (await reading).content
            assert isinstance(refused, ApiError)
            assert (refused.status, refused.code) == (503, "timeout")
            go_on.set()
        await asyncio.gather(*busy)

    asyncio.run(read_while_busy())
    pool.close()


def test_the_time_of_a_request_counts_from_its_message(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not from when it has been parsed, which may have to wait for others."""

    async def late(*given: Any) -> Incoming:
        incoming = await read(*given)
        await asyncio.sleep(0.3)
        return incoming

    began: list[float] = []
    taken = socket_route.Lane.add

    def noted(lane: Any, body: Any, size: int, arrived_at: float, **more: Any) -> None:
        began.append(time.monotonic() - arrived_at)
        taken(lane, body, size, arrived_at, **more)

    monkeypatch.setattr(socket_route, "read", late)
    monkeypatch.setattr(socket_route.Lane, "add", noted)
    with opened(server) as socket:
        send(socket)
        until_end(socket)
    assert began[0] >= 0.3
