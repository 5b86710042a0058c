"""While a reply is sent, nothing of its request is held but what the engine has read."""

from __future__ import annotations

import gc
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from tests.python.server.http.running_server import CHAT, COMPLETIONS, Running, running

MARK = "canary"
WAIT_S = 10
LONG: dict[str, Any] = {"max_tokens": 60_000, "ignore_eos": True, "stream": True}
RESPONSE: dict[str, Any] = {"max_output_tokens": 60_000, "ignore_eos": True, "stream": True}
SMALL = 4096  # of the kernel's buffer of a client

Make = Callable[[str], dict[str, Any]]


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


KINDS: dict[str, tuple[str, Make]] = {
    "a chat": (CHAT, lambda text: {"messages": said(text), **LONG}),
    "a chat with n": (CHAT, lambda text: {"messages": said(text), **LONG, "n": 2}),
    "an unstored chat": (CHAT, lambda text: {"messages": said(text), **LONG, "store": False}),
    "a completion": (COMPLETIONS, lambda text: {"prompt": text, **LONG}),
    "completions": (COMPLETIONS, lambda text: {"prompt": [text, f"{text} too"], **LONG}),
    "a response": ("/v1/responses", lambda text: {"input": text, **RESPONSE}),
    "a response to items": ("/v1/responses", lambda text: {"input": said(text), **RESPONSE}),
    "an unstored response": (
        "/v1/responses",
        lambda text: {"input": text, **RESPONSE, "store": False},
    ),
}


@pytest.fixture(scope="module", params=["with a store", "without one"])
def server(
    request: pytest.FixtureRequest,
    tiny_folder: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Running]:
    store = str(tmp_path_factory.mktemp("store")) if request.param == "with a store" else "none"
    with running(tiny_folder("llama"), store=store, sequences=2 * len(KINDS)) as found:
        yield found


def begun(server: Running, kind: str) -> socket.socket:
    """Return a connection to a reply that has begun. No text of the request is left here."""
    path, make = KINDS[kind]
    connection, answer = server.begin(path, make(f"the {MARK} of {kind}."), SMALL), b""
    while b'"content":"' not in answer and b'"text":"' not in answer and b".delta" not in answer:
        part = connection.recv(1 << 16)
        assert part, answer
        answer += part
    return connection


def texts_of(one: object, depth: int = 3) -> Iterator[str]:
    """Yield the texts that an object holds, also in containers that the collector ignores."""
    for each in gc.get_referents(one):
        if isinstance(each, str):
            yield each
        elif isinstance(each, bytes | bytearray):
            yield each.decode("latin-1")
        elif depth and isinstance(each, dict | tuple) and not gc.is_tracked(each):
            yield from texts_of(each, depth - 1)


def held() -> list[str]:
    """Return the kinds of requests of which a text is held, and by which kinds of objects."""
    gc.collect()
    found = set()
    for one in gc.get_objects():
        for text in texts_of(one):
            if (name := re.search(f"the {MARK} of ([a-z ]+)", text)) is not None:
                found.add(f"{name[1]}: {type(one).__qualname__}")
    return sorted(found)


def test_a_request_is_not_held_while_its_reply_is_sent(server: Running) -> None:
    end = time.monotonic() + WAIT_S
    with ExitStack() as stack:
        for kind in KINDS:
            stack.enter_context(begun(server, kind))
        while (found := held()) and time.monotonic() < end:
            time.sleep(0.1)  # the beginning of a turn is being written
        assert server.model.stats()["running"] + server.model.stats()["parked"] >= len(KINDS)
        assert found == []
