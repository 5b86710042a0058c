"""A small HTTP server: text as server-sent events, metrics for Prometheus, and a health check.

    python examples/serve.py --port 8000
    curl -N localhost:8000/stream -d '{"prompt": "Once upon a time", "max_tokens": 40}'
    curl localhost:8000/metrics; curl localhost:8000/healthz

It needs only the standard library, and shows what a server in any framework has to do: start a
stream and read it with `async for`, refuse requests when too many wait, close the stream of a
client that has left, and end in order on SIGTERM. It has no authentication and no TLS: put it
behind a proxy.
"""

from __future__ import annotations

import argparse
import asyncio
import http
import json
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sinkstream

MAX_BODY_BYTES = 1 << 20
MAX_WAITING = 64  # requests beyond this get 503: better refused now than answered late
READ_TIMEOUT_S = 10  # of a request's head and body
END_TIMEOUT_S = 5  # for clients to take the end of their streams
METHODS = {"/healthz": "GET", "/metrics": "GET", "/stream": "POST"}
OPTIONS = ("ignore_eos", "max_tokens", "seed", "stop", "temperature", "timeout_s", "top_k", "top_p")


@dataclass
class Request:
    """What the server needs of a request."""

    method: str
    path: str
    body: bytes


async def read_request(reader: asyncio.StreamReader) -> Request:
    """Read a request with its body.

    Raises:
        ValueError: It is not HTTP, or its body is too large.
    """
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    length = int(headers.get("content-length", 0))
    if not 0 <= length <= MAX_BODY_BYTES:
        raise ValueError(f"the body must have at most {MAX_BODY_BYTES} bytes")
    return Request(method, path.partition("?")[0], await reader.readexactly(length))


class Server:
    """Answers requests with one model."""

    def __init__(self, model: sinkstream.Model) -> None:
        self._model = model
        self._tasks: set[asyncio.Task[None]] = set()  # one for each connection
        self._streams: set[sinkstream.Stream] = set()

    async def serve(self, host: str, port: int) -> None:
        """Serve until SIGTERM or Ctrl-C; then end the streams; clients get the text so far."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        server = await asyncio.start_server(self._connect, host, port)
        address = server.sockets[0].getsockname()
        print(f"listening on http://{address[0]}:{address[1]}", flush=True)
        await stop.wait()
        server.close()
        for stream in self._streams:
            stream.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_TIMEOUT_S)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                request = await read_request(reader)
            answering = asyncio.ensure_future(self._answer(request, writer))
            leaving = asyncio.ensure_future(reader.read(1))  # returns when the client leaves
            try:
                await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                leaving.cancel()
                answering.cancel()  # no effect if it has ended
                await asyncio.gather(answering, leaving, return_exceptions=True)
        except (ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            await self._write(writer, 400, "text/plain", f"{error}\n")
        except (ConnectionError, TimeoutError):
            pass  # the client has left, or sends nothing
        finally:
            self._tasks.discard(task)
            with suppress(ConnectionError):
                writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        match request.method, request.path:
            case "GET", "/healthz":
                dead = self._model.stats()["is_dead"]
                await self._write(
                    writer, 503 if dead else 200, "text/plain", "dead\n" if dead else "ok\n"
                )
            case "GET", "/metrics":
                text = sinkstream.prometheus_text(self._model)
                await self._write(writer, 200, "text/plain; version=0.0.4", text)
            case "POST", "/stream":
                await self._stream(request, writer)
            case _, path if path in METHODS:
                await self._write(writer, 405, "text/plain", f"{path} takes {METHODS[path]}\n")
            case _:
                await self._write(writer, 404, "text/plain", "there is no such page\n")

    async def _stream(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if self._model.stats()["waiting"] >= MAX_WAITING:
            await self._write(writer, 503, "text/plain", "too many requests are waiting\n")
            return
        try:
            prompt, options = read_body(request.body)
            stream = self._model.stream(prompt, **options)
        except (TypeError, ValueError) as error:  # InvalidArgument is a ValueError
            await self._write(writer, 400, "text/plain", f"{error}\n")
            return
        self._streams.add(stream)
        try:
            writer.write(head_of(200, "text/event-stream"))
            async for event in events_of(stream):
                writer.write(f"data: {json.dumps(event)}\n\n".encode())
                await writer.drain()
        finally:
            self._streams.discard(stream)
            stream.close()  # at once, also if the client has left

    async def _write(self, writer: asyncio.StreamWriter, status: int, kind: str, text: str) -> None:
        with suppress(ConnectionError):
            writer.write(head_of(status, kind) + text.encode())
            await writer.drain()


def read_body(body: bytes) -> tuple[Any, Any]:
    """Return the prompt and the options of a request.

    Raises:
        ValueError: It is not a JSON object with a prompt and known options.
    """
    fields = json.loads(body)
    if not isinstance(fields, dict) or "prompt" not in fields:
        raise ValueError('the body must be a JSON object with a "prompt"')
    prompt = fields.pop("prompt")
    if unknown := sorted(fields.keys() - OPTIONS):
        raise ValueError(f"there is no option {unknown[0]!r}; known are {', '.join(OPTIONS)}")
    return prompt, {"max_tokens": 256, **fields}


async def events_of(stream: sinkstream.Stream) -> AsyncIterator[dict[str, object]]:
    """Yield text as it is generated, then how the stream ended."""
    try:
        async for text in stream:
            yield {"text": text}
    except sinkstream.SinkstreamError as error:  # such as CapacityError, after a wait
        yield {"error": error.code, "message": str(error)}
    else:
        yield {"finish_reason": stream.finish_reason, "tokens": stream.stats.generated_tokens}


def head_of(status: int, kind: str) -> bytes:
    """Return the head of a response that ends with the connection."""
    reason = http.HTTPStatus(status).phrase
    return (
        f"HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nCache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    ).encode()


def main(arguments: list[str] | None = None) -> int:
    """Load the model and serve it; return the exit code."""
    parser = argparse.ArgumentParser(description="Serve text over HTTP.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on [127.0.0.1]")
    parser.add_argument("--port", type=int, default=8000, help="port, 0 for a free one [8000]")
    parser.add_argument("--model", help="a .gguf file, a folder or a name [smollm2]")
    parser.add_argument("--window", type=int, default=1020, help="W, the most recent tokens [1020]")
    parser.add_argument("--streams", type=int, default=8, help="streams at the same time [8]")
    options = parser.parse_args(arguments)
    with sinkstream.load(
        options.model, window=options.window, max_sequences=options.streams
    ) as model:
        asyncio.run(Server(model).serve(options.host, options.port))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
