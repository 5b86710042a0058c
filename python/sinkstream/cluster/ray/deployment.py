"""The application that Ray Serve runs: one deployment, one replica per engine process.

`run` is `sinkstream serve --ray`: Ray on this host, and the application.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.config import (
    AutoscalingConfig,
    AutoscalingPolicy,
    BackpressureConfig,
    RequestRouterConfig,
)

from sinkstream.cluster.ray.replica import PERIOD_S, Plan, Replica
from sinkstream.cluster.ray.scaling import replicas_wanted
from sinkstream.errors import InvalidArgument
from sinkstream.server.config import ServerConfig, check_config

NAME = "sinkstream"
Report = Callable[[str], None]
_ROUTER = "ray.serve.experimental.consistent_hash_router:ConsistentHashRouter"
# For a replica that dies: without one, its sessions wait 10 s for the controller's broadcast.
_FALLBACKS = 2
# With the 100 of Ray's default, the fullest of 100 replicas has 1.4 times the mean of sessions.
# With 1,000, it has hardly more than with equal shares.
_POINTS = 1000
_PARK_S = 30.0  # to park all conversations, after the last reply
_FIELDS = frozenset(one.name for one in fields(ServerConfig))


def app(
    model: str | os.PathLike[str] | None = None,
    *,
    replicas: int | tuple[int, int] = 1,
    sequences_per_replica: float | None = None,
    num_cpus: float = 1,
    num_gpus: float = 0,
    server: ServerConfig | dict[str, Any] | None = None,
    **load: Any,
) -> serve.Application:
    """Return the application for `serve.run`, or for a Ray Serve config file.

    Example:
        >>> from ray import serve  # doctest: +SKIP
        >>> serve.run(app("smollm2", replicas=2, max_sequences=8))  # doctest: +SKIP

    Args:
        model: As for `sinkstream.load`; each node must have it.
        replicas: How many processes, each with a model; or the least and the most of them.
        sequences_per_replica: With a range of replicas, how many replies may run and wait in each
            before another one is started. None: half of `max_sequences`.
        num_cpus: What Ray reserves for a replica; `threads` says how many the model uses.
        num_gpus: GPUs for a replica.
        server: Settings of `sinkstream serve`, with the names of `ServerConfig`. `host` and `port`
            are those of Ray's proxy. Replicas on several hosts need a `store` that all reach. If
            they are not given, `api_keys`, `store` and `snapshots` are SINKSTREAM_API_KEY,
            SINKSTREAM_STORE and SINKSTREAM_SNAPSHOTS in the environment.
        **load: Further options of `sinkstream.load`, such as `max_sequences` and `window`.

    Raises:
        InvalidArgument: A setting is not allowed.
    """
    config = _config(model, server)
    load = {"max_sequences": 8, **load}
    running = load["max_sequences"]
    options: dict[str, Any] = {}
    if isinstance(replicas, int):
        options["num_replicas"] = replicas
    else:
        options["autoscaling_config"] = AutoscalingConfig(
            min_replicas=replicas[0],
            max_replicas=replicas[1],
            target_ongoing_requests=sequences_per_replica or running / 2,
            policy=AutoscalingPolicy(policy_function=replicas_wanted),
        )
    deployment = serve.deployment(
        serve.ingress()(Replica),
        name=NAME,
        ray_actor_options={"num_cpus": num_cpus, "num_gpus": num_gpus},
        # Of sockets, not of replies: each is an ongoing request for as long as it is open. Whether
        # there is room for a reply, the replica says itself; if the router knew, it would send
        # sessions to other replicas.
        max_ongoing_requests=config.max_connections,
        max_queued_requests=config.max_connections,
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1),
        health_check_period_s=PERIOD_S,
        graceful_shutdown_timeout_s=config.drain_s + _PARK_S,
        request_router_config=RequestRouterConfig(
            request_router_class=_ROUTER,
            request_router_kwargs={
                "num_virtual_nodes": _POINTS,
                "num_fallback_replicas": _FALLBACKS,
            },
        ),
        **options,
    )
    plan = Plan(None if model is None else os.fspath(model), config, load)
    return deployment.bind(plan)


def build(arguments: dict[str, Any]) -> serve.Application:
    """Return the application for a Ray Serve config file; its `args` are the arguments of `app`."""
    arguments = dict(arguments)
    replicas = arguments.get("replicas")
    if isinstance(replicas, list):
        arguments["replicas"] = tuple(replicas)
    return app(**arguments)


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


def _config(model: str | os.PathLike[str] | None, server: Any) -> ServerConfig:
    if isinstance(server, dict):
        unknown = sorted(server.keys() - _FIELDS)
        if unknown:
            raise InvalidArgument(
                f"ray_serve: `server` must have only settings of the server, but has {unknown}. "
                f"The settings are {', '.join(sorted(_FIELDS))}."
            )
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in server.items()
        }
        server = ServerConfig(**given)
    config = server or ServerConfig()
    if config.model_name == ServerConfig().model_name and model is not None:
        config = replace(config, model_name=Path(model).name.removesuffix(".gguf"))
    if not config.api_keys and (key := os.environ.get("SINKSTREAM_API_KEY")):
        config = replace(config, api_keys=(key,))
    if not config.store:
        config = replace(config, store=os.environ.get("SINKSTREAM_STORE", ""))
    if not config.snapshots:
        config = replace(config, snapshots=os.environ.get("SINKSTREAM_SNAPSHOTS", ""))
    check_config(config)
    return config
