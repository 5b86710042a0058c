"""Sends a server many mixed requests, and looks for leaks of memory, of files and between clients.

    python benchmarks/server_soak.py --model smollm2 --requests 20000
    python -m tests.data.tiny FOLDER  # a tiny model: more requests in an hour
    python benchmarks/server_soak.py --model FOLDER/llama --requests 100000

Some clients talk, each over its own conversation; others leave in the middle of a reply or before
it, complete texts, count tokens, list and delete conversations, or send nonsense. Conversations
follow a few scripts with fixed seeds, so that every client of a script must get the same replies,
whatever happened to the state of its conversation meanwhile: in memory, in a file or read again.
Every client names a secret of its own, which no other client's response may contain.

Reported are the slope of the server's RssAnon over the second half, by requests and by time, and
what is still open at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from figures import line, quantile
from machine import report
from server.process import Server, sinkstream_server

SCRIPTS = 8
TURNS = 12  # of a conversation; then its client begins a new one
PLANS = {
    "talk": 40,
    "talk_streamed": 20,
    "leave_in_stream": 12,
    "leave_at_once": 8,
    "complete": 8,
    "tokenize": 4,
    "look": 4,
    "nonsense": 4,
}
NONSENSE: tuple[bytes, ...] = (
    b"{", b"[]", b'{"messages": 1}', b'{"messages": []}', b"\xff\xfe", b'{"messages": [{}]}',
    b'{"messages": [{"role": "user", "content": "a"}], "n": 0}', b"[" * 10_000,
)  # fmt: skip


@dataclass
class Response:
    """A response, as far as it was read."""

    status: int
    body: bytes


@dataclass
class Client:
    """One user with a conversation and a secret."""

    number: int
    script: int = 0
    secret: str = ""
    session: str = ""
    history: list[dict[str, str]] = field(default_factory=list)
    generation: int = 0

    def begin(self) -> None:
        """Begin a new conversation."""
        self.generation += 1
        self.script = (self.number + self.generation) % SCRIPTS
        self.secret = f"canary-{self.number:04d}-{self.generation:05d}"
        self.history = []
        self.session = ""


class Soak:
    """The load, and what it has found."""

    def __init__(self, port: int, seed: int) -> None:
        self.port = port
        self.random = random.Random(seed)
        self.done = 0
        self.statuses: Counter[str] = Counter()
        self.faults: list[str] = []
        self.expected: dict[tuple[int, int], str] = {}
        self.states: Counter[str] = Counter()
        self.times: list[float] = []

    async def run(self, requests: int, clients: int) -> None:
        """Send all requests, each client one after the other."""
        await asyncio.gather(*(self._be(Client(i), requests) for i in range(clients)))

    async def _be(self, client: Client, requests: int) -> None:
        client.begin()
        while self.done < requests:
            self.done += 1
            plan = self.random.choices(list(PLANS), list(PLANS.values()))[0]
            started = time.perf_counter()
            try:
                await getattr(self, f"_{plan}")(client)
            except (OSError, asyncio.IncompleteReadError) as error:
                self.faults.append(f"{plan}: {error!r}")
            self.times.append(time.perf_counter() - started)

    # ---- plans -----------------------------------------------------------------------------------

    def _chat(self, client: Client, **more: Any) -> dict[str, Any]:
        turn = len(client.history) // 2
        message = {"role": "user", "content": f"Script {client.script}, message {turn}."}
        # The salt holds the secret: the conversation is this client's alone.
        return {
            "messages": [*client.history, message],
            "seed": client.script * 100 + turn,
            "max_tokens": 12,
            "ignore_eos": True,
            "cache_salt": client.secret,
            "user": client.secret,
            **more,
        }

    async def _talk(self, client: Client) -> None:
        body = self._chat(client)
        response = await self._ask("POST", "/v1/chat/completions", body)
        if self._accepts(client, "talk", response, 200, 429):
            answer = json.loads(response.body)
            client.session = answer["usage"]["sinkstream"]["session"]
            self.states[answer["usage"]["sinkstream"]["state"]] += 1
            self._note(client, body, answer["choices"][0]["message"]["content"])

    async def _talk_streamed(self, client: Client) -> None:
        body = self._chat(client, stream=True)
        response = await self._ask("POST", "/v1/chat/completions", body)
        if self._accepts(client, "talk_streamed", response, 200, 429):
            text, is_whole = "", False
            for event in response.body.decode().split("\n\n"):
                is_whole |= event == "data: [DONE]"
                if event.startswith("data: {"):
                    data = json.loads(event[6:])
                    if "error" in data:
                        self.faults.append(f"talk_streamed: {data['error']}")
                        return
                    choices = data["choices"]
                    text += "".join(c["delta"].get("content", "") for c in choices)
            if not is_whole:
                self.faults.append("talk_streamed: the stream is not complete")
            self._note(client, body, text)

    def _note(self, client: Client, body: dict[str, Any], reply: str) -> None:
        """Compare a reply with that of other clients; go on, or begin anew."""
        turn = len(client.history) // 2
        if self.expected.setdefault((client.script, turn), reply) != reply:
            self.faults.append(f"script {client.script}, turn {turn}: another reply")
        client.history = [*body["messages"], {"role": "assistant", "content": reply}]
        if turn + 1 == TURNS:
            client.begin()

    async def _leave_in_stream(self, client: Client) -> None:
        body = self._chat(client, stream=True, max_tokens=100_000)
        await self._ask("POST", "/v1/chat/completions", body, leave_after=b'"content":"')

    async def _leave_at_once(self, client: Client) -> None:
        await self._ask("POST", "/v1/chat/completions", self._chat(client), leave_after=b"")

    async def _complete(self, client: Client) -> None:
        body = {"prompt": f"A text of {client.secret}", "max_tokens": 6, "n": 2, "seed": 1}
        response = await self._ask("POST", "/v1/completions", {**body, "ignore_eos": True})
        self._accepts(client, "complete", response, 200, 429)

    async def _tokenize(self, client: Client) -> None:
        response = await self._ask("POST", "/tokenize", {"content": "a b c " * 50})
        self._accepts(client, "tokenize", response, 200)

    async def _look(self, client: Client) -> None:
        if client.session and self.random.random() < 0.3:
            path, session = f"/v1/sessions/{client.session}", client.session
            client.begin()
            response = await self._ask("DELETE", path)
            if response.status == 200 and session.encode() not in response.body:
                self.faults.append("look: another conversation was deleted")
            self._accepts(client, "delete", response, 200, 404, 409)
            return
        path = self.random.choice(["/v1/models", "/health", "/metrics", "/v1/nothing"])
        response = await self._ask("GET", path)
        self._accepts(client, "look", response, 404 if path == "/v1/nothing" else 200)

    async def _nonsense(self, client: Client) -> None:
        body = self.random.choice(NONSENSE)
        self._accepts(
            client, "nonsense", await self._send("POST", "/v1/chat/completions", body), 400
        )

    # ---- HTTP ------------------------------------------------------------------------------------

    def _accepts(self, client: Client, plan: str, response: Response, *allowed: int) -> bool:
        """Check a response's status and secrets; return whether it is a result."""
        self.statuses[f"{plan} {response.status}"] += 1
        if response.status not in allowed:
            self.faults.append(f"{plan}: {response.status} {response.body[:200]!r}")
        for secret in re.findall(rb"canary-\d{4}-\d{5}", response.body):
            if secret.decode() != client.secret:
                self.faults.append(f"{plan}: the secret of another client")
        return response.status == 200

    async def _ask(
        self, method: str, path: str, body: Any = None, leave_after: bytes | None = None
    ) -> Response:
        data = b"" if body is None else json.dumps(body).encode()
        return await self._send(method, path, data, leave_after)

    async def _send(
        self, method: str, path: str, data: bytes, leave_after: bytes | None = None
    ) -> Response:
        """Send a request; read the response, or leave once it has some bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            if data:
                head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
            writer.write(head.encode() + b"\r\n" + data)
            await writer.drain()
            if leave_after is not None:
                answer = b""
                while leave_after not in answer and (part := await reader.read(4096)):
                    answer += part
                return Response(0, b"")
            answer = await reader.read(-1)
        finally:
            writer.close()
        head_bytes, _, rest = answer.partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in head_bytes.lower():
            rest = unchunked(rest)
        return Response(int(head_bytes.split(b" ")[1]), rest)


def unchunked(rest: bytes) -> bytes:
    """Return the body of a chunked response, as far as it is there."""
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        count = int(size, 16)
        body, rest = body + rest[:count], rest[count + 2 :]
    return body


async def measured(
    soak: Soak, server: Server, requests: int, clients: int
) -> list[tuple[float, int, int]]:
    """Run the load; return time, requests and memory, each second."""
    points: list[tuple[float, int, int]] = []

    async def sample() -> None:
        while True:
            points.append((time.monotonic(), soak.done, server.anonymous_kib()))
            await asyncio.sleep(1)

    sampler = asyncio.create_task(sample())
    await soak.run(requests, clients)
    sampler.cancel()
    return points


def gauges(server: Server) -> dict[str, float]:
    """Return the server's gauges of what is open."""
    names = ("open_replies", "waiting_replies", "open_connections", "request_body_bytes",
             "whole_reply_bytes")  # fmt: skip
    return {name: server.metric(f"sinkstream_{name}") for name in names}


