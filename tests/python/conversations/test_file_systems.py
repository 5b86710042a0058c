"""SQLite on a network file system is refused; on a local one it is not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sinkstream.conversations import file_systems
from sinkstream.conversations.errors import StoreError
from sinkstream.conversations.file_systems import (
    FUSE,
    LOCAL_FUSE,
    NETWORK,
    NETWORK_FUSE,
    check_folder,
    file_system,
    fuse_kind,
)
from sinkstream.conversations.sqlite_store import SqliteStore

EXT4, TMPFS = 0xEF53, 0x01021994


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("number", NETWORK)
def test_a_network_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_shared: bool
) -> None:
    monkeypatch.setattr(file_systems, "file_system", lambda folder: number)
    with pytest.raises(StoreError, match="must be on a local disk, but is on") as caught:
        check_folder(tmp_path, is_shared=is_shared)
    assert f"is on {NETWORK[number]}, where SQLite may lose data" in str(caught.value)


@pytest.mark.parametrize("number", [EXT4, TMPFS, 0])
def test_a_disk_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(file_systems, "file_system", lambda folder: number)
    check_folder(tmp_path, is_shared=True)


@pytest.mark.parametrize(
    ("kind", "alone", "shared"),
    [
        *((kind, False, False) for kind in sorted(NETWORK_FUSE)),
        *((kind, True, True) for kind in sorted(LOCAL_FUSE)),
        ("unheard-of", True, False),
        ("", True, False),
    ],
)
def test_of_fuse_it_depends_on_the_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, alone: bool, shared: bool
) -> None:
    monkeypatch.setattr(file_systems, "file_system", lambda folder: FUSE)
    monkeypatch.setattr(file_systems, "fuse_kind", lambda folder: kind)
    for is_shared, allowed in ((False, alone), (True, shared)):
        if allowed:
            check_folder(tmp_path, is_shared=is_shared)
        else:
            with pytest.raises(StoreError, match="must be on a local disk"):
                check_folder(tmp_path, is_shared=is_shared)


def test_a_store_says_so_and_can_be_opened_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_systems, "file_system", lambda folder: 0x6969)
    with pytest.raises(StoreError, match="is on NFS"):
        SqliteStore.open(tmp_path / "a", "model")
    assert not (tmp_path / "a" / "turns.sqlite").exists()
    monkeypatch.undo()
    SqliteStore.open(tmp_path / "a", "model").close()


def test_the_number_is_that_of_the_system(tmp_path: Path) -> None:
    said = subprocess.run(
        ["stat", "-f", "-c", "%t", tmp_path], capture_output=True, text=True, check=True
    ).stdout
    assert file_system(tmp_path) == int(said, 16)
    assert file_system(tmp_path / "missing") == 0


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:50 / /home rw,nosuid - fuse.sshfs ada@host:/home rw,user_id=0
41 40 0:51 / /home/ada/with\\040space rw - fuse.rclone remote: rw
42 22 8:2 / /mnt/c rw - fuseblk /dev/sda2 rw
43 22 0:52 / /mnt/shared rw - virtiofs tag rw
"""


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/home/ada/store", "sshfs"),
        ("/home/ada/with space/store", "rclone"),
        ("/home/ada/with space", "rclone"),
        ("/homes", "ext4"),
        ("/mnt/c/store", "fuseblk"),
        ("/mnt/shared/store", "virtiofs"),
    ],
)
def test_the_kind_is_that_of_the_nearest_mount(
    monkeypatch: pytest.MonkeyPatch, folder: str, kind: str
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self, **_: MOUNTS)
    assert fuse_kind(Path(folder)) == kind
