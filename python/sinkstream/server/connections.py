"""Counts connections, HTTP and WebSockets alike, and cuts off clients that do not read."""

from __future__ import annotations

import asyncio
import fcntl
import resource
import socket
import struct
import sys
import termios
from typing import Any, Protocol

from sinkstream.errors import InvalidArgument

SURPLUS = 64
"""Connections above the limit that are still answered: with 503, or with the health."""
RECEIVE_BYTES = 1 << 16
"""The most that is taken from a connection in one turn of the event loop."""
_OWN_FILES = 128  # of a process apart from its connections: the store, the model, the event loop


class Transport(Protocol):
    """The parts of asyncio's transport that are needed."""

    def abort(self) -> None:
        """Close immediately, without sending what is held."""
        ...

    def get_extra_info(self, name: str) -> Any:
        """Return a fact of the transport, such as its "socket"."""
        ...

    def get_write_buffer_size(self) -> int:
        """Return the bytes that the kernel has not taken yet."""
        ...

    def set_write_buffer_limits(self, high: int) -> None:
        """Set the size above which the protocol is paused."""
        ...


class Connection:
    """One connection. It is paused while the kernel's buffer for its client is full."""

    def __init__(
        self,
        all_of_them: Connections,
        transport: Transport,
        loop: asyncio.AbstractEventLoop,
        *,
        is_surplus: bool,
    ) -> None:
        self.is_surplus = is_surplus
        self.is_stalled = False
        """Whether it was cut off because its client did not read."""
        self._all = all_of_them
        self._transport = transport
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._held = 0
        # Paused as soon as the kernel is full: then at most one write is held here.
        transport.set_write_buffer_limits(high=0)

    def pause(self) -> None:
        """Expect the client to take something within the time."""
        self._held = self._unread()
        self._timer = self._loop.call_later(self._all.send_timeout_s, self._check)

    def resume(self) -> None:
        """Stop waiting: the client has taken everything."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        if self._unread() < self._held:
            self.pause()
            return
        self._timer = None
        self.is_stalled = True
        # Without this, the kernel would keep what it holds for the client.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _unread(self) -> int:
        """Return the bytes that the client has not received: here, and in the kernel."""
        in_kernel = fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(4))
        return self._transport.get_write_buffer_size() + int.from_bytes(in_kernel, sys.byteorder)

    def leave(self) -> None:
        """Count the connection as closed. May be called more than once."""
        self.resume()
        self._all.remove(self)


class Connections:
    """The connections of a server. Belongs to one event loop."""

    def __init__(self, limit: int, send_timeout_s: float) -> None:
        """Allow `limit` connections; each client must read something every `send_timeout_s`."""
        self.limit = limit
        self.send_timeout_s = send_timeout_s
        self.receive_buffer = memoryview(bytearray(RECEIVE_BYTES))
        """What has just arrived for one of them."""
        self._open: set[Connection] = set()

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, transport: Transport, loop: asyncio.AbstractEventLoop) -> Connection:
        """Count a connection; abort it if even the surplus is used up."""
        is_surplus = len(self._open) >= self.limit
        connection = Connection(self, transport, loop, is_surplus=is_surplus)
        if len(self._open) >= self.limit + SURPLUS:
            transport.abort()
        else:
            self._open.add(connection)
        return connection

    def remove(self, connection: Connection) -> None:
        """Count a connection as closed."""
        self._open.discard(connection)


def check_descriptors(connections: int) -> None:
    """Let the process open a file for each connection.

    Raises:
        InvalidArgument: The system does not allow this number.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + SURPLUS + _OWN_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise InvalidArgument(
            f"serve: `max_connections` must be at most {hard - SURPLUS - _OWN_FILES}, but is "
            f"{connections}: this process may open only {hard} files. Raise the limit of open "
            "files, for example with `ulimit -n`.",
            param="max_connections",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
