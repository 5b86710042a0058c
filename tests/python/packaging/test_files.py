"""Files are replaced atomically: a path holds the old file or the complete new one."""

from __future__ import annotations

import errno
import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sinkstream import files
from sinkstream.files import expand_home, replace_whole


@pytest.fixture
def umask() -> Iterator[int]:
    """Set a umask that differs from both 0600 and the usual 0644."""
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("old", [None, b"old"])
def test_a_block_that_ends_replaces_the_file(tmp_path: Path, old: bytes | None) -> None:
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)
    with replace_whole(path) as file:
        file.write(b"new, ")
        file.write(b"complete")
        assert (path.read_bytes() if path.exists() else None) == old
    assert path.read_bytes() == b"new, complete"
    assert list(tmp_path.iterdir()) == [path]


def fail_halfway(path: Path, error: type[BaseException]) -> None:
    with replace_whole(path) as file:
        file.write(b"half")
        raise error


@pytest.mark.parametrize("old", [None, b"old"])
@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_the_block_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, error: type[BaseException], old: bytes | None
) -> None:
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)
    with pytest.raises(error):
        fail_halfway(path, error)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([] if old is None else [old])


def test_a_new_file_may_be_read_and_rewritten_in_the_block(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replace_whole(path) as file:
        file.write(b"0000 rest")
        file.seek(0)
        assert file.read() == b"0000 rest"
        file.seek(0)
        file.write(b"1234")
    assert path.read_bytes() == b"1234 rest"


def test_without_buffering_every_write_is_in_the_file_immediately(tmp_path: Path) -> None:
    with replace_whole(tmp_path / "file", buffering=0) as file:
        file.write(b"123")
        assert os.fstat(file.fileno()).st_size == 3


def test_a_private_file_is_for_its_owner_alone_from_the_beginning(
    tmp_path: Path, umask: int
) -> None:
    path = tmp_path / "file"
    path.touch(0o666)
    with replace_whole(path, is_private=True):
        (new,) = (p for p in tmp_path.iterdir() if p != path)
        assert mode(new) == 0o600
    assert mode(path) == 0o600


def test_the_umask_decides_for_other_files(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "file"
    with replace_whole(path):
        pass
    assert mode(path) == 0o666 & ~umask == 0o640
    assert os.umask(umask) == umask  # unchanged


@pytest.mark.parametrize("old", [None, b"old"], ids=["dangling", "whole"])
def test_the_target_of_a_link_is_replaced_and_the_link_stays(
    tmp_path: Path, old: bytes | None
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    target, link, again = elsewhere / "target", tmp_path / "link", tmp_path / "again"
    if old is not None:
        target.write_bytes(old)
    link.symlink_to("elsewhere/target")
    again.symlink_to("link")
    with replace_whole(again) as file:
        file.write(b"new")
    assert (again.readlink(), link.readlink()) == (Path("link"), Path("elsewhere/target"))
    assert target.read_bytes() == b"new"
    assert list(elsewhere.iterdir()) == [target]


def test_links_in_a_loop_are_an_error_and_stay(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        fail_halfway(tmp_path / "a", KeyError)
    assert (tmp_path / "a").readlink() == Path("b")


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="Not a regular file"):
        fail_halfway(tmp_path / "pipe", KeyError)
    assert (tmp_path / "pipe").is_fifo()


def left_by_a_killed_process(path: Path) -> Path:
    """Return the unfinished file of a process that was killed while it replaced `path`."""
    script = (
        "import os, signal, sys; from sinkstream.files import NewFile\n"
        "new = NewFile(sys.argv[1]); new.file.write(b'half'); new.file.flush()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    before = {*path.parent.iterdir()}
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = {*path.parent.iterdir()} - before
    assert left.read_bytes() == b"half"
    return left


def test_what_a_killed_process_has_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 60)
    left = [left_by_a_killed_process(path) for _ in range(2)]
    other = left_by_a_killed_process(tmp_path / "other")
    with replace_whole(path) as file:
        assert not any(part.exists() for part in left)
        file.write(b"whole")
    assert {*tmp_path.iterdir()} == {path, other}


def test_files_that_others_are_writing_or_that_only_look_alike_stay(tmp_path: Path) -> None:
    path = tmp_path / "file"
    part = left_by_a_killed_process(path)
    name = part.name.replace(".part", "")
    alike = [tmp_path / f".file.{end}" for end in ("x.part", "download.part", "abc.sinkstream")]
    alike += [tmp_path / f"{name}.part.txt", tmp_path / f"x{part.name}"]
    for user in alike:
        user.touch()
    kinds = [part.with_name(part.name[:-13] + f"{i}" * 8 + ".part") for i in range(3)]
    kinds[0].mkdir()
    kinds[1].symlink_to(alike[0])
    os.mkfifo(kinds[2])
    with replace_whole(path) as first, replace_whole(path) as second:
        first.write(b"first")
        second.write(b"second")
        assert not part.exists()
    assert path.read_bytes() == b"first"  # which ended last
    assert {*tmp_path.iterdir()} == {path, *alike, *kinds}


def test_many_writers_of_one_path_do_not_remove_each_others_files(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def write(number: int) -> None:
        for _ in range(20):
            with replace_whole(path) as file:
                file.write(bytes([number]) * 1000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert len({*path.read_bytes()}) == 1
    assert [*tmp_path.iterdir()] == [path]


def test_a_file_system_without_locks_keeps_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    left = left_by_a_killed_process(path)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    with replace_whole(path) as file:
        file.write(b"whole")
    assert {*tmp_path.iterdir()} == {path, left}


def test_a_tilde_means_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with replace_whole("~/file") as file:
        file.write(b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize(
    "name", ["~x.gguf", "~nosuchuser/x", "~\0/x", "~\ud800/x", "a~", "./~", "x" * 5000, ""]
)
def test_a_tilde_without_a_home_folder_is_a_part_of_the_name(name: str) -> None:
    assert expand_home(name) == Path(name)


def test_without_a_home_folder_a_tilde_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert expand_home("~/x") == Path("~/x")


def test_a_rename_that_fails_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(IsADirectoryError), replace_whole(folder) as file:
        file.write(b"new")
    assert list(tmp_path.iterdir()) == [folder]


def test_a_missing_folder_is_an_error_before_the_block(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replace_whole(tmp_path / "gone" / "file"):
        pytest.fail("the block must not run")


def test_a_name_as_long_as_the_file_system_allows_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    with replace_whole(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"


def test_a_file_that_cannot_be_set_up_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> int:
        raise PermissionError

    monkeypatch.setattr(files, "_umask", fail)
    with pytest.raises(PermissionError), replace_whole(tmp_path / "file"):
        raise AssertionError
    assert list(tmp_path.iterdir()) == []