def main() -> int:
    """Start a server, load it, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--window", type=int, default=60)
    parser.add_argument("--sequences", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-store", action="store_true", help="keep no conversations")
    args = parser.parse_args()

    options = {"--model": args.model, "--window": args.window, "--max-sequences": args.sequences,
               "--threads": args.threads, "--drain-s": 5}  # fmt: skip
    words = [str(word) for pair in options.items() for word in pair]
    with sinkstream_server(words, keeps=not args.no_store) as server:
        soak = Soak(server.port, args.seed)
        asyncio.run(soak.run(200, args.clients))  # everything is used once
        files = server.open_files()
        soak.done = 0
        began = time.monotonic()
        points = asyncio.run(measured(soak, server, args.requests, args.clients))
        seconds = time.monotonic() - began
        time.sleep(2)  # those who have left are noticed
        left, files_left = gauges(server), server.open_files()
        code = server.stop()
    second_half = points[len(points) // 2 :]
    by_time = line([(at / 3600, kib / 1024) for at, _, kib in second_half])
    by_request = line([(done / 1000, kib) for _, done, kib in second_half])
    report(
        "server_soak",
        {
            "requests": soak.done,
            "seconds": round(seconds, 1),
            "requests_per_s": round(soak.done / seconds, 1),
            "p50_ms": round(quantile(soak.times, 0.5) * 1000, 1),
            "p99_ms": round(quantile(soak.times, 0.99) * 1000, 1),
            "kib_by_tenth": [points[len(points) * i // 10][2] for i in range(10)],
            "last_kib": points[-1][2],
            "slope_mib_per_hour": round(by_time.slope, 2),
            "slope_error_mib_per_hour": round(by_time.error, 2),
            "slope_kib_per_1000_requests": round(by_request.slope, 2),
            "files_before": files,
            "files_after": files_left,
            "open_at_the_end": left,
            "exit_code": code,
            "states": dict(soak.states),
            "statuses": dict(sorted(soak.statuses.items())),
            "faults": len(soak.faults),
            "first_faults": soak.faults[:10],
        },
    )
    return 1 if soak.faults else 0


if __name__ == "__main__":
    sys.exit(main())
