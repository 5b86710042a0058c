"""The server in a real Ray Serve: sessions stay together, and outlive their replicas."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra `cluster`")
pytest.importorskip("fastapi", reason="needs the extra `serve`")

from websockets.sync.client import connect

from tests.python.cluster.ray.many_conversations import scale_up_and_down
from tests.python.cluster.ray.ray_cluster import (
    REPLICA,
    Cluster,
    events_in,
    ray_cluster,
    wait_until,
)
from tests.python.server.http.running_server import CHAT, ENDLESS

SEA = [{"role": "user", "content": "the sea"}]


@pytest.fixture(scope="module")
def cluster(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Give two replicas on one store."""
    store = tmp_path_factory.mktemp("store")
    with ray_cluster(tiny_folder("llama"), str(store), replicas=2, max_queue=1) as found:
        yield found


def sessions_on_both(cluster: Cluster) -> tuple[str, str]:
    """Return the names of two sessions that are on different replicas."""
    first = "session 0"
    home = cluster.replica_of(first)
    names = (f"session {number}" for number in range(1, 100))
    return first, next(name for name in names if cluster.replica_of(name) != home)


def begin(cluster: Cluster, session: str, path: str, body: dict[str, Any]) -> socket.socket:
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"x-session-id: {session}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n"
    )
    return cluster.http.open(head, data)


def test_a_session_stays_on_its_replica_over_http_and_sockets(cluster: Cluster) -> None:
    homes = set()
    for number in range(12):
        session = f"stays {number}"
        answers = [cluster.chat(SEA, session) for _ in range(3)]
        assert [answer.status for answer in answers] == [200] * 3
        seen = {answer.headers[REPLICA] for answer in answers}
        with connect(
            f"ws://127.0.0.1:{cluster.http.port}/v1/responses",
            additional_headers={"x-session-id": session},
        ) as websocket:
            assert websocket.response is not None
            seen.add(websocket.response.headers[REPLICA])
            websocket.send(
                json.dumps({"type": "response.create", "input": "hi", "max_output_tokens": 2})
            )
            kinds = []
            while not kinds or kinds[-1] not in ("response.completed", "response.incomplete"):
                kinds.append(json.loads(websocket.recv(timeout=30))["type"])
        assert len(seen) == 1
        homes |= seen
    assert len(homes) == 2


def test_a_conversation_continues_where_it_is(cluster: Cluster) -> None:
    for session in sessions_on_both(cluster):
        first = cluster.chat(SEA, session)
        reply = first.json["choices"][0]["message"]
        second = cluster.chat([*SEA, reply, {"role": "user", "content": "and then?"}], session)
        own = second.json["usage"]["sinkstream"]
        assert own["state"] == "resident"
        assert own["session"] == first.json["usage"]["sinkstream"]["session"]


def test_tokens_pass_at_once_and_a_client_that_leaves_is_noticed(cluster: Cluster) -> None:
    session = "leaves"
    with begin(cluster, session, "/v1/completions", ENDLESS) as stream:
        data = b""
        while len(events_in(data)) < 5:  # of a stream that has no end
            part = stream.recv(1 << 16)
            assert part, data
            data += part
        assert cluster.replies_on(session) == 1
    wait_until(lambda: cluster.replies_on(session) == 0, "the reply is cancelled", within_s=5)


def test_a_full_replica_says_when_to_come_back(cluster: Cluster) -> None:
    session, other = sessions_on_both(cluster)
    streams = [begin(cluster, session, "/v1/completions", ENDLESS) for _ in range(5)]
    try:
        for stream in streams[:4]:
            assert b" 200 " in stream.recv(64)
        wait_until(lambda: cluster.replies_on(session) == 4, "all seats are taken")
        answer = cluster.chat(SEA, session)
        assert answer.status == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers[REPLICA] == cluster.replica_of(session)
        assert cluster.chat(SEA, other).status == 200
    finally:
        for stream in streams:
            stream.close()
    wait_until(lambda: cluster.replies_on(session) == 0, "all are cancelled")


