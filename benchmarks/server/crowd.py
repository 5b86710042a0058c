"""Many streams and sockets of a tiny model in one process: all are served, and on time.

The server measures the delay of its event loop ten times a second; counted are the delays from the
first request to the last reply. Clients of another server do not read: what it keeps for each of
them is bounded.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from engine.row import Outcome, Row
from engine.setting import tiny_checkpoint

from server.client import chat
from server.process import Server, sinkstream_server
from server.setting import Setting
from server.socket_client import respond

_DELAYS = "sinkstream_event_loop_delay_seconds"
_ON_TIME = _DELAYS + '_bucket{le="0.02"}'
_STALL_S = 10  # until the server has sent all that it can
_WATCH_S = 5  # the longest delay is that of the last ten seconds


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    streams: int = 1000
    sockets: int = 200
    tokens: int = 800
    stalled: int = 100  # clients that never read


async def _stalled(port: int) -> asyncio.StreamWriter:
    """Ask for an endless reply, and never read it."""
    body = json.dumps(
        {"prompt": "the", "max_tokens": 10**6, "ignore_eos": True, "stream": True}
    ).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    return writer


@dataclass(frozen=True)
class _Delays:
    """Delays of the event loop."""

    on_time: float  # the share of at most 20 ms
    longest_s: float


async def _served(server: Server, sizes: Sizes) -> list[dict[str, Any]]:
    """Return the usage of all replies."""

    async def stream(number: int) -> dict[str, Any]:
        messages = [{"role": "user", "content": f"the {number}"}]
        options = {"max_tokens": sizes.tokens, "ignore_eos": True, "seed": number}
        return (await chat(server.port, {"messages": messages, **options})).usage

    async def socket(number: int) -> dict[str, Any]:
        options = {"max_output_tokens": sizes.tokens, "ignore_eos": True, "seed": number}
        response = await respond(server.port, {"input": f"the {number}", **options})
        tokens = response["usage"]["output_tokens"]
        return {"completion_tokens": tokens, "sinkstream": response["sinkstream"]}

    return await asyncio.gather(
        *(stream(number) for number in range(sizes.streams)),
        *(socket(number) for number in range(sizes.sockets)),
    )


async def _watched(server: Server, sizes: Sizes) -> tuple[list[dict[str, Any]], _Delays]:
    """Return the usage of all replies, and the loop's delays meanwhile."""

    async def metrics(*names: str) -> list[float]:
        return [await asyncio.to_thread(server.metric, name) for name in names]

    longest: list[float] = []
    before = await metrics(_ON_TIME, f"{_DELAYS}_count")
    serving = asyncio.create_task(_served(server, sizes))
    while not serving.done():
        await asyncio.wait({serving}, timeout=_WATCH_S)
        longest += await metrics("sinkstream_event_loop_lag_seconds")
    after = await metrics(_ON_TIME, f"{_DELAYS}_count")
    on_time, count = (b - a for a, b in zip(before, after, strict=True))
    return serving.result(), _Delays(on_time / count, max(longest))


async def _kib_of_stalled(server: Server, sizes: Sizes) -> float:
    """Return the memory per client that does not read."""
    writers = [await _stalled(server.port)]  # everything is used once
    await asyncio.sleep(_STALL_S)
    before = server.anonymous_kib()
    writers += [await _stalled(server.port) for _ in range(sizes.stalled)]
    await asyncio.sleep(_STALL_S)
    per_client = (server.anonymous_kib() - before) / max(1, sizes.stalled)
    for writer in writers:
        writer.close()
    return per_client


def measure(setting: Setting, sizes: Sizes) -> Outcome:
    """Measure who was served, the loop's delays, and memory."""
    count = sizes.streams + sizes.sockets
    with tiny_checkpoint() as model:
        options = ["--model", model, "--threads", "1", "--window", "60"]
        options += ["--max-sequences", str(count), "--max-queue", str(count)]
        with sinkstream_server(options) as server:
            usages, delays = asyncio.run(_watched(server, sizes))
        # A server of its own: it has no memory that earlier requests have left free.
        with sinkstream_server(options) as server:
            per_client = asyncio.run(_kib_of_stalled(server, sizes))
    served = sum(usage["completion_tokens"] == sizes.tokens for usage in usages)
    return Outcome(
        rows=[
            Row("streams and sockets served to the end", served, at_least=count),
            Row("loop delays of at most 20 ms", delays.on_time * 100, "%", at_least=99),
            Row("longest delay of the event loop", delays.longest_s * 1e3, "ms"),
            Row("memory per client that does not read", per_client, "KiB", at_most=64),
        ],
        evicted_tokens=sum(usage["sinkstream"]["evicted_tokens"] for usage in usages),
        threads=setting.threads,
    )
