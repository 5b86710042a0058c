"""`sinkstream serve --ray`: Ray on this host, and the application, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable

import ray
from ray import serve

from sinkstream.integrations.ray_serve.deployment import NAME
from sinkstream.server.config import ServerConfig

Report = Callable[[str], None]


def run(application: serve.Application, config: ServerConfig, on_ready: Report) -> None:
    """Serve until Ctrl-C or SIGTERM; return after all replicas have parked their conversations.

    Args:
        application: What `app` returned.
        config: The settings of the application; Ray's proxy listens on `host` and `port`.
        on_ready: Called with the address once requests can be answered.
    """
    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    try:
        serve.start(http_options={"host": config.host, "port": config.port})
        serve.run(application, name=NAME, route_prefix="/")
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):  # in place of those that Ray has set
            signal.signal(number, lambda *_: stop.set())
        on_ready(f"http://{config.host}:{config.port}")
        stop.wait()
    finally:
        serve.shutdown()
        if is_ours:
            ray.shutdown()
