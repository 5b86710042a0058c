"""`GET /` and the files of the web page: fixed bytes under a strict Content-Security-Policy.

They contain nothing about a user or a model, so they need no key; the page's requests do.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from hashlib import blake2b
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "page"
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
FILES = {
    "/" if path.suffix == ".html" else f"/page/{path.name}": (
        path.name,
        f"{_KINDS[path.suffix]}; charset=utf-8",
    )
    for path in sorted(FOLDER.iterdir())
    if path.suffix in _KINDS
}
"""Paths, the files there and their types."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # A browser asks each time, and gets 304: a new version of the server brings its own page.
    "cache-control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Add the routes of the page."""
    for path, (name, kind) in FILES.items():
        respond = _sender((FOLDER / name).read_bytes(), kind)
        app.add_api_route(
            path, respond, methods=["GET", "HEAD"], response_model=None, include_in_schema=False
        )


def _sender(body: bytes, kind: str) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """Return a route that sends fixed bytes."""
    tag = f'"{blake2b(body, digest_size=12).hexdigest()}"'
    headers = {**_HEADERS, "etag": tag}

    async def send(request: Request) -> Response:
        known = request.headers.get("if-none-match", "")
        if tag in (given.strip().removeprefix("W/") for given in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(body, headers={**headers, "content-type": kind})

    return send
