"""`GET /slots` and `GET /props`: what llama.cpp's clients read from a server. Read-only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.requests import Request

from sinkstream import _build
from sinkstream.server.service import ready_service


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
