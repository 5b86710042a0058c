"""A Ray of its own with the server in it, and clients that see which replica answered."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.python.server.http.running_server import CHAT, Answered, Running

REPLICA = "x-sinkstream-replica"


@dataclass
class Cluster:
    """A cluster that answers."""

    http: Running
    folder: Path
    settings: dict[str, Any]
    load: dict[str, Any]

    def deploy(self, replicas: int) -> None:
        """Start the application, or change the number of replicas, as a file of Ray Serve does.

        What of it is new is only that number, so that Ray keeps the replicas that it has;
        `serve.run` would replace them. Waits until the proxy has all replicas.
        """
        self.deploy_as({"num_replicas": replicas})
        wait_until(lambda: len(self.replicas()) == replicas, "all replicas")

    def deploy_as(self, deployment: dict[str, Any]) -> None:
        """Start the application, or change it, with the settings of its deployment."""
        from ray.serve.context import _get_global_client
        from ray.serve.schema import ServeDeploySchema

        arguments = {"model": str(self.folder), "num_cpus": 0, "server": self.settings, **self.load}
        application = {
            "name": "sinkstream",
            "route_prefix": "/",
            "import_path": "sinkstream.integrations.ray_serve:build",
            "args": arguments,
            "deployments": [{"name": "sinkstream", **deployment}],
        }
        client = _get_global_client()
        assert client is not None
        client.deploy_apps(ServeDeploySchema(applications=[application]), _blocking=True)

    def chat(self, messages: list[dict[str, Any]], session: str = "", **fields: Any) -> Answered:
        """Ask for a reply; with a session's name in the header, if it has one."""
        body = {"messages": messages, "max_tokens": 6, "seed": 1, "ignore_eos": True, **fields}
        return self.http.post(CHAT, body, **_header(session))

    def respond(self, text: str, session: str = "", **fields: Any) -> Answered:
        """Ask for a response."""
        body = {"input": text, "max_output_tokens": 6, "seed": 1, "ignore_eos": True, **fields}
        return self.http.post("/v1/responses", body, **_header(session))

    def replicas(self) -> set[str]:
        """Return the replicas that some of many sessions are on."""
        return {self.replica_of(f"probe {number}") for number in range(24)}

    def replica_of(self, session: str) -> str:
        """Return the replica that answers a session."""
        return self.http.ask("GET", "/health", headers=_header(session)).headers[REPLICA]

    def replies_on(self, session: str) -> float:
        """Return the replies in progress on a session's replica."""
        text = self.http.ask("GET", "/metrics", headers=_header(session)).body.decode()
        return next(
            float(line.split()[1])
            for line in text.splitlines()
            if line.startswith("sinkstream_open_replies ")
        )

    def pid_of(self, session: str) -> int:
        """Return the process of a session's replica."""
        from ray.serve.context import _get_global_client

        client = _get_global_client()
        assert client is not None
        deployments = client.get_serve_details()["applications"]["sinkstream"]["deployments"]
        pids = {one["replica_id"]: one["pid"] for one in deployments["sinkstream"]["replicas"]}
        return int(pids[self.replica_of(session)])


def _header(session: str) -> dict[str, str]:
    return {"x-session-id": session} if session else {}


def descendants(root: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents[int(entry.name)] = int(fields[1])
    found, level = [], {root}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found += sorted(level)
    return found


def _stat(pid: int) -> list[str]:
    """Return the fields of a process after its name; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _started_at(pid: int) -> str | None:
    """Return when a process was started; None if it has ended."""
    fields = _stat(pid)
    return fields[19] if fields and fields[0] != "Z" else None


def wait_until(condition: Callable[[], bool], what: str, within_s: float = 60) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)


@contextmanager
def ray_cluster(folder: Path, store: str, *, replicas: int, **settings: Any) -> Iterator[Cluster]:
    """Run Ray with two processors, and the server in it; end all its processes."""
    import ray
    from ray import serve

    # A socket's path is short.
    scratch = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=100 << 20,
        _temp_dir=scratch,
    )
    try:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        cluster = Cluster(
            Running(port, None),  # type: ignore[arg-type]
            folder,
            {"store": store, "model_name": "tiny", "drain_s": 3.0, **settings},
            {"window": 60, "max_sequences": 4, "threads": 1},
        )
        cluster.deploy(replicas)
        yield cluster
    finally:
        serve.shutdown()
        started = {pid: _started_at(pid) for pid in descendants(os.getpid())}
        ray.shutdown()
        left = started
        end = time.monotonic() + 20
        while left and time.monotonic() < end:
            time.sleep(0.1)
            left = {pid: at for pid, at in left.items() if _started_at(pid) == at}
        for pid in left:  # the number may not be another process's
            if _started_at(pid) == left[pid]:
                with suppress(ProcessLookupError):  # it ends just now
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(scratch, ignore_errors=True)
        assert not left, "processes of Ray are still there"


def events_in(data: bytes) -> list[Any]:
    """Return the events that have arrived whole."""
    lines = data.decode(errors="replace").split("\n")[:-1]
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
