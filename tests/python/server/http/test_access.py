"""Who may ask: keys, Host, Origin, content types and methods, on every route, before routing."""

from __future__ import annotations

import re
import socket

import pytest

from tests.python.server.http.running_server import CHAT, COMPLETIONS, HELLO, Running, read_all

ROUTES = [
    ("GET", "/models", None),
    ("GET", "/models/tiny", None),
    ("GET", "/version", None),
    ("GET", "/metrics", None),
    ("POST", "/chat/completions", {"messages": HELLO, "max_tokens": 1}),
    ("POST", "/completions", {"prompt": "the", "max_tokens": 1}),
    ("POST", "/responses", {"input": "the", "max_output_tokens": 1}),
    ("POST", "/responses/input_tokens", {"input": "the"}),
    ("POST", "/tokenize", {"content": "the"}),
    ("POST", "/detokenize", {"tokens": [5]}),
    ("POST", "/apply-template", {"messages": HELLO}),
]
ALL = [(method, prefix + path, body) for method, path, body in ROUTES for prefix in ("", "/v1")]
UPGRADE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


@pytest.mark.parametrize(("method", "path", "body"), ALL)
def test_a_route_needs_a_right_key(locked: Running, method: str, path: str, body: object) -> None:
    refused = locked.ask(method, path, body)
    assert (refused.status, refused.error["code"]) == (401, "invalid_api_key")
    for wrong in ("Bearer wrong", "right", "Basic right", "Bearer ", "Bearer right,other"):
        assert locked.ask(method, path, body, {"Authorization": wrong}).status == 401, wrong
    both = {"Authorization": "Bearer right", "X-Api-Key": "wrong"}
    assert locked.ask(method, path, body, both).status == 401
    for right in ({"Authorization": "Bearer right"}, {"X-Api-Key": "other"}):
        assert locked.ask(method, path, body, right).status == 200


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_only_health_needs_no_key(locked: Running, path: str) -> None:
    assert locked.ask("GET", path).json == {"status": "ok"}
    assert locked.ask("HEAD", path).status == 200
    assert locked.ask("POST", path, {}).status == 401


PATHS = ["/nothing", "/page", "//health", "/health/", "/health/../models", "/%68ealth", "/HEALTH",
         "/v1//health", "/health%2f..%2fmodels", "/openapi.json", "/docs"]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_no_other_path_is_let_through(locked: Running, path: str) -> None:
    assert locked.ask("GET", path).status == 401


GOOD_HOSTS = ["localhost", "localhost:1", "127.0.0.1", "127.9.9.9:80", "[::1]:8000", "LOCALHOST",
              "localhost.", "chat.example"]  # fmt: skip
BAD_HOSTS = ["evil.example", "localhost.evil.example", "localhost:x", "", "10.0.0.1", "[::1",
             "[::1]x", "localhost@evil.example", "127.0.0.1.evil.example"]  # fmt: skip


@pytest.mark.parametrize("host", GOOD_HOSTS + BAD_HOSTS)
def test_a_host_must_be_this_server(guarded: Running, host: str) -> None:
    head = f"GET /health HTTP/1.1\r\nHost: {host}\r\n"
    assert guarded.raw(head)[0] == (200 if host in GOOD_HOSTS else 403)
    with guarded.open(head + UPGRADE) as connection:
        found = read_all(connection)
    # There is no socket at that path, which is refused with 403 as well, but by the routes.
    assert found.startswith(b"HTTP/1.1 403 ")
    assert (b'"code":"host_not_allowed"' in found) == (host not in GOOD_HOSTS)


def test_a_host_must_be_there_once(guarded: Running) -> None:
    assert guarded.raw("GET /health HTTP/1.1\r\n")[0] == 403
    head = "GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n"
    assert guarded.raw(head)[0] == 403


def test_a_socket_needs_a_key(locked: Running) -> None:
    head = "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\n" + UPGRADE
    with locked.open(head) as connection:
        found = connection.recv(4096)
    assert found.startswith(b"HTTP/1.1 401 ")


BAD_ORIGINS = ["null", "http://127.0.0.1:1", "https://evil.example", "",
               "https://page.example.evil.example", "https://page.example:1"]  # fmt: skip


@pytest.mark.parametrize("origin", ["http://127.0.0.1:PORT", "https://page.example", *BAD_ORIGINS])
def test_a_page_of_another_origin_is_refused(guarded: Running, origin: str) -> None:
    sent = origin.replace("PORT", str(guarded.port))
    answer = guarded.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1}, Origin=sent)
    assert answer.status == (403 if origin in BAD_ORIGINS else 200)
    allowed = origin if origin == "https://page.example" else None
    assert answer.headers.get("access-control-allow-origin") == allowed
    assert answer.headers["vary"] == "Origin"


def test_a_preflight_is_answered_for_an_allowed_origin_only(guarded: Running) -> None:
    answer = guarded.ask("OPTIONS", CHAT, None, {"Origin": "https://page.example"})
    assert answer.status == 204
    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    assert guarded.ask("OPTIONS", CHAT, None, {"Origin": "https://evil.example"}).status == 403


@pytest.mark.parametrize("kind", ["text/plain", "", "application/json; charset=latin-1"])
def test_a_body_must_be_said_to_be_json(server: Running, kind: str) -> None:
    answer = server.ask("POST", COMPLETIONS, b'{"prompt":"a"}', {"Content-Type": kind})
    assert (answer.status, answer.error["code"]) == (415, "content_type")


def test_paths_and_methods_that_do_not_exist(server: Running) -> None:
    assert server.ask("GET", "/v1/nothing").error["code"] == "not_found"
    for method, path in (("GET", CHAT), ("POST", "/v1/models"), ("PUT", "/v1/models")):
        answer = server.ask(method, path, {} if method == "POST" else None)
        assert (answer.status, answer.error["code"]) == (405, "method_not_allowed"), path
    assert server.ask("GET", "/v1/models/other").error["code"] == "model_not_found"


def test_what_is_not_http_is_answered_in_json(server: Running) -> None:
    status, answer = server.raw("hello\r\n")
    assert status == 400
    assert b'"code":"invalid_http"' in answer


def test_a_head_has_a_largest_size(server: Running) -> None:
    begin = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: "
    longest = begin + "x" * (65536 - len(begin))
    with server.open(longest + "\r\n") as connection:
        assert connection.recv(12) == b"HTTP/1.1 200"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(longest.encode() + b"x")  # nothing is left unread when it is refused
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"head_too_large"' in answer


def test_a_request_keeps_its_id_unless_it_would_harm_a_log(server: Running) -> None:
    for path in ("/health", "/nothing"):
        assert (
            server.ask("GET", path, None, {"X-Request-Id": "a-1_B."}).headers["x-request-id"]
            == "a-1_B."
        )
    for bad in ("a b", "x" * 65, "a\tb", ""):
        made = server.ask("GET", "/health", None, {"X-Request-Id": bad}).headers["x-request-id"]
        assert re.fullmatch("[0-9a-f]{32}", made), made
