"""Refuses a folder where a SQLite store is not safe: from a network, or from other users.

SQLite's write-ahead log needs memory that all processes map from one file. Hosts share no such
memory, and a network file system lets two of them write at the same time, which destroys the store.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
from pathlib import Path

from sinkstream.conversations.errors import StoreError

NETWORK = {
    # `f_type` of statfs(2), as in linux/magic.h and in the sources of each file system.
    0x00006969: "NFS",
    0x0000517B: "SMB",
    0xFE534D42: "SMB",
    0xFF534D42: "CIFS",
    0x01021997: "9p",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x73757245: "Coda",
    0x0000564C: "NCP",
    0x01161970: "GFS2",
    0x7461636F: "OCFS2",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
    0xAAD7AAEA: "PanFS",
    0x20030528: "OrangeFS",
    0xBACBACBC: "a file system shared with a virtual machine (vmhgfs)",
    0x786F4256: "a file system shared with a virtual machine (vboxsf)",
}
FUSE = 0x65735546
_OCTAL = re.compile(r"\\([0-7]{3})")  # of spaces in the list of mounts
# What follows "fuse." in the list of mounts. `virtiofs` has FUSE's number and its own name.
NETWORK_FUSE = {
    "afpfs", "beegfs", "ceph", "ceph-fuse", "curlftpfs", "davfs", "davfs2", "gcsfuse", "geesefs",
    "glusterfs", "goofys", "hadoop", "hdfs", "jfs", "JuiceFS", "juicefs", "moosefs", "mfs", "ossfs",
    "rclone", "s3fs", "seaweedfs", "sshfs", "virtiofs", "weed",
}  # fmt: skip
LOCAL_FUSE = {
    "bindfs", "cryfs", "encfs", "exfat", "ext2", "ext4", "fuse-overlayfs", "fuseblk", "gocryptfs",
    "mergerfs", "ntfs", "ntfs-3g", "portal", "securefs", "unionfs",
}  # fmt: skip


def check_folder(folder: Path, *, is_shared: bool) -> None:
    """Refuse a folder that SQLite cannot use safely.

    An unknown FUSE file system is allowed for one process: the lock on the folder keeps other
    processes on this host out, and most such file systems are local. It is not allowed for several
    processes, which depend on its locks and mapped files.

    Args:
        folder: The folder, which exists.
        is_shared: Whether several processes use it at the same time.

    Raises:
        StoreError: It is on a network file system, or on one that may be.
    """
    number = file_system(folder)
    name = NETWORK.get(number)
    if number == FUSE:
        kind = fuse_kind(folder)
        if kind in NETWORK_FUSE:
            name = kind
        elif kind not in LOCAL_FUSE and is_shared:
            name = f"FUSE ({kind or 'unknown'})"
    if name is not None:
        raise StoreError(
            f"store: {folder} must be on a local disk, but is on {name}, where SQLite may lose "
            "data. Use a folder on a local disk, or `postgresql://…` for several hosts."
        )


def check_owner(folder: Path) -> None:
    """Refuse a folder that another user owns, who could replace the store, and a link to a folder.

    A link above the folder is the business of its owner.

    Raises:
        StoreError: It is refused.
        OSError: It cannot be read.
    """
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise StoreError(
            f"store: {folder} must be a folder, but is a link to {folder.resolve()}. Name that "
            "folder."
        )
    if not stat.S_ISDIR(found.st_mode):
        raise StoreError(f"store: {folder} must be a folder, but is a file.")
    if found.st_uid != os.geteuid():
        raise StoreError(
            f"store: {folder} must belong to the user who runs the server, but belongs to user "
            f"{found.st_uid}. Choose another folder, or run the server as that user."
        )


def open_own(path: Path) -> int:
    """Open a file of a store to write, and return its descriptor; create it if it is missing.

    Raises:
        StoreError: It is a link, which could lead anywhere, or belongs to another user.
        OSError: It cannot be opened.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise StoreError(f"store: {path} must be a file, but is a link.") from None
    if os.fstat(file).st_uid != os.geteuid():
        os.close(file)
        raise StoreError(f"store: {path} must belong to the user who runs the server.")
    return file


def file_system(folder: Path) -> int:
    """Return the number of a folder's file system; 0 if the C library does not say."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = (ctypes.c_ulong * 32)()  # `struct statfs` begins with `f_type`, and is smaller
    if libc.statfs(os.fsencode(folder), ctypes.byref(found)) != 0:
        return 0
    return int(found[0]) & 0xFFFFFFFF


def fuse_kind(folder: Path) -> str:
    """Return which FUSE file system a folder is on, from the list of mounts; "" if unknown."""
    path = os.path.realpath(folder)
    best, kind = "", ""
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    for line in lines:
        before, _, after = line.partition(" - ")
        point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), before.split()[4])
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind.removeprefix("fuse.")
