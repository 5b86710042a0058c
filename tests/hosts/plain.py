"""The guide's way without Ray: a server on each of three hosts, and nginx in front of them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.hosts.asking import KEY
from tests.hosts.network import Host

NGINX = Path(__file__).parents[2] / "examples" / "proxy" / "nginx.conf"
_WAIT_S = 180.0


def start_servers(machines: Mapping[str, Host], model: Path, front: str) -> None:
    """Start a server on each host, and wait until all answer."""
    for name, host in machines.items():
        host.start(
            [
                sys.executable, "-m", "sinkstream", "serve", model, "--host", "0.0.0.0",
                "--replica", name, "--address", f"http://{name}:8000", "--allow-host", front,
                "--threads", "1", "--store", host.variables["SINKSTREAM_STORE"],
                "--snapshots", host.variables["SINKSTREAM_SNAPSHOTS"],
            ],
            "serve.log",
            SINKSTREAM_PEER_SECRET="of a test, not a secret",
            SINKSTREAM_API_KEY=KEY,
        )  # fmt: skip
    for host in machines.values():
        _wait_for(host, ["curl", "-sf", "http://localhost:8000/health"])


def start_nginx(host: Host, machines: Mapping[str, Host]) -> None:
    """Start the example with the servers of three hosts in place of its own two."""
    config = re.sub(
        r"( +server )127\.0\.0\.1:8001( .*\n).*:8002.*\n",
        lambda found: "".join(f"{found[1]}{name}:8000{found[2]}" for name in machines),
        NGINX.read_text(),
    )
    assert config.count(":8000 weight") == len(machines)
    path = host.folder / "home" / "nginx.conf"
    path.write_text(config.replace("listen 127.0.0.1:8000", "listen 8000"))
    always = f"daemon off; user root; pid {host.folder}/nginx.pid; error_log stderr;"
    host.start(["nginx", "-p", host.folder / "home", "-c", path, "-g", always], "nginx.log")
    _wait_for(host, ["curl", "-sf", "http://localhost:8000/health"])


def _wait_for(host: Host, command: list[object]) -> None:
    end = time.monotonic() + _WAIT_S
    while True:
        try:
            host.run(command)
            return
        except AssertionError:
            assert time.monotonic() < end, [log.read_text() for log in host.folder.glob("*.log")]
            time.sleep(0.5)
