"""Puts the routes together, with and without `/v1`, inside the middleware."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from sinkstream import _build
from sinkstream.server import (
    chat_route,
    completions_route,
    page_route,
    sessions_route,
    status_routes,
    tokenize_route,
)
from sinkstream.server.errors import ApiError, from_exception, internal
from sinkstream.server.middleware import App, Middleware
from sinkstream.server.request_bodies import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TemplateRequest,
    TitleRequest,
    TokenizeRequest,
    schema_of,
)
from sinkstream.server.request_log import request_log_of, shown_path
from sinkstream.server.responses import route as responses
from sinkstream.server.responses.response_bodies import ReadRequest, ResponseRequest
from sinkstream.server.responses.socket_route import serve_socket
from sinkstream.server.service import Service

_CODES = {404: "not_found", 405: "method_not_allowed"}


def create_app(service: Service, around: Callable[[App], App] = lambda app: app) -> Middleware:
    """Return the ASGI app of a server; `around` is put between it and the routes."""
    app = FastAPI(
        title="sinkstream",
        version=_build.version(),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    app.add_exception_handler(HTTPException, _not_routed)
    app.add_exception_handler(ApiError, _failed)
    app.add_exception_handler(Exception, _failed)
    router = _routes()
    app.include_router(router, prefix="/v1")
    app.include_router(router, include_in_schema=False)
    if not service.config.no_page:
        page_route.add_page(app)
    return Middleware(around(app), service, app.openapi)


def _routes() -> APIRouter:
    router = APIRouter()
    plain: dict[str, Any] = {"response_model": None}
    for path, function in (
        ("/health", status_routes.health),
        ("/version", status_routes.version),
        ("/metrics", status_routes.metrics),
        ("/models", status_routes.list_models),
        ("/models/{name:path}", status_routes.get_model),
        ("/responses/{name}", responses.get_response),
        ("/responses/{name}/input_items", responses.input_items),
        ("/sessions", sessions_route.list_sessions),
        ("/sessions/{name}", sessions_route.get_session),
        ("/sessions/{name}/file", sessions_route.get_file),
        ("/sessions/{name}/turns", sessions_route.list_turns),
        ("/slots", status_routes.slots),
        ("/props", status_routes.props),
        ("/tokenizer_info", tokenize_route.tokenizer_info),
    ):
        kind = PlainTextResponse if path == "/metrics" else JSONResponse
        router.add_api_route(path, function, methods=["GET"], response_class=kind, **plain)
        router.add_api_route(path, function, methods=["HEAD"], include_in_schema=False, **plain)
    for path, function, body in (
        ("/chat/completions", chat_route.chat, ChatRequest),
        ("/chat/completions/input_tokens", tokenize_route.count_tokens, TemplateRequest),
        ("/completions", completions_route.completions, CompletionRequest),
        ("/responses", responses.create_response, ResponseRequest),
        ("/responses/input_tokens", responses.input_tokens, ReadRequest),
        ("/sessions/{name}", sessions_route.rename_session, TitleRequest),
        ("/tokenize", tokenize_route.tokenize, TokenizeRequest),
        ("/detokenize", tokenize_route.detokenize, DetokenizeRequest),
        ("/apply-template", tokenize_route.apply_template, TemplateRequest),
    ):
        router.add_api_route(path, function, methods=["POST"], openapi_extra=_schema(body), **plain)
    router.add_websocket_route("/responses", serve_socket)
    router.add_api_route(
        "/responses/{name}/cancel", responses.cancel_response, methods=["POST"], **plain
    )
    for path, delete in (
        ("/responses/{name}", responses.delete_response),
        ("/sessions/{name}", sessions_route.delete_session),
    ):
        router.add_api_route(path, delete, methods=["DELETE"], **plain)
    return router


def _schema(body: type[BaseModel]) -> dict[str, Any]:
    """Describe a body that the route itself parses."""
    schema = schema_of(body)
    content = {"application/json": {"schema": _inlined(schema, schema.pop("$defs", {}))}}
    return {"requestBody": {"required": True, "content": content}}


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """Return a schema with its definitions inlined, because it is not the root of the document."""
    if isinstance(schema, list):
        return [_inlined(part, definitions) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(part, definitions) for name, part in schema.items()}


async def _failed(request: Request, error: Exception) -> Response:
    """Respond to a request that fails before its response has begun."""
    known = from_exception(error) or internal()
    request_log_of(request.scope).finish = known.code
    response = Response(known.as_json(), known.status, media_type="application/json")
    response.raw_headers.extend(known.headers)
    return response


async def _not_routed(request: Request, error: Exception) -> Response:
    """Respond to an unknown path or method with an error in the usual form."""
    assert isinstance(error, HTTPException)
    known = ApiError(
        error.status_code,
        "invalid_request_error",
        _CODES.get(error.status_code, "invalid_argument"),
        "server: the method is not allowed for this path."
        if error.status_code == 405
        else f"server: there is no path {shown_path(request.scope)}.",
    )
    headers = {"content-type": "application/json", **(error.headers or {})}
    return Response(known.as_json(), error.status_code, headers)
