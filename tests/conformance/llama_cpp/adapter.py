"""Stands between llama.cpp's tests and our app, in the same process: fills in what the options of
llama-server would, and answers its own `/completion` from our completions.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from sinkstream.server.service import Service
from tests.conformance.llama_cpp import native

App = Callable[[Any, Any, Any], Awaitable[None]]
_NATIVE = ("/completion", "/completions")
_GENERATING = ("/chat/completions", "/v1/chat/completions", "/v1/completions")
_ROLE = b'"delta":{"role":"assistant","content":""}'


class Adapter:
    """Wraps our app."""

    def __init__(self, app: App, service: Service, defaults: dict[str, float]) -> None:
        self._app = app
        self._service = service
        self._defaults = defaults

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        path = scope.get("path")
        is_loaded = self._service.loaded is not None
        if scope.get("method") != "POST" or path not in (*_NATIVE, *_GENERATING) or not is_loaded:
            await self._app(scope, receive, send)
            return
        raw = await _body(receive)
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        if not isinstance(body, dict):
            await self._app(scope, _replayed(raw, receive), send)
        elif path in _NATIVE:
            await self._native(scope, receive, send, body)
        else:
            # llama.cpp's own name is taken by its OpenAI route, too.
            limit = {"max_tokens": body["n_predict"]} if "n_predict" in body else {}
            await self._send(scope, receive, _first_chunk(send), {**self._filled(body), **limit})

    def _filled(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**self._defaults, **{name: v for name, v in body.items() if v is not None}}

    async def _native(self, scope: Any, receive: Any, send: Any, body: dict[str, Any]) -> None:
        texts = self._service.texts

        def encode(text: str) -> list[int]:
            return texts.encode(text, add_special=False, parse_special=True)

        try:
            asked = native.to_openai(body, self._defaults, encode)
        except native.Refused as error:
            raw = json.dumps({"error": {"message": f"{error} are llama.cpp's own"}}).encode()
            length = (b"content-length", str(len(raw)).encode())
            await send({"type": "http.response.start", "status": 400, "headers": [length]})
            await send({"type": "http.response.body", "body": raw})
            return
        translated = _Translated(send, asked, texts.piece)
        route = {**scope, "path": "/v1/completions", "raw_path": b"/v1/completions"}
        await self._send(route, receive, translated, asked.body)

    async def _send(self, scope: Any, receive: Any, send: Any, body: dict[str, Any]) -> None:
        raw = json.dumps({name: v for name, v in body.items() if v is not None}).encode()
        length = (b"content-length", str(len(raw)).encode())
        headers = [pair for pair in scope["headers"] if pair[0] != b"content-length"]
        await self._app({**scope, "headers": [*headers, length]}, _replayed(raw, receive), send)


async def _body(receive: Any) -> bytes:
    raw, is_more = b"", True
    while is_more:
        message = await receive()
        raw += message.get("body", b"")
        is_more = message.get("more_body", False)
    return raw


def _replayed(raw: bytes, receive: Any) -> Any:
    """Return a `receive` that gives a body, then what the client does."""
    messages = [{"type": "http.request", "body": raw, "more_body": False}]

    async def replay() -> Any:
        return messages.pop() if messages else await receive()

    return replay


def _first_chunk(send: Any) -> Any:
    """Return a `send` that writes null for the empty text next to the role, as llama.cpp does."""

    async def changed(message: dict[str, Any]) -> None:
        body = message.get("body", b"").replace(_ROLE, _ROLE.replace(b'""', b"null"))
        await send({**message, "body": body} if "body" in message else message)

    return changed


class _Translated:
    """A `send` that turns OpenAI's completions into llama.cpp's."""

    def __init__(self, send: Any, asked: native.Asked, bytes_of: native.Bytes) -> None:
        self._send = send
        self._asked = asked
        self._bytes = bytes_of
        self._chunks = native.Chunks(asked, bytes_of)
        self._start: dict[str, Any] = {}
        self._held = b""
        self._is_started = False

    async def __call__(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        is_last = not message.get("more_body", False)
        self._held += message.get("body", b"")
        if self._start["status"] != 200:
            if is_last:
                await self._send_start(len(self._held))
                await self._send({**message, "body": self._held})
        elif self._asked.body.get("stream"):
            await self._stream(is_last)
        elif is_last:
            answer = native.whole(json.loads(self._held), self._asked, self._bytes)
            raw = json.dumps(answer).encode()
            await self._send_start(len(raw))
            await self._send({**message, "body": raw})

    async def _send_start(self, length: int | None = None) -> None:
        headers = [pair for pair in self._start["headers"] if pair[0] != b"content-length"]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        await self._send({**self._start, "headers": headers})

    async def _stream(self, is_last: bool) -> None:
        if not self._is_started:
            self._is_started = True
            await self._send_start()
        *events, self._held = self._held.split(b"\n\n")
        out = b"".join(self._event(event) for event in events)
        await self._send({"type": "http.response.body", "body": out, "more_body": not is_last})

    def _event(self, event: bytes) -> bytes:
        if not event.startswith(b"data: {") or event.startswith(b'data: {"error"'):
            return event + b"\n\n"
        said = self._chunks.next(json.loads(event.removeprefix(b"data: ")))
        return b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in said)
