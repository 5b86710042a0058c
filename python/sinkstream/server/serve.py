"""Runs a server: listens, loads the model, serves, and drains after SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

import uvicorn

from sinkstream.conversations.turns import Turns
from sinkstream.model import Model
from sinkstream.server.app import create_app
from sinkstream.server.config import ServerConfig, check_config
from sinkstream.server.http_limits import BoundedHttp, check_descriptors
from sinkstream.server.middleware import App
from sinkstream.server.process_settings import collect_repeatedly, set_for_serving, trim_repeatedly
from sinkstream.server.service import Service
from sinkstream.server.socket_limits import BoundedSocket
from sinkstream.server.store_choice import open_turns

logger = logging.getLogger("sinkstream.server")
_POLL_S = 0.02
_LOADING_POLL_S = 0.05
_CLOSE_S = 2  # for connections, after the last reply
# Of each connection, in the kernel. uvicorn holds as much again: a client that stalls costs that.
SEND_BUFFER_BYTES = 1 << 16
_BACKLOG = 2048  # as uvicorn's
ACCEPTED_AT_ONCE = 16  # connections in one turn of the event loop

Load = Callable[[], Model]
Report = Callable[[str, Model], None]
"""Called with the address and the model, once requests are answered."""


class Alone:
    """What a server that shares its store does differently: this one shares it with no other."""

    def app(self, service: Service) -> App:
        """Return the server's app."""
        return create_app(service)

    def open_turns(self, model: Model, config: ServerConfig) -> Turns:
        """Return the object that begins the server's turns. Blocks."""
        assert not config.is_shared
        return open_turns(model, config)

    async def park_all(self, service: Service) -> None:
        """Save and give up the idle conversations, so that other servers need not read them."""


