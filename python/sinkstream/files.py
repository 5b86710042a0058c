"""Paths as users write them, and files that are replaced as a whole.

A replaced file's path always holds the old file or the complete new one.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def expand_home(path: str | os.PathLike[str]) -> Path:
    """Replace a leading `~` or `~user` with the home folder. Never raises for a string.

    Without such a user or home folder the path is unchanged, as in a shell: a file may be called
    `~x.gguf`.
    """
    return Path(expanded(path))


# Note: [Paths as strings]
# `pathlib` interns every part of a path. A server writes and reads files with ever new names: the
# table of interned strings would be allocated anew again and again. So what it uses takes strings.


def expanded(path: str | os.PathLike[str]) -> str:
    """Do the same as `expand_home`; see Note: [Paths as strings]."""
    try:
        # A `Path` would lose the "./" of "./~x", which means no home folder.
        return os.path.expanduser(os.fspath(path))  # noqa: PTH111
    except ValueError:  # a NUL or a lone surrogate: the path names no file either
        return os.fspath(path)


def home_hint(path: str | os.PathLike[str]) -> str:
    """Return a sentence for an error about a path whose `~` has no home folder, or nothing."""
    parts = Path(path).parts
    if len(parts) < 2 or not parts[0].startswith("~"):
        return ""
    user = parts[0][1:]
    return f" There is no user {json.dumps(user[:100])}." if user else " $HOME is not set."


def state_folder() -> Path | None:
    """Return the folder that the XDG base directory specification gives for a user's state.

    None if there is no home folder: neither $HOME nor an entry for the user in the system.
    """
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if state.is_absolute():  # the specification says to ignore a relative path
        return state
    try:
        home = Path.home()
    except RuntimeError:
        return None
    if not os.environ.get("HOME", str(home)):  # it would be the root folder
        return None
    return home / ".local" / "state"


@contextmanager
def replace_whole(
    path: str | os.PathLike[str],
    *,
    is_private: bool = False,
    buffering: int = -1,
    flush: bool = True,
) -> Iterator[BinaryIO]:
    """Open a new file next to `path`; at the end of the block flush it to disk and rename it.

    An exception in the block removes the new file and leaves the old one unchanged.

    Args:
        path: The file to replace; it need not exist. A leading `~` is expanded, and the target of a
            link is replaced, not the link.
        is_private: Whether only the owner may read and write it. Otherwise the umask decides.
        buffering: As for `open`; 0 writes immediately.
        flush: If False, the file is renamed only: a power cut may leave it empty or incomplete.

    Yields:
        The new file, open for reading and writing bytes.

    Raises:
        OSError: The folder does not exist, cannot be written, or is full, or the path is not a
            regular file.
    """
    new = NewFile(path, is_private=is_private, buffering=buffering)
    try:
        yield new.file
        new.complete(flush=flush)
    except BaseException:
        new.abandon()
        raise


class NewFile:
    """A file that gets its name once it is complete; for writers that cannot use a `with` block.

    Attributes:
        file: Open for reading and writing bytes, next to the path under a temporary name.
    """

    file: BinaryIO

    def __init__(
        self, path: str | os.PathLike[str], *, is_private: bool = False, buffering: int = -1
    ) -> None:
        """Create the file; arguments and errors are those of `replace_whole`."""
        self._path = _target_of(expanded(path))
        self._folder, name = os.path.split(self._path)
        prefix = f".{name[:40]}.sinkstream-"
        descriptor, self._part = _create_locked(prefix, self._folder)
        _remove_abandoned(prefix, self._folder)
        try:
            if not is_private:
                os.fchmod(descriptor, 0o666 & ~_umask())
            self.file = os.fdopen(descriptor, "w+b", buffering=buffering)
        except BaseException:
            with suppress(OSError):  # `fdopen` may have closed it
                os.close(descriptor)
            unlink_if_there(self._part)
            raise

    def complete(self, *, flush: bool = True) -> None:
        """Flush the file to disk, rename it and close it. Call `abandon` if this fails.

        If `flush` is False, the disk may get the file later, in whatever order.
        """
        self.file.flush()
        if flush:
            os.fsync(self.file.fileno())
        os.replace(self._part, self._path)  # noqa: PTH105
        self.file.close()  # not earlier: that ends the lock
        if flush:
            _flush_folder(self._folder)

    def abandon(self) -> None:
        """Close and remove the new file; an old one at the path stays."""
        with suppress(OSError):  # a full disk refuses what is still in the buffer
            self.file.close()
        unlink_if_there(self._part)


def unlink_if_there(path: str) -> None:
    """Remove a file, if it is there; see Note: [Paths as strings]."""
    with suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108


# Note: [Abandoned files]
# A killed process leaves its unfinished file. Each file is locked while it is written, and the lock
# ends with the process. So the next writer of the path removes those that it can lock.


_PART = re.compile("[a-z0-9_]{8}[.]part")


def _create_locked(prefix: str, folder: str) -> tuple[int, str]:
    """Create and lock a file with mode 0600; return its descriptor and path."""
    while True:
        descriptor, part = tempfile.mkstemp(prefix=prefix, suffix=".part", dir=folder)
        with suppress(OSError):  # a file system may have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.path.lexists(part):
            return descriptor, part
        os.close(descriptor)  # removed before it was locked


def _remove_abandoned(prefix: str, folder: str) -> None:
    with suppress(OSError), os.scandir(folder) as entries:
        for part in [entry.path for entry in entries if _is_part(entry.name, prefix)]:
            with suppress(OSError):
                _remove_if_abandoned(part)


def _is_part(name: str, prefix: str) -> bool:
    # No pattern with the prefix: `re` would keep hundreds of them.
    return name.startswith(prefix) and _PART.fullmatch(name, len(prefix)) is not None


def _remove_if_abandoned(part: str) -> None:
    """Remove a file if no process is writing it.

    Raises:
        OSError: A process is writing the file, or it cannot be locked.
    """
    descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(part)  # noqa: PTH108
    finally:
        os.close(descriptor)


def _target_of(path: str) -> str:
    """Follow links to the file that will be replaced, which need not exist.

    Raises:
        OSError: The links form a loop, or lead to something else: a device must not be replaced.
    """
    target = os.path.realpath(path)
    try:
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        return target
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Not a regular file", path)
    return target


def _umask() -> int:
    """Return the process's umask from /proc: `os.umask` can read it only by replacing it."""
    with suppress(OSError):  # without /proc, only the owner may use the file
        for line in Path("/proc/self/status").read_text("utf-8", "replace").splitlines():
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077


def _flush_folder(folder: str) -> None:
    """Flush a rename to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
