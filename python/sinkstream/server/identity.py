"""Ids, names and times that responses carry."""

from __future__ import annotations

import secrets
import time
from typing import Any

from sinkstream.server.errors import ApiError
from sinkstream.server.service import Service


def head_of(service: Service, kind: str, prefix: str) -> dict[str, Any]:
    """Return the fields that every response and chunk of a request begins with."""
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": service.config.model_name,
        "system_fingerprint": service.fingerprint,
    }


def check_model(service: Service, name: str | None) -> None:
    """Refuse the name of a different model, if the server is strict.

    Raises:
        ApiError: There is no such model.
    """
    if service.config.strict_model and name not in (None, service.config.model_name):
        raise no_model(service)


def no_model(service: Service) -> ApiError:
    """Return the error for a model that is not served."""
    return ApiError(
        404,
        "invalid_request_error",
        "model_not_found",
        f'server: `model` must be "{service.config.model_name}".',
        "model",
    )
