"""examples/systemd: the unit is valid, and its times fit the server's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sinkstream.server.config import ServerConfig

UNIT = Path(__file__).parents[3] / "examples" / "systemd" / "sinkstream.service"
TEXT = UNIT.read_text(encoding="utf-8")


def test_replies_can_finish_before_the_service_is_killed() -> None:
    (stop_s,) = [line[15:] for line in TEXT.splitlines() if line.startswith("TimeoutStopSec=")]
    assert int(stop_s) > ServerConfig().drain_s


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    (command,) = [word for word in TEXT.split() if word.startswith("ExecStart=")]
    # The command must exist.
    text = TEXT.replace(command, f"ExecStart={sys.executable}")
    (tmp_path / UNIT.name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(tmp_path / UNIT.name)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")
