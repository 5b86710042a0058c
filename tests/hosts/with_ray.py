"""The guide's way with Ray: control on the first host, and a replica and a proxy on each."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.hosts.asking import KEY
from tests.hosts.network import Host, wait_for

_ROOT = Path(__file__).parents[2]
GUIDE = _ROOT / "docs" / "guides" / "cluster.md"
CLUSTER = _ROOT / "examples" / "ray" / "cluster.yaml"
_COMMANDS = Path(sys.executable).parent  # `ray` and `serve`
_TOKEN = ".ray/auth_token"
# Ray would take a third of the memory for objects, on each host. Replicas have none.
_MEMORY = "--object-store-memory=100000000"
_START_S = 240.0


def start_ray(machines: Mapping[str, Host], model: Path) -> None:
    """Start Ray on all hosts and the example in it; wait until each host answers."""
    head, *others = machines.values()
    for host in machines.values():
        host.variables |= {
            "PATH": f"{_COMMANDS}:{os.environ['PATH']}",
            **_settings_of_ray(),
            "SINKSTREAM_API_KEY": KEY,
        }
    head.run(["ray", "get-auth-token", "--generate"])
    _run(head, "ray", "start", "--head", _MEMORY)
    for host in others:
        path = host.home / _TOKEN
        path.parent.mkdir()
        path.write_text((head.home / _TOKEN).read_text())
        _run(host, "ray", "start", f"--address={head.name}:6379", _MEMORY)
    (head.home / "cluster.yaml").write_text(_example(machines, model))
    _run(head, "serve", "deploy", "cluster.yaml")
    for host in machines.values():
        wait_for(host, ["curl", "-sf", "http://localhost:8000/health"], within_s=_START_S)


def _settings_of_ray() -> dict[str, str]:
    """Return the variables that the guide sets for Ray."""
    found = dict(re.findall(r"\b(RAY_\w+)=(\w+)", GUIDE.read_text()))
    assert {"RAY_AUTH_MODE", "RAY_health_check_timeout_ms"} <= found.keys()
    return found


def _example(machines: Mapping[str, Host], model: Path) -> str:
    """Return the example with a model of the test, and the names that clients use."""
    text = CLUSTER.read_text()
    for old, new in {
        "model: smollm2 ": f"model: {model} ",
        "max_sequences: 16 ": "max_sequences: 4 ",
        "threads: 2\n": "threads: 1\n",
        "[chat.example]": f"[{', '.join(machines)}]",
    }.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def _run(host: Host, *command: str) -> None:
    """Run a command whose processes stay: they keep its output open."""
    log = f"{command[0]}-{command[1]}.log"
    process = host.start(command, log)
    assert process.wait(_START_S) == 0, (host.folder / log).read_text()
