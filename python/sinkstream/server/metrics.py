"""`GET /metrics`: the model's metrics, and those of the server, for Prometheus."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from sinkstream.observe.metrics import (
    Sample,
    family_text,
    histogram_samples,
    prometheus_text,
)
from sinkstream.server.service import Service

_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def metrics(request: Request) -> Response:
    """Return all metrics."""
    service: Service = request.app.state.service
    own = _of_server(service)
    model = service.loaded
    return Response(own if model is None else prometheus_text(model) + own, media_type=_TYPE)


def _of_server(service: Service) -> str:
    responses: list[Sample] = [
        ("", {"route": route, "code": str(code)}, count)
        for (route, code), count in sorted(service.responses.items())
    ]
    gauges: dict[str, tuple[str, float]] = {
        "http_requests": ("HTTP requests in progress.", service.open_requests),
        "open_connections": ("Open connections.", len(service.connections)),
        "open_sockets": ("Open WebSockets.", service.open_sockets),
        "open_replies": ("Replies in progress.", len(service.replies)),
        "waiting_replies": ("Replies that wait for their turn.", service.waiting),
        "request_body_bytes": (
            "Bodies and messages of sockets that have not been parsed yet, and requests that wait "
            "on sockets.",
            service.bodies.held + service.messages.held + service.waiting_requests.held,
        ),
        "whole_reply_bytes": (
            "Memory reserved for replies that are not streamed.",
            service.whole_replies.held,
        ),
        "event_loop_lag_seconds": (
            "Longest delay of the event loop within the last ten seconds.",
            service.pulse.lag_s,
        ),
        "engine_stalled": (
            "1 while the engine is stalled, otherwise 0.",
            int(service.pulse.is_stalled),
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
            *(
                family_text(f"sinkstream_{name}", "gauge", text, [("", {}, value)])
                for name, (text, value) in gauges.items()
            ),
            family_text(
                "sinkstream_event_loop_delay_seconds",
                "histogram",
                "Delays of the event loop, measured ten times a second.",
                histogram_samples(service.pulse.delays.stats()),
            ),
        )
    )
