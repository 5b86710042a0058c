"""`GET /slots` and `GET /props`: what llama.cpp's clients read of a server. Nothing can be set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.requests import Request

from sinkstream import _build
from sinkstream.server.service import Service, ready_service


async def slots(request: Request) -> list[dict[str, Any]]:
    """Return one entry for each reply that can be generated at the same time.

    Replies have no fixed slot: the first entries are those in use.
    """
    service = ready_service(request)
    busy, context = len(service.replies), _context(service)
    return [
        {"id": index, "n_ctx": context, "is_processing": index < busy}
        for index in range(service.model.capacity.max_sequences)
    ]


async def props(request: Request) -> dict[str, Any]:
    """Return facts about the model and the server."""
    service = ready_service(request)
    return {
        "default_generation_settings": {"n_ctx": _context(service)},
        "total_slots": service.model.capacity.max_sequences,
        "model_alias": service.config.model_name,
        "model_path": Path(service.model.path).name,
        "chat_template": service.texts.template or "",
        "modalities": {"vision": False, "audio": False},
        "build_info": f"sinkstream {_build.version()}",
    }


def _context(service: Service) -> int:
    """Return how many tokens the model sees; a conversation may be longer."""
    return service.model.capacity.sinks + service.model.capacity.window
