"""How long a key waits for its first token while another key floods the server.

One key asks, one request after another, with a prompt that shares nothing with earlier ones. The
other key meanwhile has none in progress; just as many as its share of the sequences; or `flood`,
most of which wait or are refused and sent again. The goal is about the last two: what a key asks
for beyond its share must not cost another one more than twice the time.
"""

from __future__ import annotations

import asyncio
import statistics
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from engine.row import Outcome, Row

from server.client import chat
from server.process import Server, sinkstream_server
from server.setting import Setting

_GOAL = 2
_KEYS = ("one", "other")
_AGAIN_S = 1.0  # until a refused request is sent again: the least that `Retry-After` says


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rounds: int = 4
    asks: int = 4  # in a round
    sequences: int = 4
    flood: int = 64  # requests of the other key in progress
    words: int = 100  # of a prompt
    tokens: int = 32


def _request(sizes: Sizes, number: int) -> dict[str, Any]:
    words = " ".join(f"{number} sea" for _ in range(sizes.words // 2))
    said = [{"role": "user", "content": words}]
    return {"messages": said, "max_tokens": sizes.tokens, "ignore_eos": True}


async def _ask_on(server: Server, sizes: Sizes, number: int) -> None:
    """Ask for the other key until cancelled."""
    while True:
        number += 1000
        try:
            await chat(server.port, _request(sizes, number), key=_KEYS[1])
        except (OSError, RuntimeError):  # such as status 429
            await asyncio.sleep(_AGAIN_S)


async def _first_tokens(server: Server, sizes: Sizes, others: int, round_: int) -> list[float]:
    """Return the seconds to each first token while the other key has requests in progress."""
    asking = [asyncio.create_task(_ask_on(server, sizes, number)) for number in range(others)]
    busy = min(others, sizes.sequences // 2)
    while await asyncio.to_thread(server.metric, "sinkstream_running_requests") < busy:
        await asyncio.sleep(0.05)
    found = []
    for number in range(sizes.asks):
        asked = {**_request(sizes, -1 - number - sizes.asks * round_), "max_tokens": 1}
        found.append((await chat(server.port, asked, key=_KEYS[0])).first_s)
    for task in asking:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    while await asyncio.to_thread(server.metric, "sinkstream_running_requests"):
        await asyncio.sleep(0.05)
    return found


async def _measure(server: Server, sizes: Sizes) -> dict[str, list[float]]:
    others = {"alone": 0, "equal": sizes.sequences // 2, "flood": sizes.flood}
    found: dict[str, list[float]] = {name: [] for name in others}
    for round_ in range(sizes.rounds):  # interleaved: a machine's speed changes meanwhile
        for name, count in others.items():
            found[name] += await _first_tokens(server, sizes, count, round_)
    return found


def measure(setting: Setting, sizes: Sizes) -> Outcome:
    """Measure the first tokens of a key whose server another key uses."""
    keys = [word for key in _KEYS for word in ("--api-key", key)]
    options = [
        *setting.options(),
        "--max-sequences",
        str(sizes.sequences),
        "--public-metrics",
        *keys,
    ]
    with sinkstream_server(options, keeps=False) as server:
        found = asyncio.run(_measure(server, sizes))
    rows = [
        Row(f"first token, {what}", statistics.median(times) * 1e3, "ms", detail=_spread(times))
        for what, times in zip(
            ("alone", "with an equal share", "while the other floods"), found.values(), strict=True
        )
    ]
    ratio = statistics.median(found["flood"]) / statistics.median(found["equal"])
    rows.append(Row("flood over equal share", ratio, at_most=_GOAL))
    return Outcome(rows, 0, setting.threads)


def _spread(times: list[float]) -> str:
    return f"{min(times) * 1e3:.0f} – {max(times) * 1e3:.0f}"
