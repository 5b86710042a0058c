"""Files of snapshots in an object store that speaks S3's protocol and that all hosts can reach.

The region, the keys and another address come from the usual variables: AWS_REGION,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from obstore.exceptions import BaseError
from obstore.store import S3Store

from sinkstream.checkpoint.quoting import first_line
from sinkstream.conversations.errors import StoreError
from sinkstream.conversations.snapshot_files import Done

logger = logging.getLogger("sinkstream")

# A turn waits for its snapshot; without it, it is replayed.
_CONNECT = timedelta(seconds=3)
_READ = timedelta(seconds=10)
_RETRY = timedelta(seconds=10)


class SnapshotBucket:
    """Implements `SnapshotFiles`. Files pass through a temporary folder on this host."""

    def __init__(self, address: str) -> None:
        """Use the objects below an address such as `s3://bucket/path`.

        Raises:
            StoreError: The address is wrong, or the bucket cannot be read.
        """
        self._address = address
        is_plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
        try:
            self._store = S3Store.from_url(
                address,
                client_options={
                    "allow_http": is_plain,
                    "connect_timeout": _CONNECT,
                    "read_timeout": _READ,
                },
                retry_config={"max_retries": 2, "retry_timeout": _RETRY},
            )
            self._store.list(chunk_size=1).collect()
        except (BaseError, ValueError) as error:
            raise self._error(error) from error
        self._deleting = ThreadPoolExecutor(1, thread_name_prefix="sinkstream-snapshots")

    @contextmanager
    def writing(self, name: str) -> Iterator[str]:
        """Give a path in a temporary folder, and upload what was written there."""
        with tempfile.TemporaryDirectory(prefix="sinkstream-") as folder:
            path = f"{folder}/{name}"
            yield path
            try:
                self._store.put(name, Path(path))
            except BaseError as error:
                raise self._error(error) from error

    @contextmanager
    def reading(self, name: str) -> Iterator[str]:
        """Download a file to a temporary folder, and give its path."""
        with tempfile.TemporaryDirectory(prefix="sinkstream-") as folder:
            path = Path(folder) / name
            try:
                with path.open("wb") as file:
                    for piece in self._store.get(name):
                        file.write(piece)
            except (BaseError, FileNotFoundError) as error:
                path.unlink(missing_ok=True)  # its turn is replayed
                logger.warning("%s", self._error(error))
            yield str(path)

    def delete(self, name: str, done: Done) -> None:
        """Delete a file soon."""
        self._deleting.submit(self._delete, name, done)

    def _delete(self, name: str, done: Done) -> None:
        is_gone = True
        try:
            self._store.delete(name)
        except FileNotFoundError:
            pass
        except BaseError as error:
            is_gone = False
            logger.warning("store: a snapshot could not be deleted: %s", self._error(error))
        done(name, is_gone)

    def close(self) -> None:
        """Wait until all pending deletions are done."""
        self._deleting.shutdown()

    def _error(self, error: Exception) -> StoreError:
        return StoreError(
            f"store: {self._address} must be a bucket that can be read and written, but is not: "
            f"{first_line(error)}."
        )
