"""Opens the server's socket, with bounded buffers for clients that do not read."""

from __future__ import annotations

import socket

# Of each connection, in the kernel. uvicorn holds as much again: a client that stalls costs that.
SEND_BUFFER_BYTES = 1 << 16
_BACKLOG = 2048  # as uvicorn's
ACCEPTED_AT_ONCE = 16  # connections in one turn of the event loop


class _Listener(socket.socket):
    """A socket whose queue in the kernel is long.

    asyncio uses one number for both the length of that queue and the connections that it accepts in
    one turn of the loop, which must be few.
    """

    def listen(self, backlog: int = _BACKLOG, /) -> None:
        """Listen with a queue of at least the server's length."""
        super().listen(max(backlog, _BACKLOG))


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a name or an address.

    Raises:
        OSError: There is no such name, or the port is taken.
    """
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    listener = _Listener(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. Without it, the kernel takes megabytes for a client that stalls.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        listener.bind(address)
        listener.listen()  # clients may connect before the event loop runs
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the address to connect to."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
