"""Runs each client's script against one running server, each in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tests.conformance.serving import served

SCRIPTS = Path(__file__).parent / "clients"
TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class Client:
    """A program that speaks OpenAI's API."""

    name: str
    """Of its script."""
    packages: tuple[str, ...]


CLIENTS = (
    Client("openai_client", ("openai==3.57.0",)),
    Client("curl_client", ()),
    Client("langchain_client", ("langchain-openai==1.7.4",)),
    Client("llama_index_client", ("llama-index-llms-openai-like==0.8.1",)),
    Client("llm_client", ("llm==0.36",)),
    Client("litellm_client", ("litellm[proxy]==1.106.12",)),
    Client("lm_eval_client", ("lm-eval[api]==0.4.13",)),
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
    with tempfile.TemporaryDirectory() as store, served(Path(store)) as server:
        for client in CLIENTS:
            if selected in client.name:
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
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"{client.name}: has not ended after {TIMEOUT_S} s."
    return f"{client.name}: {done.stderr[-2000:]}" if done.returncode else ""


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
