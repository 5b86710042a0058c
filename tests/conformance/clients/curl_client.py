"""curl: a stream arrives piece by piece and ends; a wrong request has a status and JSON."""

from __future__ import annotations

import json
import subprocess
import sys
import time

BODY = {
    "messages": [{"role": "user", "content": "Count to fifty."}],
    "max_tokens": 64,
    "ignore_eos": True,
    "stream": True,
}


def main(base_url: str) -> None:
    check_stream(base_url)
    check_error(base_url)


def curl(address: str, body: object, *options: str) -> list[str]:
    kind = "Content-Type: application/json"
    return ["curl", "-sS", *options, address, "-H", kind, "-d", json.dumps(body)]


def check_stream(base_url: str) -> None:
    command = curl(f"{base_url}/chat/completions", BODY, "-N")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        came = [(time.monotonic(), line.strip()) for line in process.stdout if line.strip()]
    assert process.returncode == 0
    assert all(line.startswith(("data: ", ": ")) for _, line in came)
    assert came[-1][1] == "data: [DONE]"
    assert came[-1][0] - came[0][0] > 0.02, "the whole stream came at once"


def check_error(base_url: str) -> None:
    options = ("-w", "\n%{http_code} %{content_type}")
    command = curl(f"{base_url}/chat/completions", {"messages": 5}, *options)
    body, _, status = subprocess.check_output(command, text=True).rpartition("\n")
    assert status == "400 application/json", status
    assert json.loads(body)["error"]["param"] == "messages"


if __name__ == "__main__":
    main(sys.argv[1])
