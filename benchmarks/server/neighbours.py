"""How long a client's stream pauses while another client sends the largest body of each route.

One stream runs all the time. Then another client sends a body of `mib` MiB, and leaves after
`leave_s` seconds if there is no response yet. The figure is the longest time between two events of
the stream meanwhile. `at rest` is the same without the other client: the machine's own pauses. The
memory is the server's, above what it had before the first body.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from engine.row import Outcome, Row

from server.client import Reply, chat
from server.process import Server, sinkstream_server
from server.setting import Setting

_GOAL_MS, _GOAL_MB = 250, 600


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    mib: int = 31
    leave_s: float = 20.0
    rest_s: float = 5.0


def _repeated(part: Any, count: int) -> list[Any]:
    return [part] * count


def bodies(size: int) -> dict[str, tuple[str, Callable[[], dict[str, Any]]]]:
    """Return each route with a body of about `size` bytes, and of as many values as are allowed."""
    most = 43_000  # messages or parts: a little less than a body may have
    text = "1234567890 the sea " * (size // 19)
    said = {"role": "user", "content": "the sea"}
    history = [{**said, "content": text}, {**said, "role": "assistant"}, said]
    tool = {"type": "function", "function": {"name": "f", "description": text}}
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"const": text}}}
    part = {"type": "text", "text": "a"}
    parts = {"role": "user", "content": _repeated(part, most)}
    one = {"max_tokens": 1}
    short = {"messages": [said], **one}
    return {
        "a chat": ("/chat/completions", lambda: {"messages": [{**said, "content": text}], **one}),
        "a history": ("/chat/completions", lambda: {"messages": history, **one}),
        "emoji": (
            "/chat/completions",
            lambda: {"messages": [{**said, "content": "\N{WATER WAVE}" * (size // 12)}], **one},
        ),
        "a tool": ("/chat/completions", lambda: {**short, "tools": [tool]}),
        "a schema": ("/chat/completions", lambda: {**short, "response_format": schema}),
        "a bias": (
            "/chat/completions",
            lambda: {**short, "logit_bias": {str(i): 0 for i in range(130_000)}},
        ),
        "stops": ("/chat/completions", lambda: {**short, "stop": _repeated("a", 1_000_000)}),
        "many messages": ("/chat/completions", lambda: {"messages": _repeated(said, most), **one}),
        "many parts": ("/chat/completions", lambda: {"messages": [parts], **one}),
        "a completion": ("/completions", lambda: {"prompt": text, **one}),
        "ids": ("/completions", lambda: {"prompt": _repeated(5, 1_000_000), **one}),
        "an echo": ("/completions", lambda: {"prompt": text, "echo": True, **one}),
        "a response": ("/responses", lambda: {"input": text, "max_output_tokens": 1}),
        "instructions": (
            "/responses",
            lambda: {"input": "a", "instructions": text, "max_output_tokens": 1},
        ),
        "items": ("/responses", lambda: {"input": _repeated(said, most), "max_output_tokens": 1}),
        "tokenize": ("/tokenize", lambda: {"content": text}),
        "pieces": ("/tokenize", lambda: {"content": text, "with_pieces": True}),
        "detokenize": ("/detokenize", lambda: {"tokens": _repeated(5, 1_000_000)}),
        "a template": ("/apply-template", lambda: {"messages": [parts]}),
        "arrays": ("/tokenize", lambda: {"content": "a", "x": _repeated([], size // 3)}),
    }


def _as_json(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


async def _send(port: int, path: str, payload: bytes, leave_s: float) -> str:
    """Send a body, and return the status, or that the client has left."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % (path.encode(), len(payload))
    )
    try:
        async with asyncio.timeout(leave_s):
            for begin in range(0, len(payload), 1 << 16):
                writer.write(payload[begin : begin + (1 << 16)])
                await writer.drain()
            status = (await reader.readline()).split(b" ")[1].decode()
            while await reader.read(1 << 20):
                pass
            return status
    except TimeoutError:
        return "left"
    except ConnectionError:
        return "refused"
    finally:
        writer.close()


async def _measure(server: Server, sizes: Sizes) -> tuple[dict[str, tuple[float, str]], float]:
    """Return the longest pause with each body, with its status; and the most memory in MB."""
    found: list[Reply] = []
    endless = {
        "messages": [{"role": "user", "content": "Tell a story."}],
        "max_tokens": 1 << 30,
        "ignore_eos": True,
    }
    stream = asyncio.create_task(chat(server.port, endless, found.append))
    while not found:
        await asyncio.sleep(0.05)
    reply, before, most = found[0], server.anonymous_kib(), 0
    pauses: dict[str, tuple[float, str]] = {}

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, server.anonymous_kib() - before)
            await asyncio.sleep(0.02)

    watching = asyncio.create_task(watch())
    for name, (path, make) in {"at rest": ("", dict), **bodies(sizes.mib << 20)}.items():
        payload = await asyncio.to_thread(lambda make=make: _as_json(make()))
        begin = len(reply.times)
        if path:
            status = await _send(server.port, path, payload, sizes.leave_s)
        else:
            await asyncio.sleep(sizes.rest_s)
            status = "none"
        await asyncio.sleep(0.5)
        if stream.done():
            stream.result()  # raises why it has ended
        times = [*reply.times[max(0, begin - 1) :], time.perf_counter()]  # a pause that goes on
        pauses[name] = max(b - a for a, b in pairwise(times)), status
    watching.cancel()
    stream.cancel()
    await asyncio.wait([watching, stream])
    return pauses, most * 1024 / 1e6


def measure(setting: Setting, sizes: Sizes) -> Outcome:
    """Measure the pauses of a stream, and the server's memory."""
    with sinkstream_server(setting.options()) as server:
        pauses, most = asyncio.run(_measure(server, sizes))
    rest, _ = pauses.pop("at rest")
    rows = [Row("longest pause at rest", rest * 1e3, "ms")]
    rows += [
        Row(f"longest pause, {name}", pause * 1e3, "ms", at_most=_GOAL_MS, detail=status)
        for name, (pause, status) in pauses.items()
    ]
    rows.append(Row("memory above idle", most, "MB", at_most=_GOAL_MB))
    return Outcome(rows, 0, setting.threads)
