"""`sinkstream serve --ray`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from tests.python.server.http.running_server import CHAT, HELLO, Running

_WITHOUT_RAY = (
    "import sys; sys.modules['ray'] = None; from sinkstream.cli import main; sys.exit(main())"
)


def refusal(*options: str) -> str:
    """Return the sentence with which the options are refused, without Ray."""
    command = [sys.executable, "-c", _WITHOUT_RAY, "serve", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--ray"], "Ray must be installed, but ray is not."),
        (["--ray", "--replicas", "0"], "`--replicas` must be at least 1, but is 0."),
        (["--replicas", "2"], "`--replicas` must be given together with `--ray`."),
        (["--ray", "--port", "0"], "`--port` must be at least 1 with `--ray`, but is 0."),
        (["--ray", "--address", "http://a:1"], "`--replica` and `--address` must not be given"),
    ],
)
def test_a_wrong_option_is_refused(options: list[str], sentence: str) -> None:
    assert sentence in " ".join(refusal(*options).split())


def test_it_serves_until_sigterm_and_ends_its_processes(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="needs the extra `cluster`")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [
        sys.executable, "-m", "sinkstream", "serve", str(tiny_folder("llama")), "--ray",
        "--replicas", "2", "--port", str(port), "--window", "60", "--threads", "1",
        "--store", str(tmp_path / "store"),
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            line = process.stdout.readline()
            assert line == f"Listening on http://127.0.0.1:{port}\n", line or process.stderr.read()
            server = Running(port, None)  # type: ignore[arg-type]
            names = set()
            for number in range(16):
                body = {"messages": HELLO, "max_tokens": 2, "seed": 1}
                answer = server.post(CHAT, body, **{"x-session-id": f"session {number}"})
                assert answer.status == 200
                names.add(answer.headers["x-sinkstream-replica"])
            assert len(names) == 2
            process.send_signal(signal.SIGTERM)
            assert process.wait(90) == 0
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert not _alive(process.pid)


def _alive(session: int) -> list[str]:
    """Return the processes of a session that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append((entry / "cmdline").read_text(errors="replace")[:80])
    return found
