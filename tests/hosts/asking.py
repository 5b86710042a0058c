"""A client on a host of its own, which asks with curl, as the guide does."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from typing import Any

from tests.hosts.network import Host

KEY = "of-a-test"
_REPLICA = "x-sinkstream-replica"


@dataclass(frozen=True)
class Answer:
    """What came back; the status is 0 if nothing did."""

    status: int
    headers: dict[str, str]
    body: str
    took_s: float

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def text(self) -> str:
        return str(self.json["output"][0]["content"][0]["text"])

    @property
    def replica(self) -> str:
        return self.headers[_REPLICA]


@dataclass
class Client:
    """Asks for responses of one conversation after the other."""

    host: Host

    def ask(self, through: str, session: str, most_s: int = 60, **fields: Any) -> Answer:
        """Ask for a response through a host: `input`, and what else its request has."""
        began = time.monotonic()
        command = [*_curl(through, session, fields), "-si", "--max-time", most_s]
        try:
            said = self.host.run(command, within_s=most_s + 60)
        except AssertionError:
            return Answer(0, {}, "", time.monotonic() - began)
        head, _, body = said.partition("\r\n\r\n")
        status, *lines = head.split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return Answer(int(status.split()[1]), headers, body, time.monotonic() - began)

    def touch(self, through: str, session: str) -> None:
        """Ask for little, so that a load balancer has an idle connection that it may keep."""
        address = f"http://{through}:8000/health"
        self.host.run(["curl", "-sf", "-H", f"x-session-id: {session}", address])

    def stream(
        self, through: str, session: str, log: str, **fields: Any
    ) -> subprocess.Popen[bytes]:
        """Begin to read a response without an end."""
        body = {"stream": True, "max_output_tokens": 65_536, "ignore_eos": True, **fields}
        return self.host.start([*_curl(through, session, body), "-sN"], log)


def _curl(through: str, session: str, body: dict[str, Any]) -> list[object]:
    return [
        "curl", f"http://{through}:8000/v1/responses", "-H", f"Authorization: Bearer {KEY}",
        "-H", f"x-session-id: {session}", "-H", "Content-Type: application/json",
        "-d", json.dumps(body),
    ]  # fmt: skip
