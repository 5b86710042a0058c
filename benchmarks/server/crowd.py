"""Many streams of a tiny model in one process: all are served, and the event loop stays on time.

Some clients stop reading: what the server keeps for them is bounded.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from engine.row import Outcome, Row
from engine.setting import tiny_checkpoint

from server.client import Reply, chat
from server.process import Server, sinkstream_server
from server.setting import Setting


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    streams: int = 1000
    tokens: int = 200
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


async def _run(server: Server, sizes: Sizes) -> tuple[list[Reply], list[float], float]:
    """Return the replies, the loop's lags in seconds, and KiB per stalled client."""
    lags: list[float] = []
    done = asyncio.Event()

    async def watch() -> None:
        while not done.is_set():
            lags.append(await asyncio.to_thread(server.metric, "sinkstream_event_loop_lag_seconds"))
            await asyncio.sleep(1)

    watching = asyncio.create_task(watch())
    replies = await asyncio.gather(
        *(
            chat(
                server.port,
                {
                    "messages": [{"role": "user", "content": f"the {stream}"}],
                    "max_tokens": sizes.tokens,
                    "ignore_eos": True,
                    "seed": stream,
                },
            )
            for stream in range(sizes.streams)
        )
    )
    done.set()
    await watching
    before = server.anonymous_kib()
    writers = [await _stalled(server.port) for _ in range(sizes.stalled)]
    await asyncio.sleep(10)
    per_client = (server.anonymous_kib() - before) / max(1, sizes.stalled)
    for writer in writers:
        writer.close()
    return list(replies), lags, per_client


def measure(setting: Setting, sizes: Sizes) -> Outcome:
    """Measure who was served, the loop's lag, and memory."""
    with tiny_checkpoint() as model:
        options = ["--model", model, "--threads", "1", "--window", "60"]
        options += ["--max-sequences", str(sizes.streams), "--max-queue", str(sizes.streams)]
        with sinkstream_server(options) as server:
            replies, lags, per_client = asyncio.run(_run(server, sizes))
    served = sum(reply.usage["completion_tokens"] == sizes.tokens for reply in replies)
    return Outcome(
        rows=[
            Row("streams served to the end", served, at_least=sizes.streams),
            Row("longest delay of the event loop", max(lags) * 1e3, "ms", at_most=20),
            Row("memory per client that does not read", per_client, "KiB", at_most=64),
        ],
        evicted_tokens=sum(reply.usage["sinkstream"]["evicted_tokens"] for reply in replies),
        threads=setting.threads,
    )
