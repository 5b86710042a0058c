"""Requests that are sent again with the same `Idempotency-Key`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from sinkstream.server import idempotency
from sinkstream.server.errors import ApiError, invalid
from sinkstream.server.idempotency import MOST_OF_ONE, Repeats, key_of
from sinkstream.server.request_log import KEY, RequestLog


class App:
    """Sends a head, and then a part whenever it may."""

    def __init__(self, status: int = 200, parts: int = 2, size: int = 1) -> None:
        self.status, self.parts, self.size = status, parts, size
        self.may_send = asyncio.Semaphore(0)
        self.runs = 0
        self.error: Exception | None = None
        self.is_cancelled = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.runs += 1
        if self.error is not None:
            raise self.error
        scope[KEY].generated_tokens = self.parts
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        try:
            for number in range(self.parts):
                await self.may_send.acquire()
                body = bytes([number]) * self.size
                more = number + 1 < self.parts
                await send({"type": "http.response.body", "body": body, "more_body": more})
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise


class Client:
    """One request with a key."""

    def __init__(self, repeats: Repeats, app: App, **given: Any) -> None:
        self.log = RequestLog("id", given.get("tenant", ""), given.get("body", b"body"))
        self.messages: list[Any] = []
        self.leaves = asyncio.Event()
        scope = {KEY: self.log, "path": given.get("path", "/v1/completions")}

        async def receive() -> Any:
            await self.leaves.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.messages.append(message)

        run = repeats.run(app, given.get("key", "k"), scope, receive, send)
        self.task = asyncio.create_task(run)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    async def end(self) -> None:
        await asyncio.wait_for(asyncio.shield(self.task), 10)


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(work(), 20)

    asyncio.run(limited())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_response_is_repeated_and_generated_once() -> None:
    async def check() -> None:
        repeats, app = Repeats({}), App()
        app.may_send = asyncio.Semaphore(2)
        first = Client(repeats, app)
        await first.end()
        again = Client(repeats, app)
        await again.end()
        assert app.runs == 1
        assert first.messages == again.messages
        assert again.body == b"\0\1"
        assert again.log.generated_tokens == 2

    run(check)


def test_a_retry_follows_a_request_that_still_runs_although_its_client_has_left() -> None:
    async def check() -> None:
        repeats, app = Repeats({}), App()
        first = Client(repeats, app)
        app.may_send.release()
        await settle()
        first.leaves.set()
        await first.end()
        assert first.log.finish == "client_left"
        again = Client(repeats, app)
        app.may_send.release()
        await again.end()
        assert (app.runs, again.body, first.body) == (1, b"\0\1", b"\0")

    run(check)


@pytest.mark.parametrize("other", [{"body": b"other"}, {"path": "/v1/responses"}])
def test_a_key_of_a_different_request_is_refused(other: dict[str, Any]) -> None:
    async def check() -> None:
        repeats, app = Repeats({}), App()
        app.may_send = asyncio.Semaphore(9)
        await Client(repeats, app).end()
        with pytest.raises(ApiError, match="different body or path") as refused:
            await Client(repeats, app, **other).end()
        assert (refused.value.status, refused.value.code) == (422, "idempotency_key_reused")
        await Client(repeats, app, tenant="other", **other).end()  # its own name
        assert app.runs == 2

    run(check)


def test_a_request_that_fails_may_be_tried_again() -> None:
    async def check() -> None:
        repeats, app = Repeats({}), App()
        app.error = invalid("body: must not be so")
        with pytest.raises(ApiError, match="body: must not be so"):
            await Client(repeats, app).end()
        app.error, app.status, app.may_send = None, 429, asyncio.Semaphore(9)
        await Client(repeats, app).end()
        app.status = 200
        await Client(repeats, app).end()
        await Client(repeats, app).end()
        assert app.runs == 3
        assert repeats.shares.held == idempotency._LEAST_BYTES + 2

    run(check)


def test_a_request_without_a_client_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "ALONE_S", 0.01)

    async def check() -> None:
        repeats, app = Repeats({}), App()
        first = Client(repeats, app)
        await settle()
        first.leaves.set()
        await first.end()
        while not app.is_cancelled:
            await asyncio.sleep(0.005)
        await settle()
        assert repeats.shares.held == 0

    run(check)


def test_a_long_response_is_sent_whole_but_not_kept() -> None:
    async def check() -> None:
        repeats, app = Repeats({}), App(parts=8, size=MOST_OF_ONE // 4)
        app.may_send = asyncio.Semaphore(8)
        first = Client(repeats, app)
        await first.end()
        assert len(first.body) == 8 * (MOST_OF_ONE // 4)
        (kept,) = repeats._kept[""].values()
        assert not kept.messages
        with pytest.raises(ApiError, match="cannot be repeated"):
            await Client(repeats, app).end()

    run(check)


def test_what_is_kept_is_bounded_and_a_key_forgets_only_its_own() -> None:
    async def check() -> None:
        now = 0.0
        repeats = Repeats({"a": 1.0, "b": 1.0}, lambda: now)
        repeats.shares.limit = 8 * idempotency._LEAST_BYTES
        app = App(parts=1)
        app.may_send = asyncio.Semaphore(999)
        await Client(repeats, app, tenant="b", key="kept").end()
        for number in range(20):
            await Client(repeats, app, tenant="a", key=f"{number}").end()
        assert app.runs == 21
        await Client(repeats, app, tenant="b", key="kept").end()
        await Client(repeats, app, tenant="a", key="19").end()
        assert app.runs == 21  # repeated
        await Client(repeats, app, tenant="a", key="0").end()
        assert app.runs == 22  # forgotten
        now = idempotency.KEPT_S + 1
        await Client(repeats, app, tenant="b", key="new").end()
        assert len(repeats._kept) == 1

    run(check)


@pytest.mark.parametrize("key", [b"", b"a" * 256, b"\xff", b"a\tb"])
def test_a_key_has_a_form(key: bytes) -> None:
    scope = {"path": "/v1/responses", "method": "POST", "headers": [(b"idempotency-key", key)]}
    with pytest.raises(ApiError, match="printable ASCII"):
        key_of(scope)


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        ("POST", "/v1/responses", "k"),
        ("POST", "/chat/completions", "k"),
        ("POST", "/tokenize", None),
        ("GET", "/v1/responses", None),
    ],
)
def test_only_requests_that_create_are_repeated(method: str, path: str, found: str | None) -> None:
    scope = {"path": path, "method": method, "headers": [(b"idempotency-key", b"k")]}
    assert key_of(scope) == found


def test_room_is_made_without_a_look_at_all_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key may have tens of thousands of them, and the event loop waits."""
    monkeypatch.setattr(idempotency, "MOST_BYTES", 400 * 1024)
    looks = 0

    async def check() -> None:
        nonlocal looks
        repeats = Repeats({})
        has_room = repeats.shares.has_room

        def counted(tenant: str, count: int = 1) -> bool:
            nonlocal looks
            looks += 1
            return has_room(tenant, count)

        monkeypatch.setattr(repeats.shares, "has_room", counted)
        for number in range(450):
            app, looks = App(parts=1), 0
            app.may_send.release()
            await Client(repeats, app, key=str(number)).end()
            assert looks <= 4
        assert sum(map(len, repeats._kept.values())) < 400

    run(check)
