"""Hosts on one machine: each has a network stack, a name, processes and folders of its own.

Linux namespaces, joined by a bridge. `lose` is what pulling the plug is: the cable is down, and all
processes are gone at once. Needs root, and the programs of util-linux and iproute2.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_TOOLS = ("ip", "nsenter", "unshare", "setpriv")
_NETWORK = "10.77"
_NAMESPACES = ("--net", "--mount", "--uts", "--ipc", "--pid")
_READY_S = 30.0
_networks = itertools.count(os.getpid() % 200)


def missing() -> str | None:
    """Return why there can be no hosts here; None if there can."""
    tools = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if os.getuid() != 0:
        return "network namespaces need root"
    if tools:
        return f"{', '.join(tools)} must be installed; `apt-get install iproute2 util-linux`"
    tried = subprocess.run(["unshare", *_NAMESPACES, "--fork", "true"], capture_output=True)
    return None if tried.returncode == 0 else f"no namespaces: {tried.stderr.decode().strip()}"


@dataclass
class Host:
    """A host that is up until `lose`."""

    name: str
    address: str
    folder: Path
    """Its home, its /tmp and its logs."""
    cable: str
    """The end at the bridge."""
    init: int
    """Its first process; all others end with it."""
    _outer: subprocess.Popen[bytes]
    variables: dict[str, str] = field(default_factory=dict)

    def start(
        self, command: Sequence[object], log: str, **variables: str
    ) -> subprocess.Popen[bytes]:
        """Start a process; what it says goes to a file of the host's folder."""
        with (self.folder / log).open("ab") as said:
            return subprocess.Popen(
                self._inside(command), stdout=said, stderr=said, env=self._environment(variables)
            )

    def run(self, command: Sequence[object], *, within_s: float = 120, **variables: str) -> str:
        """Run a command to its end, and return what it says."""
        done = subprocess.run(
            self._inside(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment(variables),
            timeout=within_s,
            check=False,
        )
        said = done.stdout.decode(errors="replace")  # with the ends of lines as they are
        assert done.returncode == 0, f"{self.name}: {command}: {said}"
        return said

    @property
    def home(self) -> Path:
        """Return the folder where its processes begin."""
        return self.folder / "home"

    def lose(self) -> None:
        """Pull the plug."""
        if self._outer.poll() is None:
            subprocess.run(["ip", "link", "set", self.cable, "down"], check=False)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.init, signal.SIGKILL)
            self._outer.wait(_READY_S)

    def _inside(self, command: Sequence[object]) -> list[str]:
        enter = ["nsenter", "--target", str(self.init), *_NAMESPACES, f"--wd={self.home}"]
        return [*enter, "--", *map(str, command)]

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return {**kept, "HOME": str(self.home), "USER": "root", **self.variables, **variables}


def wait_for(host: Host, command: Sequence[object], within_s: float) -> None:
    """Repeat a command until it succeeds."""
    end = time.monotonic() + within_s
    while True:
        try:
            host.run(command)
            return
        except AssertionError:
            logs = {log.name: log.read_text(errors="replace") for log in host.folder.glob("*.log")}
            assert time.monotonic() < end, f"{host.name}: {command}: {logs}"
            time.sleep(0.5)


@contextlib.contextmanager
def hosts(*names: str) -> Iterator[dict[str, Host]]:
    """Give hosts that reach each other by their names; at the end, all of them are lost."""
    number = next(_networks) % 250
    bridge = f"sink{number}"
    addresses = {name: f"{_NETWORK}.{number}.{10 + i}" for i, name in enumerate(names)}
    with contextlib.ExitStack() as stack:
        # Not below /tmp: each host has a /tmp of its own.
        root = Path(tempfile.mkdtemp(prefix="sinkstream-hosts-", dir="/var/tmp"))
        root.chmod(0o755)
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip, "link", "del", bridge)
        # A route out, as any machine has: it says which address is the host's own.
        _ip("address", "add", f"{_NETWORK}.{number}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        found = {}
        for name in names:
            found[name] = _boot(name, root / name, bridge, addresses)
            stack.callback(found[name].lose)
        yield found


def _boot(name: str, folder: Path, bridge: str, addresses: Mapping[str, str]) -> Host:
    for own in ("home", "tmp"):
        (folder / own).mkdir(parents=True)
    (folder / "tmp").chmod(0o1777)
    known = [f"{address} {other}\n" for other, address in addresses.items()]
    (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(known))
    (folder / "resolv.conf").write_text("")  # no name server: questions are refused at once
    script = (
        f"mount --make-rprivate / && mount --bind {folder}/tmp /tmp && "
        f"mount -t tmpfs tmpfs /dev/shm && mount --bind {folder}/hosts /etc/hosts && "
        f"mount --bind {folder}/resolv.conf /etc/resolv.conf && "
        f"hostname {name} && ip link set lo up && touch {folder}/ready && exec sleep infinity"
    )
    outer = subprocess.Popen(
        ["unshare", *_NAMESPACES, "--fork", "--mount-proc", "--kill-child", "sh", "-c", script]
    )
    end = time.monotonic() + _READY_S
    while not (folder / "ready").exists():
        assert outer.poll() is None, f"{name} does not start"
        assert time.monotonic() < end, f"{name} does not start"
        time.sleep(0.02)
    (init,) = map(int, Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split())
    cable = f"v{secrets.token_hex(4)}"
    _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(init))
    _ip("link", "set", cable, "master", bridge, "up")
    host = Host(name, addresses[name], folder, cable, init, outer)
    host.run(["ip", "address", "add", f"{host.address}/24", "dev", "eth0"])
    host.run(["ip", "link", "set", "eth0", "up"])
    host.run(["ip", "route", "add", "default", "via", f"{host.address.rpartition('.')[0]}.1"])
    return host


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