def test_a_response_is_continued_by_its_owner_without_a_header(cluster: Cluster) -> None:
    for number in range(6):  # a request without a session goes anywhere
        first = cluster.respond(f"my number is {number}", "owner")
        second = cluster.respond("which?", previous_response_id=first.json["id"])
        assert second.status == 200
        assert second.json["sinkstream"]["state"] == "resident"
        kept = cluster.http.ask("GET", f"/v1/responses/{second.json['id']}")
        assert kept.json["output"] == second.json["output"]
        events = cluster.respond("all?", previous_response_id=second.json["id"], stream=True)
        assert b'"state":"resident"' in events.body
    assert cluster.respond("?", previous_response_id="resp_none").status == 400


def test_peers_have_an_address_that_only_they_can_use(cluster: Cluster) -> None:
    for path in ("/internal/release?session=sess_1", "/internal/park"):
        assert cluster.http.post(path, {}).status == 404
        assert cluster.http.post(path, {}, **{"x-sinkstream-peer": "guessed-guessed"}).status == 404


def test_a_replica_that_is_killed_loses_nothing_that_was_acknowledged(cluster: Cluster) -> None:
    session = "killed"
    told = cluster.chat(SEA, session).json
    messages = [*SEA, told["choices"][0]["message"], {"role": "user", "content": "go on"}]
    fields = {"max_tokens": 12, "seed": 5, "ignore_eos": True}
    expected = cluster.chat(messages, session, **fields).json["choices"][0]["message"]["content"]
    victim, home = cluster.pid_of(session), cluster.replica_of(session)
    body = {"messages": messages, "stream": True, "max_tokens": 1 << 40, "ignore_eos": True}
    with begin(cluster, session, CHAT, body) as stream:
        data = b""
        while len(events_in(data)) < 3:
            data += stream.recv(1 << 16)
        os.kill(victim, signal.SIGKILL)
        killed_at = time.monotonic()
        while part := stream.recv(1 << 16):
            data += part
    assert b"[DONE]" not in data
    answer = cluster.chat(messages, session, **fields)
    assert time.monotonic() - killed_at < 5
    assert answer.status == 200
    assert answer.headers[REPLICA] != home
    assert answer.json["choices"][0]["message"]["content"] == expected
    assert answer.json["usage"]["sinkstream"]["session"] == told["usage"]["sinkstream"]["session"]
    wait_until(lambda: len(cluster.replicas()) == 2, "Ray has replaced it")


def test_a_replica_that_leaves_ends_its_streams_whole(cluster: Cluster) -> None:
    """With `length`, and a turn that another replica continues; idle sockets are closed."""
    sessions = sessions_on_both(cluster)
    body = {"messages": SEA, "stream": True, "max_tokens": 1 << 40, "ignore_eos": True}
    body["stream_options"] = {"include_usage": True}
    streams = [begin(cluster, session, CHAT, body) for session in sessions]
    sockets = [
        connect(
            f"ws://127.0.0.1:{cluster.http.port}/v1/responses",
            additional_headers={"x-session-id": session},
        )
        for session in sessions
    ]
    homes = [cluster.replica_of(session) for session in sessions]
    try:
        cluster.deploy(1)
        (left,) = cluster.replicas()
        leaver = 1 - homes.index(left)
        streams[1 - leaver].close()
        data = b""
        while part := streams[leaver].recv(1 << 16):
            data += part
        assert b"data: [DONE]" in data
        *_, last, usage = events_in(data)
        assert last["choices"][0]["finish_reason"] == "length"
        with pytest.raises(Exception, match="1001"):
            sockets[leaver].recv(timeout=20)
        after = cluster.respond("go on", previous_response_id=usage["usage"]["sinkstream"]["node"])
        assert after.status == 200
        assert after.json["sinkstream"]["state"] in ("loaded", "replayed")
        assert after.headers[REPLICA] == left
    finally:
        for one in (*streams, *sockets):
            one.close()
        cluster.deploy(2)


def test_conversations_go_on_while_replicas_come_and_go(cluster: Cluster, tmp_path: Path) -> None:
    crowd = scale_up_and_down(cluster, 8, 2, lambda phase: None)
    assert crowd.lost_turns() == 0
    assert crowd.foreign_texts(cluster.folder, tmp_path, cluster.load) == 0
    assert [max(moves) for moves in crowd.moves_by_change] == [1, 1]
