"""What a client reads about the server: health, version, metrics, models, slots and properties."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sinkstream import _build
from sinkstream.observe.activities import ACTIVITIES
from sinkstream.observe.metrics import (
    Sample,
    family_text,
    histogram_samples,
    prometheus_text,
)
from sinkstream.server.errors import unavailable
from sinkstream.server.request_log import request_log_of, short
from sinkstream.server.service import Service, ready_service

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def health(request: Request) -> dict[str, str]:
    """Say whether requests can be answered, and if not, why."""
    service = ready_service(request)
    if (trouble := service.turns.trouble) is not None:
        raise unavailable("store", trouble)
    if service.health.has_slow_store:
        rule = "server: the store of conversations does not answer; the engine works."
        raise unavailable("slow_store", rule)
    return {"status": "ok"}


async def version(request: Request) -> dict[str, str]:
    """Return the version of the package."""
    return {"version": _build.version()}


async def metrics(request: Request) -> Response:
    """Return all metrics."""
    service: Service = request.app.state.service
    own = _of_server(service, request_log_of(request.scope).tenant)
    model = service.loaded
    return Response(
        own if model is None else prometheus_text(model) + own, media_type=_METRICS_TYPE
    )


def _of_server(service: Service, tenant: str) -> str:
    responses: list[Sample] = [
        ("", {"route": route, "code": str(code)}, count)
        for (route, code), count in sorted(service.responses.items())
    ]
    gauges: dict[str, tuple[str, float]] = {
        "http_requests": ("HTTP requests in progress.", service.open_requests),
        "open_connections": ("Open connections.", len(service.connections)),
        "open_sockets": ("Open WebSockets.", service.open_sockets.held),
        "open_replies": ("Replies in progress.", len(service.replies)),
        "waiting_replies": ("Replies that wait for their turn.", service.seats.waiting),
        "request_body_bytes": (
            "Bodies and messages of sockets that have not been parsed yet, and requests that wait.",
            service.bodies.held + service.messages.held + service.waiting_requests.held,
        ),
        "whole_reply_bytes": (
            "Memory reserved for replies that are not streamed.",
            service.whole_replies.held,
        ),
        "event_loop_lag_seconds": (
            "Longest delay of the event loop within the last ten seconds.",
            service.health.lag_s,
        ),
        "engine_stalled": (
            "1 while the engine is stalled, otherwise 0.",
            int(service.health.is_stalled),
        ),
    }
    return "".join(
        (
            family_text(
                "sinkstream_http_responses_total",
                "counter",
                "Responses, by route and status.",
                responses,
            ),
            *_of_keys(service, service.weights if service.config.key_metrics else [tenant]),
            family_text(
                "sinkstream_window_tokens_total",
                "counter",
                "Tokens of the conversations of all replies: evicted for the reply, pinned to the "
                "window, or new but dropped before the reply began.",
                [
                    ("", {"kind": kind}, count)
                    for kind, count in sorted(service.window_tokens.items())
                ],
            ),
            *(
                family_text(f"sinkstream_{name}", "gauge", text, [("", {}, value)])
                for name, (text, value) in gauges.items()
            ),
            family_text(
                "sinkstream_waiting",
                "gauge",
                "Replies and requests that wait, by what they wait for.",
                [("", {"reason": reason}, count) for reason, count in _waiting(service).items()],
            ),
            family_text(
                "sinkstream_event_loop_delay_seconds",
                "histogram",
                "Delays of the event loop, measured ten times a second.",
                histogram_samples(service.health.delays.stats()),
            ),
        )
    )


def _of_keys(service: Service, tenants: Iterable[str]) -> Iterator[str]:
    """Yield what each of some keys does, so that one that floods the server is found."""
    tenants = [tenant for tenant in tenants if tenant in service.weights]
    if not tenants:
        return
    seats, keys = service.seats, [*map(short, tenants)]
    replies: list[Sample] = [
        ("", {"key": short(tenant), "state": state}, count)
        for tenant in tenants
        for state, count in (
            ("running", seats.shares.held_by(tenant)), ("waiting", seats.waiting_of(tenant))
        )
    ]  # fmt: skip
    yield family_text(
        "sinkstream_key_replies",
        "gauge",
        "Replies that are generated or wait for a seat, by the hash of their key.",
        replies,
    )
    responses: list[Sample] = [
        ("", {"key": key, "code": str(code)}, count)
        for (key, code), count in sorted(service.responses_of_keys.items())
        if key in keys
    ]
    tokens: list[Sample] = [
        ("", {"key": key, "kind": kind}, count)
        for (key, kind), count in sorted(service.tokens_of_keys.items())
        if key in keys
    ]
    for name, text, samples in (
        ("responses", "Responses, by the hash of the key, and by status.", responses),
        ("tokens", "Tokens that replies have read or generated, by the hash of the key.", tokens),
    ):
        yield family_text(f"sinkstream_key_{name}_total", "counter", text, samples)


def _waiting(service: Service) -> dict[str, int]:
    """Return how many replies and requests wait for each of what they can wait for."""
    seats, model = service.seats, service.loaded
    return {
        "encoding": ACTIVITIES.count("encoding"),
        "memory": 0 if model is None else model.stats()["waiting_for_memory"],
        "seat": seats.waiting - seats.waiting_for_share,
        "share": seats.waiting_for_share,
        "store": ACTIVITIES.count("store"),
    }


async def list_models(request: Request) -> dict[str, Any]:
    """List the model that is served."""
    service = ready_service(request)
    return {"object": "list", "data": [_model_entry(service)]}


async def get_model(request: Request, name: str) -> dict[str, Any]:
    """Describe a model."""
    service = ready_service(request)
    if name != service.config.model_name:
        raise service.no_model()
    return _model_entry(service)


def _model_entry(service: Service) -> dict[str, Any]:
    capacity, name = service.model.capacity, service.config.model_name
    return {
        "id": name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "sinkstream",
        "root": name,
        "parent": None,
        "max_model_len": service.max_model_len,
        "sinkstream": {
            "sinks": capacity.sinks,
            "window": capacity.window,
            "capacity": capacity.tokens,
            "trained_length": service.model.spec.trained_length,
            "pinned": service.config.pinned,
            "on_overflow": service.config.on_overflow,
            "sampling": asdict(service.host.defaults),
        },
    }


async def slots(request: Request) -> list[dict[str, Any]]:
    """Return one entry for each reply that can be generated at the same time.

    Replies have no fixed slot: the first entries are those in use.
    """
    service = ready_service(request)
    busy, capacity = len(service.replies), service.model.capacity
    return [
        {"id": index, "n_ctx": capacity.tokens, "is_processing": index < busy}
        for index in range(capacity.max_sequences)
    ]


async def props(request: Request) -> dict[str, Any]:
    """Return facts about the model and the server."""
    service = ready_service(request)
    capacity = service.model.capacity
    return {
        "default_generation_settings": {"n_ctx": capacity.tokens},
        "total_slots": capacity.max_sequences,
        "model_alias": service.config.model_name,
        "model_path": Path(service.model.path).name,
        "chat_template": service.texts.template or "",
        "modalities": {"vision": False, "audio": False},
        "build_info": f"sinkstream {_build.version()}",
    }
