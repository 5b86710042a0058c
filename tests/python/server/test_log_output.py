"""How the server's log is written, and what a busy port says."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from sinkstream.errors import InvalidArgument
from sinkstream.server.config import ServerConfig, check_config
from sinkstream.server.request_log import RequestLog, log_to_stderr, logger
from sinkstream.server.serve import open_socket


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def write(route: str, status: int) -> None:
    RequestLog("r1", status=status, prompt_tokens=7, queued_s=0.5).write("GET", route, 1.25)


def test_a_line_for_people_has_a_level(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr("info", "text")
    write("/v1/models", 200)
    write("/v1/models", 503)
    facts = "key=none queued=0.500s choices=0 prompt_tokens=7 generated_tokens=0"
    facts += " evicted=0 pinned=0 dropped=0"
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(rf".* INFO r1 GET /v1/models 200 1\.250s {facts} finish=none", lines[0])
    assert re.fullmatch(rf".* WARNING r1 GET /v1/models 503 1\.250s {facts} .*", lines[1])


def test_a_line_for_programs_is_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr("info", "json")
    write("/v1/models", 200)
    logger.warning("the store is %s", "slow")
    request, message = map(json.loads, capsys.readouterr().err.splitlines())
    assert (request["level"], request["route"], request["status"]) == ("info", "/v1/models", 200)
    assert (request["request_id"], request["prompt_tokens"]) == ("r1", 7)
    assert (request["seconds"], request["queued"]) == (1.25, 0.5)
    assert (message["level"], message["message"]) == ("warning", "the store is slow")


@pytest.mark.parametrize("route", ["/health", "/v1/health", "/metrics"])
def test_probes_that_succeed_are_for_debugging(
    capsys: pytest.CaptureFixture[str], route: str
) -> None:
    log_to_stderr("info", "text")
    write(route, 200)
    assert not capsys.readouterr().err
    write(route, 503)
    assert route in capsys.readouterr().err
    logger.setLevel("DEBUG")
    write(route, 200)
    assert " DEBUG " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["log_level", "log_format"])
def test_an_unknown_form_of_the_log_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"`{name}` must be one of .*, but is 'loud'"):
        check_config(ServerConfig(**{name: "loud"}))


def test_a_port_in_use_is_named_with_a_remedy() -> None:
    with closing(open_socket("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        rule = f"`port` must be one to listen on, but 127.0.0.1:{port} cannot be used: Address "
        with pytest.raises(OSError, match=rule) as refused:
            open_socket("127.0.0.1", port)
    assert str(refused.value.strerror).endswith("Choose another with --port; 0 takes a free one.")


def test_an_address_of_another_machine_is_named_with_a_remedy() -> None:
    with pytest.raises(OSError, match=r"`host` must .* but 203\.0\.113\.1:0"):
        open_socket("203.0.113.1", 0)
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo("no.such.host.invalid", 0)
    with pytest.raises(OSError, match=r"`host` must .*--host"):
        open_socket("no.such.host.invalid", 0)
