"""SQLite on a network file system is refused; on a local one it is not."""

from __future__ import annotations

import os
import stat
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


# ---- the folder's owner --------------------------------------------------------------------------


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_that_was_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine").chmod(0o755)
    for folder in ("mine", "mine/below/store"):
        SqliteStore.open(tmp_path / folder, "model").close()
    assert mode(tmp_path / "mine") == 0o755
    assert mode(tmp_path / "mine" / "below" / "store") == 0o700
    assert mode(tmp_path / "mine" / "turns.sqlite") == 0o600
    (tmp_path / "mine" / "turns.sqlite").chmod(0o640)  # such as for a backup
    SqliteStore.open(tmp_path / "mine", "model").close()
    assert mode(tmp_path / "mine" / "turns.sqlite") == 0o640


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(StoreError, match=f"but is a link to {target}. Name that folder"):
        SqliteStore.open(tmp_path / "link", "model")
    assert list(target.iterdir()) == []
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    with pytest.raises(StoreError, match="but is a link"):
        SqliteStore.open(tmp_path / "nowhere", "model")
    assert not (tmp_path / "missing").exists()
    (tmp_path / "above").symlink_to(target)
    SqliteStore.open(tmp_path / "above" / "store", "model").close()  # its owner has made it


@pytest.mark.parametrize("name", ["lock", "turns.sqlite"])
def test_a_file_that_is_a_link_is_not_followed(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / name).symlink_to(tmp_path / "victim")
    with pytest.raises(StoreError, match="must be a file, but is a link"):
        SqliteStore.open(folder, "model")
    assert not (tmp_path / "victim").exists()


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="must be a folder, but is a file"):
        SqliteStore.open(tmp_path / "file", "model")


@pytest.mark.parametrize("name", ["", "lock", "turns.sqlite"])
def test_what_another_user_owns_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "store"
    SqliteStore.open(folder, "model").close()
    if os.getuid() == 0:
        os.chown(folder / name, 12345, -1)
    elif name == "":
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    else:
        pytest.skip("needs root")
    with pytest.raises(StoreError, match="must belong to the user who runs the server"):
        SqliteStore.open(folder, "model")
