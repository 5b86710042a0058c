"""The largest memory of a server under hostile requests: a hundred of 32 MiB, several at a time.

Starts `sinkstream serve`, sends the requests, and reads the process's memory from /proc meanwhile.
Each kind of text is a worst case of a different part: digits are a token each, letters take long to
merge, a character beyond ASCII makes Python's string four times as large, many messages are many
objects, a history is looked up before it is read, the arguments of a call are JSON in JSON, and a
response repeats its instructions.

    python benchmarks/hostile_memory.py [--requests 100] [--at-once 8] [--mib 31] -- MODEL [OPTIONS]
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.row import Row, table
from machine import report

CHAT = "/v1/chat/completions"
_GOAL_MB = 600
_MOST_MESSAGES = 43_000  # a little less than a body may have
Request = tuple[str, dict[str, Any]]
"""A path, and a body."""


def chat(contents: list[str]) -> Request:
    """Return a chat request with these messages."""
    messages = [
        {"role": ("user", "assistant")[number % 2], "content": content}
        for number, content in enumerate(contents)
    ]
    return CHAT, {"messages": messages, "max_tokens": 1}


def call(arguments: str) -> Request:
    """Return a chat request whose history has a call with these arguments."""
    function = {"name": "f", "arguments": arguments}
    one = {"id": "1", "type": "function", "function": function}
    said = {"role": "assistant", "content": "", "tool_calls": [one]}
    return CHAT, {"messages": [_ASKED, said, _ASKED], "max_tokens": 1}


_ASKED = {"role": "user", "content": "7"}
KINDS: dict[str, Callable[[int], Request]] = {
    "digits": lambda size: chat(["7" * size]),
    "letters": lambda size: chat(["a" * size]),
    "one emoji": lambda size: chat(["7" * (size - 4) + "\N{GRINNING FACE}"]),
    "many messages": lambda size: chat(["7" * (size // _MOST_MESSAGES - 40)] * _MOST_MESSAGES),
    "a history": lambda size: chat(["7" * size, "7", "7"]),
    "a call": lambda size: call("[" + "[]," * (size // 3) + "7]"),
    "instructions": lambda size: ("/v1/responses", {"input": "7", "instructions": "7" * size}),
    "ids": lambda size: ("/detokenize", {"tokens": [5] * min(size // 3, 1_000_000)}),
}


def body_of(request: Request) -> tuple[str, bytes]:
    """Return a request's path, and its body as JSON."""
    path, body = request
    return path, json.dumps(body, ensure_ascii=False).encode()


@contextmanager
def serving(arguments: list[str]) -> Iterator[tuple[int, int]]:
    """Start a server; give its process id and port."""
    command = [sys.executable, "-m", "sinkstream", "serve", *arguments, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r":(\d+)$", server.stdout.readline().strip())
        assert found, "the server does not start"
        yield server.pid, int(found[1])
    finally:
        server.terminate()
        server.wait()


def memory_of(process: int) -> int:
    """Return the bytes that a process holds in memory and shares with no file."""
    status = Path(f"/proc/{process}/status").read_text()
    fields = dict(re.findall(r"^(\w+):\s+(\d+) kB$", status, re.MULTILINE))
    return (int(fields["RssAnon"]) + int(fields["RssShmem"])) << 10


class Peak:
    """The largest memory of a process, looked at a hundred times a second."""

    def __init__(self, process: int) -> None:
        self.bytes = memory_of(process)
        self._process = process
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.01):
            self.bytes = max(self.bytes, memory_of(self._process))

    def end(self) -> int:
        """Return the largest memory."""
        self._ended.set()
        self._thread.join()
        return self.bytes


def ask(port: int, path: str, body: bytes) -> int:
    """Return the status of a request; 0 if the server has closed the connection meanwhile."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def attack(port: int, bodies: list[tuple[str, bytes]], requests: int, at_once: int) -> Counter[int]:
    """Send requests, and return how many got each status."""
    statuses: Counter[int] = Counter()
    numbers = iter(range(requests))
    lock = threading.Lock()

    def send() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            status = ask(port, *bodies[number % len(bodies)])
            with lock:
                statuses[status] += 1

    threads = [threading.Thread(target=send) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--mib", type=int, default=31)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("serve", nargs="*", help="arguments of `sinkstream serve`")
    given = parser.parse_args()
    bodies = [body_of(KINDS[kind](given.mib << 20)) for kind in given.kinds]
    with serving(given.serve) as (process, port):
        ask(port, *body_of(chat(["hello"])))
        idle, began_at, peak = memory_of(process), time.monotonic(), Peak(process)
        statuses = attack(port, bodies, given.requests, given.at_once)
        most, seconds = peak.end(), time.monotonic() - began_at
        alive = ask(port, *body_of(chat(["hello"])))
    above = Row("memory above idle", (most - idle) / 1e6, "MB", at_most=_GOAL_MB)
    rows = [above, Row("memory at idle", idle / 1e6, "MB"), Row("time", seconds, "s")]
    rows += [
        Row(f"requests with status {status}", count) for status, count in sorted(statuses.items())
    ]
    rows.append(Row("status of a request afterwards", alive))
    print("\n".join(table(rows)), file=sys.stderr)
    sizes = {"requests": given.requests, "at_once": given.at_once, "mib": given.mib}
    report("hostile_memory", {**sizes, "rows": [row.as_dict() for row in rows]})


if __name__ == "__main__":
    main()
