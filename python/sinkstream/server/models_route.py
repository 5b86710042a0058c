"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from sinkstream.server.identity import no_model
from sinkstream.server.service import Service, ready_service


async def list_models(request: Request) -> dict[str, Any]:
    """List the model that is served."""
    service = ready_service(request)
    return {"object": "list", "data": [_entry(service)]}


async def get_model(request: Request, name: str) -> dict[str, Any]:
    """Describe a model."""
    service = ready_service(request)
    if name != service.config.model_name:
        raise no_model(service)
    return _entry(service)


def _entry(service: Service) -> dict[str, Any]:
    capacity, name = service.model.capacity, service.config.model_name
    return {
        "id": name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "sinkstream",
        "root": name,
        "parent": None,
        "max_model_len": service.config.advertise_context,
        "sinkstream": {"sinks": capacity.sinks, "window": capacity.window},
    }
