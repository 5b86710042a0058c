"""The guide's way without Ray: a server on each of three hosts, and nginx in front of them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.hosts.asking import KEY
from tests.hosts.network import Host, wait_for

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
        wait_for(host, ["curl", "-sf", "http://localhost:8000/health"], _WAIT_S)


def start_nginx(host: Host, machines: Mapping[str, Host]) -> None:
    """Start the example with the servers of three hosts in place of its own two."""
    config = re.sub(
        r"( +server )127\.0\.0\.1:8001( .*\n).*:8002.*\n",
        lambda found: "".join(f"{found[1]}{name}:8000{found[2]}" for name in machines),
        NGINX.read_text(),
    )
    assert config.count(":8000 weight") == len(machines)
    path = host.home / "nginx.conf"
    path.write_text(config.replace("listen 127.0.0.1:8000", "listen 8000"))
    always = f"daemon off; user root; pid {host.folder}/nginx.pid; error_log stderr;"
    host.start(["nginx", "-p", host.home, "-c", path, "-g", always], "nginx.log")
    wait_for(host, ["curl", "-sf", "http://localhost:8000/health"], _WAIT_S)
