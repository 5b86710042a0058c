"""The largest memory of a server under hostile requests: a hundred of 32 MiB, several at a time.

Starts `sinkstream serve`, sends the requests, and reads the process's memory from /proc meanwhile.
Each kind of text is a worst case of a different part: digits are a token each, letters take long to
merge, a character beyond ASCII makes Python's string four times as large, and many small messages
are many objects.

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

CHAT = "/v1/chat/completions"
KINDS: dict[str, Callable[[int], list[str]]] = {
    "digits": lambda size: ["7" * size],
    "letters": lambda size: ["a" * size],
    "one emoji": lambda size: ["7" * (size - 4) + "\N{GRINNING FACE}"],
    "small messages": lambda size: ["7 "] * (size // 64),
}


def body_of(contents: list[str]) -> bytes:
    """Return a chat request with these messages."""
    messages = [
        {"role": ("user", "assistant")[number % 2], "content": content}
        for number, content in enumerate(contents)
    ]
    return json.dumps({"messages": messages, "max_tokens": 1}, ensure_ascii=False).encode()


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


def ask(port: int, body: bytes) -> int:
    """Return the status of a request; 0 if the server has closed the connection meanwhile."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request("POST", CHAT, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def attack(port: int, bodies: list[bytes], requests: int, at_once: int) -> Counter[int]:
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
            status = ask(port, bodies[number % len(bodies)])
            with lock:
                statuses[status] += 1

    threads = [threading.Thread(target=send) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statuses


def main() -> None:
    """Measure, and print a line of a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--mib", type=int, default=31)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("serve", nargs="*", help="arguments of `sinkstream serve`")
    given = parser.parse_args()
    bodies = [body_of(KINDS[kind](given.mib << 20)) for kind in given.kinds]
    with serving(given.serve) as (process, port):
        ask(port, body_of(["hello"]))
        idle, began_at, peak = memory_of(process), time.monotonic(), Peak(process)
        statuses = attack(port, bodies, given.requests, given.at_once)
        most, seconds = peak.end(), time.monotonic() - began_at
        alive = ask(port, body_of(["hello"]))
    print(
        f"{given.requests} requests of {given.mib} MiB, {given.at_once} at a time: "
        f"{(most - idle) >> 20} MiB above {idle >> 20} MiB in {seconds:.0f} s; "
        f"statuses {dict(sorted(statuses.items()))}, then {alive}"
    )


if __name__ == "__main__":
    main()
