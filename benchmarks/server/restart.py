"""A conversation of hundreds of turns through a small window, over a kill of the server.

The client resends the whole history with each turn, as most clients do. In the middle of the
conversation, and of a reply, the server is killed with SIGKILL. It is started again on the same
store, and the client sends the same request again. No stored turn may be read again as if it were
new, no reply may pause, and the last turns must begin as early as the first ones.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

from engine.row import Outcome, Row
from figures import quantile

from server.client import Reply, chat
from server.process import Server, serving
from server.setting import Setting

_SAME = 20  # turns at each end that are compared
_BEFORE_KILL = 4  # events of the reply that is cut off


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    turns: int = 500
    window: int = 256
    reply: int = 16
    cut_off_reply: int = 64
    """Tokens that the reply would have had."""


@dataclass
class _Conversation:
    sizes: Sizes
    messages: list[dict[str, Any]] = field(
        default_factory=lambda: [{"role": "system", "content": "Answer in one sentence."}]
    )
    replies: list[Reply] = field(default_factory=list)

    async def go_on(self, server: Server, turns: int) -> None:
        while len(self.replies) < turns:
            said = f"Say something about the number {len(self.replies)}."
            self.messages.append({"role": "user", "content": said})
            await self.ask(server)

    async def ask(self, server: Server) -> None:
        reply = await chat(server.port, self._request(self.sizes.reply))
        self.messages.append({"role": "assistant", "content": reply.text})
        self.replies.append(reply)

    async def be_cut_off(self, server: Server) -> None:
        """Kill the server in the middle of a reply."""
        self.messages.append({"role": "user", "content": "Say something about a restart."})

        def kill(reply: Reply) -> None:
            if len(reply.times) == _BEFORE_KILL:
                server.process.kill()

        try:
            await chat(server.port, self._request(self.sizes.cut_off_reply), kill)
        except (RuntimeError, OSError):
            return
        raise SystemExit("the reply ended before the server was killed")

    def _request(self, tokens: int) -> dict[str, Any]:
        return {
            "messages": self.messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True
        }  # fmt: skip


def measure(setting: Setting, sizes: Sizes) -> Outcome:
    """Measure the first byte of each turn, the pauses in replies, and the turn after the kill."""
    conversation = _Conversation(sizes)
    half = sizes.turns // 2
    with tempfile.TemporaryDirectory() as store:
        options = ["--store", store, "--window", str(sizes.window), *setting.options()]
        with serving(options) as server:
            asyncio.run(conversation.go_on(server, half))
            asyncio.run(conversation.be_cut_off(server))
        began = time.perf_counter()
        with serving(options) as server:
            asyncio.run(conversation.ask(server))
            answered_s = conversation.replies[half].times[0] - began
            asyncio.run(conversation.go_on(server, sizes.turns))
    replies = conversation.replies
    usages = [reply.usage for reply in replies]
    read = [u["prompt_tokens"] - u["prompt_tokens_details"]["cached_tokens"] for u in usages]
    # The last token of a reply is read with the next turn.
    new = [
        u["prompt_tokens"] - before["total_tokens"] + 1
        for u, before in zip(usages[1:], usages, strict=False)
    ]
    after_kill = read[half] - new[half - 1] - usages[half]["sinkstream"]["replayed_tokens"]
    beyond = [r - n for r, n in zip(read[1:], new, strict=True)]
    beyond[half - 1] = after_kill
    firsts = [reply.first_s * 1e3 for reply in replies]
    gaps = [gap * 1e3 for reply in replies for gap in reply.gaps_s]
    early, late = (statistics.median(part) for part in (firsts[1 : 1 + _SAME], firsts[-_SAME:]))
    return Outcome(
        rows=[
            Row("first byte, last turns over first ones", late / early, at_most=1.3),
            Row(f"first byte of turns 2 to {1 + _SAME}", early, "ms"),
            Row("longest first byte but after the kill", _longest(firsts, half), "ms"),
            Row("gap between events, median", statistics.median(gaps), "ms"),
            Row("gap between events, p99", quantile(gaps, 0.99), "ms"),
            Row("gap between events, longest", max(gaps), "ms"),
            Row("tokens of stored turns read as new ones", max(beyond), at_most=0),
            Row("from the start after the kill to the first byte", answered_s * 1e3, "ms"),
            Row("first byte after the kill", firsts[half], "ms"),
            Row("tokens replayed after the kill", usages[half]["sinkstream"]["replayed_tokens"]),
            Row("tokens of the whole conversation", usages[-1]["total_tokens"]),
        ],
        evicted_tokens=sum(usage["sinkstream"]["evicted_tokens"] for usage in usages),
        threads=setting.threads,
        series={"first_byte_ms": [round(first, 2) for first in firsts], "read": read},
    )


def _longest(firsts: list[float], killed: int) -> float:
    return max(first for turn, first in enumerate(firsts) if turn not in (0, killed))
