"""Runs each client's script against a running server, each in an environment of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from pathlib import Path

from tests.conformance.serving import served

SCRIPTS = Path(__file__).parent / "clients"


@dataclass(frozen=True, slots=True)
class Client:
    """A program that speaks OpenAI's API."""

    name: str
    """Of its script."""
    packages: tuple[str, ...]
    options: tuple[str, ...] = ()
    """Of `sinkstream serve`. Clients with the same options, one after the other, share a server."""
    timeout_s: float = 600


_SMALL = ("--window", "2044")
"""A window that their conversations pass."""

CLIENTS = (
    Client("openai_client", ("openai==3.57.0",)),
    Client("curl_client", ()),
    Client("langchain_client", ("langchain-openai==1.7.4",)),
    Client("llama_index_client", ("llama-index-llms-openai-like==0.8.1",)),
    Client("litellm_client", ("litellm[proxy]==1.106.12",)),
    Client("lm_eval_client", ("lm-eval[api]==0.4.13",)),
    Client("llm_client", ("llm==0.36",), _SMALL),
    Client("pydantic_ai_client", ("pydantic-ai-slim[openai]==2.68.0",), _SMALL),
    Client("aider_client", ("aider-chat==0.86.2",), _SMALL),
    Client("smolagents_client", ("smolagents[openai]==1.26.0",)),
    Client(
        "open_webui_client",
        # Named, so that pip takes the build of torch that its index prefers here as elsewhere.
        ("torch==2.13.0", "open-webui==0.12.4", "selenium==4.50.0"),
        # Its tools take 1,320 tokens, which are pinned: at most half of what the model sees.
        ("--max-tokens", "256", "--window", "3068"),
        timeout_s=3600,
    ),
)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a client's script has ended."""

    name: str
    fault: str
    """"" if it passed."""
    seconds: float


def run(cache: Path, selected: str = "") -> Iterator[Ended]:
    """Run the clients whose names contain a word, and yield how each ended."""
    chosen = (client for client in CLIENTS if selected in client.name)
    for options, clients in groupby(chosen, lambda client: client.options):
        with tempfile.TemporaryDirectory() as store, served(Path(store), *options) as server:
            for client in clients:
                started = time.monotonic()
                fault = _fault(client, cache, server.base_url)
                yield Ended(client.name, fault, time.monotonic() - started)


def _fault(client: Client, cache: Path, base_url: str) -> str:
    try:
        python = environment(client, cache)
    except subprocess.CalledProcessError as error:
        return f"{client.name}: its packages cannot be installed: {error.stderr[-2000:]}"
    script = SCRIPTS / f"{client.name}.py"
    command = [str(python), str(script), base_url]
    # In a session of its own, so that the programs that a script has started end with it.
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, text=True, start_new_session=True)
    try:
        _, errors = process.communicate(timeout=client.timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"{client.name}: has not ended after {client.timeout_s:.0f} s."
    return f"{client.name}: {errors[-2000:]}" if process.returncode else ""


def environment(client: Client, cache: Path) -> Path:
    """Return the Python of an environment with the client's packages, made once.

    Raises:
        CalledProcessError: They cannot be installed.
    """
    digest = sha256(" ".join(client.packages).encode()).hexdigest()[:8]
    folder = cache / "clients" / f"{client.name}-{digest}"
    python = folder / "bin" / "python"
    complete = folder / "complete"
    if not complete.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        if client.packages:
            command = [str(python), "-m", "pip", "install", "--quiet", *client.packages]
            subprocess.run(command, check=True, capture_output=True, text=True)
        complete.touch()
    return python