def serve(
    config: ServerConfig,
    load: Load,
    on_ready: Report = lambda address, model: None,
    *,
    stop: threading.Event | None = None,
    sharing: Alone | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; return after the drain.

    Args:
        config: The settings.
        load: Loads the model, in a thread; /health says so meanwhile.
        on_ready: Called once requests can be answered.
        stop: Ends the server like SIGTERM; for a server in a thread, which gets no signals.
        sharing: Of a server that shares its store with others; None if it does not.

    Raises:
        InvalidArgument: A setting is not allowed.
        OSError: The address is not free.
        StoreError: The store of conversations cannot be used.
        Exception: Any error of `load`.
    """
    check_config(config)
    check_descriptors(config.max_connections)
    listener = open_socket(config.host, config.port)
    address = address_of(listener)
    if config.peer_secret and not config.address:
        config = replace(config, address=address)
    service = Service(config)
    sharing = sharing or Alone()
    server = make_server(sharing.app(service), service)
    try:
        with listener:
            asyncio.run(
                _Run(service, server, load, stop, sharing).run(
                    listener, lambda model: on_ready(address, model)
                )
            )
    finally:
        service.close()
        if (model := service.loaded) is not None:
            model.close()


def make_server(app: App, service: Service) -> uvicorn.Server:
    """Return a server for an app, with the service's limits. It has no signal handlers."""
    config = service.config
    web_socket = partial(
        BoundedSocket,
        connections=service.connections,
        messages=service.messages,
        message_timeout_s=config.body_timeout_s,
    )
    settings = uvicorn.Config(
        app,
        loop="asyncio",
        backlog=ACCEPTED_AT_ONCE,
        http=partial(BoundedHttp, connections=service.connections),  # type: ignore[arg-type]
        ws=web_socket,  # type: ignore[arg-type]
        ws_per_message_deflate=False,
        ws_max_size=config.max_body_bytes,
        ws_ping_timeout=config.send_timeout_s,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=_CLOSE_S,
    )
    # The middleware logs what fails. uvicorn would log an error for each stream that is cut on
    # purpose.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    return _Uvicorn(settings)


class _Uvicorn(uvicorn.Server):
    """uvicorn without its signal handlers: this module installs its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


class _Run:
    """One run of a server, on its event loop."""

    def __init__(
        self,
        service: Service,
        server: uvicorn.Server,
        load: Load,
        stop: threading.Event | None,
        sharing: Alone,
    ) -> None:
        self._service = service
        self._sharing = sharing
        self._server = server
        self._load = load
        self._stop = stop
        self._signals = 0
        self._has_signals = threading.current_thread() is threading.main_thread()

    async def run(self, listener: object, on_ready: Callable[[Model], None]) -> None:
        """Serve on `listener` until it is time to end."""
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            if self._has_signals:
                for number in (signal.SIGTERM, signal.SIGINT):
                    loop.add_signal_handler(number, self._on_signal, number)
                    stack.callback(loop.remove_signal_handler, number)
            serving = asyncio.create_task(self._server.serve(sockets=[listener]))  # type: ignore[list-item]
            upkeep = [
                asyncio.create_task(work)
                for work in (
                    self._service.health.run(self._end_replies),
                    trim_repeatedly(self._service.pool.run),
                    collect_repeatedly(lambda: not self._service.replies),
                )
            ]
            try:
                loaded = await self._load_model()
                stack.enter_context(set_for_serving())  # before requests come
                if loaded is not None:
                    model, turns = loaded
                    self._service.serve(model, turns)
                    on_ready(model)
                while not (self._must_end or serving.done()):
                    await asyncio.sleep(_POLL_S)
                await self._drain()
                if self._service.health.is_stalled and self._has_signals:
                    # What waits for the engine would never end. The store is as after a kill.
                    logger.critical(
                        "server: the engine has not completed a step for a long time; the process "
                        "ends now."
                    )
                    os._exit(1)
            finally:
                for task in upkeep:
                    task.cancel()
                self._server.should_exit = True
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({serving, *upkeep})

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals == 1:
            logger.info(
                "server: ends after %s; %d replies in progress have %g s to finish.",
                number.name,
                self._service.admission.in_progress,
                self._service.config.drain_s,
            )

    @property
    def _must_end(self) -> bool:
        return self._signals > 0 or (self._stop is not None and self._stop.is_set())

    async def _load_model(self) -> tuple[Model, Turns] | None:
        """Load the model while /health responds; return None if a signal ends the wait."""
        loaded: list[tuple[Model, Turns]] = []
        failed: list[BaseException] = []

        def load() -> None:
            try:
                model = self._load()
                try:
                    self._service.prepare(model)
                    turns = self._sharing.open_turns(model, self._service.config)
                    loaded.append((model, turns))
                except BaseException:
                    model.close()
                    raise
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=load, name="sinkstream-load", daemon=True)
        thread.start()
        while thread.is_alive() and not self._must_end:
            await asyncio.sleep(_LOADING_POLL_S)
        if failed:
            raise failed[0]
        return loaded[0] if loaded else None

    async def _drain(self) -> None:
        """Refuse new requests, and give running replies their time; a second signal ends it."""
        self._service.is_draining = True
        self._service.drain_begins.set()
        loop = asyncio.get_running_loop()
        end = loop.time() + self._service.config.drain_s
        parking = asyncio.create_task(self._sharing.park_all(self._service))
        admission = self._service.admission
        health = self._service.health
        while admission.in_progress and loop.time() < end and self._signals < 2:
            if health.is_stalled:
                break
            await asyncio.sleep(_POLL_S)
        # A client that does not read holds its reply longer than this; uvicorn then cuts it off.
        end = loop.time() + _CLOSE_S
        while admission.in_progress and loop.time() < end:
            self._end_replies()  # those that have begun meanwhile, too
            await asyncio.sleep(_POLL_S)
        if not health.is_stalled:
            await parking
            await self._sharing.park_all(self._service)

    def _end_replies(self) -> None:
        """End all replies; their clients get an error event."""
        for stream in self._service.replies:
            stream.cancel()
        self._service.pool.cancel_waits()


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
        OSError: It cannot listen there; the message says why, and what to do.
    """
    try:
        return _listening(host, port)
    except OSError as error:
        name, remedy = ("host", "Choose an address of this machine with --host.")
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            name, remedy = "port", "Choose another with --port; 0 takes a free one."
        raise OSError(
            error.errno,
            f"serve: `{name}` must be one to listen on, but {host}:{port} cannot be used: "
            f"{error.strerror}. {remedy}",
        ) from None


def _listening(host: str, port: int) -> socket.socket:
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
