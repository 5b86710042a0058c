"""Whatever happens during a save, its path holds the complete old file or the complete new one."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sinkstream.sessions.file import read_session_file, write_session_file
from sinkstream.sessions.record import SessionState
from tests.python.sessions.records import assert_same, make_record

ROOT = Path(__file__).parents[3]

# Saves two sessions alternately until it is killed; thirty times.
SAVE_AND_KILL = """
import os, random, signal, sys, time
from pathlib import Path
from sinkstream.sessions.file import read_session_file, write_session_file
from sinkstream.sessions.record import SessionState
from tests.python.sessions.records import assert_same, make_record

path = Path(sys.argv[1])
records = [make_record(state=SessionState(10_000, turns=i), seed=i, window=4000) for i in (0, 1)]
write_session_file(path, records[0])
random.seed(7)
found, unfinished = [], 0
for _ in range(30):
    child = os.fork()
    if child == 0:
        try:
            while True:
                for record in reversed(records):
                    write_session_file(path, record)
        finally:
            os._exit(1)
    time.sleep(random.uniform(0.001, 0.05))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the child has stopped saving"
    # The next save removes what this one has left.
    unfinished += any(entry.name.endswith(".part") for entry in path.parent.iterdir())
    session = read_session_file(path)
    assert_same(session, records[session.state.turns])
    found.append(session.state.turns)
print(found.count(0), found.count(1), unfinished)
"""


def files_of(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_save_that_is_killed_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    old, new, unfinished = map(int, run(SAVE_AND_KILL, str(tmp_path / "a.session")).split())
    assert old + new == 30
    assert unfinished > 0  # some were killed while writing


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 1 MB, or skip the test without permission to mount."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a disk of 1 MB cannot be mounted here; the next test limits a file's size")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_named_and_leaves_the_old_file(small_disk: Path) -> None:
    path = small_disk / "a.session"
    small, large = make_record(), make_record(state=SessionState(9000), window=8000)
    assert large.keys_values.nbytes > 1 << 20
    write_session_file(path, small)
    with pytest.raises(OSError, match=r'^\[Errno 28\] save: the session cannot be written to "/'):
        write_session_file(path, large)
    assert files_of(small_disk) == ["a.session"]
    assert_same(read_session_file(path), small)


LIMITED = """
import resource, sys
from sinkstream.sessions.file import write_session_file
from sinkstream.sessions.record import SessionState
from tests.python.sessions.records import make_record

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    write_session_file(sys.argv[1], make_record(state=SessionState(9000), window=8000))
except OSError as error:
    print(error.errno, error)
"""


def test_a_file_that_may_not_grow_is_named_and_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.session"
    write_session_file(path, make_record())
    message = f'save: the session cannot be written to "{path}": '
    assert run(LIMITED, str(path)).startswith(f"{errno.EFBIG} [Errno {errno.EFBIG}] {message}")
    assert files_of(tmp_path) == ["a.session"]
    assert_same(read_session_file(path), make_record())


def test_ctrl_c_in_the_middle_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.session"
    write_session_file(path, make_record())

    def interrupted(*_: object) -> None:
        assert len(files_of(tmp_path)) == 2
        raise KeyboardInterrupt

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                write_session_file(path, make_record(seed=2))
        assert files_of(tmp_path) == ["a.session"]
        assert_same(read_session_file(path), make_record())


def test_the_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.session"
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def flushed(descriptor: int) -> None:
        calls.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    def renamed(part: str, target: str) -> None:
        calls.append(f"{part} to {target}")
        replace(part, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    write_session_file(path, make_record())
    part = calls[0]
    assert Path(part).parent == tmp_path
    assert calls == [part, f"{part} to {path}", str(tmp_path)]


def test_a_folder_in_the_way_and_a_missing_one_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.session").mkdir()
    for path in (tmp_path / "a.session", tmp_path / "none" / "b.session"):
        with pytest.raises(OSError, match="save: the session cannot be written to") as raised:
            write_session_file(path, make_record())
        assert str(path) in str(raised.value)
    assert files_of(tmp_path) == ["a.session"]
