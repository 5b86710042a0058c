"""A conversation of many turns through a small window, the whole history resent with each.

The first byte must come as early in the last turns as in the second, because only the new message
is read. `read` is prompt tokens minus cached ones; `new` are those of the message and the closing
of the previous reply.
"""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass
from typing import Any

from engine.row import Outcome, Row

from server.client import Reply, chat
from server.process import sinkstream_server
from server.setting import Setting

_SAME = 10  # turns at each end that are compared


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    turns: int = 200
    window: int = 256
    reply: int = 16


async def _converse(port: int, sizes: Sizes) -> list[Reply]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Answer in one sentence."}]
    replies = []
    for turn in range(sizes.turns):
        messages.append({"role": "user", "content": f"Say something about the number {turn}."})
        reply = await chat(
            port,
            {"messages": messages, "max_tokens": sizes.reply, "temperature": 0, "ignore_eos": True},
        )
        messages.append({"role": "assistant", "content": reply.text})
        replies.append(reply)
    return replies


def measure(setting: Setting, sizes: Sizes) -> Outcome:
    """Measure the first byte of each turn, and what was read for it."""
    options = ["--window", str(sizes.window), *setting.options()]
    with sinkstream_server(options) as server:
        replies = asyncio.run(_converse(server.port, sizes))
    usages = [reply.usage for reply in replies]
    read = [u["prompt_tokens"] - u["prompt_tokens_details"]["cached_tokens"] for u in usages]
    totals = [usage["total_tokens"] for usage in usages]
    # The last token of a reply is read with the next turn.
    new = [u["prompt_tokens"] - before for u, before in zip(usages[1:], totals, strict=False)]
    firsts = [reply.first_s * 1e3 for reply in replies]
    early, late = (statistics.median(part) for part in (firsts[1 : 1 + _SAME], firsts[-_SAME:]))
    return Outcome(
        rows=[
            Row("first byte, last turns over first ones", late / early, at_most=1.3),
            Row("first byte of turns 2 to 11", early, "ms"),
            Row(f"first byte of the last {_SAME} turns", late, "ms"),
            Row(
                "most tokens read beyond the new ones",
                max(map(int.__sub__, read[1:], new)),
                at_most=1,
            ),
            Row("tokens of the whole conversation", totals[-1]),
        ],
        evicted_tokens=sum(usage["sinkstream"]["evicted_tokens"] for usage in usages),
        threads=setting.threads,
        series={"first_byte_ms": [round(first, 2) for first in firsts], "read": read},
    )
