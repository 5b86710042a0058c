"""Ray with several machines, as well as one host can stand in for them; replicas by load."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra `cluster`")
pytest.importorskip("fastapi", reason="needs the extra `serve`")

from websockets.sync.client import connect

from tests.python.cluster.ray.ray_cluster import (
    REPLICA,
    Cluster,
    descendants,
    ray_cluster,
    wait_until,
)
from tests.python.server.http.running_server import ENDLESS, Running

pytestmark = pytest.mark.slow

SCALING = {
    "min_replicas": 1,
    "max_replicas": 2,
    "target_ongoing_requests": 2,
    "upscale_delay_s": 1,
    "downscale_delay_s": 3,
    "look_back_period_s": 2,
    "policy": {"policy_function": "sinkstream.integrations.ray_serve.scaling:replicas_wanted"},
}


def test_replicas_follow_replies_and_not_idle_sockets(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    with (
        ray_cluster(tiny_folder("llama"), str(tmp_path), replicas=1) as cluster,
        ExitStack() as idle,
    ):
        cluster.deploy_as({"num_replicas": "auto", "autoscaling_config": SCALING})
        for _ in range(6):
            idle.enter_context(connect(f"ws://127.0.0.1:{cluster.http.port}/v1/responses"))
        time.sleep(8)
        assert len(cluster.replicas()) == 1
        streams = [cluster.http.begin("/v1/completions", ENDLESS) for _ in range(4)]
        wait_until(lambda: len(cluster.replicas()) == 2, "a second replica")
        for stream in streams:
            stream.close()
        wait_until(lambda: len(cluster.replicas()) == 1, "one replica again")


@contextmanager
def machines(folder: Path, store: str) -> Iterator[tuple[Cluster, Any]]:
    """Give a cluster, and one of its two machines with a replica: Ray's processes of each."""
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster as Machines

    from sinkstream.integrations.ray_serve import app

    scratch = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    memory = {"object_store_memory": 80 << 20}
    head = {"num_cpus": 0, "temp_dir": scratch, "include_dashboard": False, **memory}
    together = Machines(initialize_head=True, head_node_args=head)
    try:
        workers = [together.add_node(num_cpus=1, **memory) for _ in range(2)]
        ray.init(address=together.address, log_to_driver=False, logging_level="ERROR")
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        settings = {"store": store, "model_name": "tiny", "drain_s": 3.0}
        load = {"window": 60, "max_sequences": 4, "threads": 1}
        application = app(folder, replicas=2, num_cpus=1, server=settings, **load)
        serve.run(application, name="sinkstream", route_prefix="/")
        cluster = Cluster(Running(port, None), folder, settings, load)  # type: ignore[arg-type]
        wait_until(lambda: len(cluster.replicas()) == 2, "both replicas")
        yield cluster, workers[0]
        serve.shutdown()
    finally:
        ray.shutdown()
        together.shutdown()
        shutil.rmtree(scratch, ignore_errors=True)


def test_conversations_go_on_when_a_machine_is_lost(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    with machines(tiny_folder("llama"), str(tmp_path / "store")) as (cluster, machine):
        sessions = [f"session {number}" for number in range(8)]
        first = {session: cluster.respond("hello", session).json["id"] for session in sessions}
        homes, said = {}, {}
        for session in sessions:
            answer = cluster.respond("again", session, previous_response_id=first[session])
            homes[session], said[session] = answer.headers[REPLICA], _text(answer.json)
        raylet = machine.all_processes["raylet"][0].process.pid
        for pid in [raylet, *descendants(raylet)]:
            os.kill(pid, signal.SIGKILL)
        moved = 0
        for session in sessions:
            began = time.monotonic()
            answer = cluster.respond("again", session, previous_response_id=first[session])
            assert answer.status == 200
            assert time.monotonic() - began < 10
            assert _text(answer.json) == said[session]
            moved += answer.headers[REPLICA] != homes[session]
        assert 0 < moved < len(sessions)


def _text(response: dict[str, Any]) -> str:
    return json.dumps(response["output"][0]["content"])
