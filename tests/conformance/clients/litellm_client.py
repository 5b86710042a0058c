"""LiteLLM as a proxy in between: replies pass, and our server notices a client that leaves it."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

CONFIG = """
model_list:
  - model_name: served
    litellm_params:
      model: openai/any
      api_base: {base_url}
      api_key: none
litellm_settings:
  num_retries: 0
general_settings:
  master_key: {key}
"""
KEY = f"sk-{secrets.token_hex(32)}"
BODY: Any = {"model": "served", "messages": [{"role": "user", "content": "Name a colour."}]}


def main(base_url: str) -> None:
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        taken.close()
        config = Path(folder) / "config.yaml"
        config.write_text(CONFIG.format(base_url=base_url, key=KEY), encoding="utf-8")
        command = [str(Path(sys.executable).parent / "litellm"), "--config", str(config)]
        command += ["--port", str(port), "--host", "127.0.0.1"]
        with (Path(folder) / "log").open("w") as log:
            environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            wait_until(lambda: is_up(port) or process.poll() is not None, 240, "the proxy answers")
            assert process.poll() is None, (Path(folder) / "log").read_text()[-2000:]
            check_replies(port)
            check_leaving(port, base_url)
        finally:
            process.terminate()
            process.wait(60)


def is_up(port: int) -> bool:
    try:
        address = f"http://127.0.0.1:{port}/health/liveliness"
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def wait_until(condition: Any, limit_s: float, what: str) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"not within {limit_s} s: {what}"
        time.sleep(0.1)


def post(port: int, body: Any) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"},
    )
    return urllib.request.urlopen(request, timeout=120)


def check_replies(port: int) -> None:
    with post(port, {**BODY, "max_tokens": 8, "temperature": 0}) as answer:
        said = json.load(answer)["choices"][0]["message"]["content"]
    assert said
    with post(port, {**BODY, "max_tokens": 8, "temperature": 0, "stream": True}) as answer:
        lines = answer.read().decode().splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    chunks = [json.loads(one) for one in data[:-1]]
    texts = [c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"]]
    assert "".join(texts) == said


def check_leaving(port: int, base_url: str) -> None:
    def busy() -> int:
        with urllib.request.urlopen(f"{base_url}/slots", timeout=30) as answer:
            return sum(slot["is_processing"] for slot in json.load(answer))

    endless = {**BODY, "max_tokens": 1 << 20, "stream": True, "ignore_eos": True}
    with post(port, endless) as answer:
        answer.readline()
        assert busy() == 1
    wait_until(lambda: busy() == 0, 60, "the reply has ended")


if __name__ == "__main__":
    main(sys.argv[1])
