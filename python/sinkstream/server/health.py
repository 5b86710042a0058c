"""`GET /health` and `GET /version`. They read only counters, so that they always answer at once."""

from __future__ import annotations

from starlette.requests import Request

from sinkstream import _build
from sinkstream.server.service import ready_service


async def health(request: Request) -> dict[str, str]:
    """Say whether requests can be answered."""
    ready_service(request)
    return {"status": "ok"}


async def version(request: Request) -> dict[str, str]:
    """Return the version of the package."""
    return {"version": _build.version()}
