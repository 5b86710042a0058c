"""Writes http.md from the server's OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sinkstream.server.app import create_app
from sinkstream.server.config import ServerConfig
from sinkstream.server.service import Service

Schema = dict[str, Any]

ERRORS = {
    400: "the body or a field is not allowed; `param` names the field",
    401: "no key, or a wrong one",
    403: "the `Host` or the `Origin` is not allowed",
    404: "there is no such path, model, response or conversation",
    405: "the path has no such method",
    408: "the request did not arrive in time",
    409: "a turn of the conversation is running, or the conversation has moved to another server",
    413: "the body is too large",
    415: "the body is not JSON",
    429: "too many requests; `Retry-After` says when to try again",
    431: "the headers are too large",
    503: "the model is loading, the server is shutting down, too many connections are open, or the "
    "engine has stalled or failed",
}


def document() -> Schema:
    """Return the OpenAPI document."""
    return create_app(Service(ServerConfig())).openapi()


def page() -> str:
    """Return the page.

    Raises:
        ValueError: A path or a field has no description; the message names each.
    """
    paths = document()["paths"]
    if missing := list(undescribed(paths)):
        raise ValueError("\n".join(f"{name} has no description" for name in missing))
    return "\n".join(lines(paths))


def undescribed(paths: Schema) -> Iterator[str]:
    """Yield the paths and fields without a description."""
    for path, methods in paths.items():
        for method, operation in methods.items():
            name = f"{method.upper()} {path}"
            if not operation.get("description"):
                yield name
            for field, schema, _ in fields(body_of(operation)):
                if not schema.get("description"):
                    yield f"{name}: {field}"


def lines(paths: Schema) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# HTTP API\n"
    yield (
        "The API of [`sinkstream serve`](../guides/server.md). Every path is also served without "
        "`/v1`. The server itself describes the API at `/openapi.json`.\n"
    )
    for path, methods in paths.items():
        for method, operation in methods.items():
            yield from section(f"{method.upper()} {path}", operation)
    yield "## Errors\n"
    yield (
        'Every error has the form `{"error": {"message", "type", "param", "code"}}`. The header '
        "`x-should-retry` says whether to repeat the request.\n"
    )
    yield "| status | reason |\n|---|---|"
    yield from (f"| {status} | {reason} |" for status, reason in ERRORS.items())
    yield ""


def section(name: str, operation: Schema) -> Iterator[str]:
    """Yield the lines of one path and method."""
    yield f"## {name}\n"
    yield f"{' '.join(operation['description'].split())}\n"
    body = body_of(operation)
    if body:
        yield "| field | type | meaning |\n|---|---|---|"
        for field, schema, is_required in fields(body):
            needed = ", required" if is_required else ""
            yield f"| `{field}` | {kind_of(schema)}{needed} | {schema['description']} |"
        yield ""


def body_of(operation: Schema) -> Schema:
    """Return the schema of a request's body; an empty one if it has none."""
    content = operation.get("requestBody", {}).get("content", {})
    found: Schema = content.get("application/json", {}).get("schema", {})
    return found


def fields(body: Schema) -> Iterator[tuple[str, Schema, bool]]:
    """Yield the fields of a body, those of its parts too: name, schema, whether it is required."""
    required = body.get("required", [])
    for name, schema in sorted(
        body.get("properties", {}).items(), key=lambda pair: (pair[0] not in required, pair[0])
    ):
        yield name, schema, name in required
        for choice in (schema, *schema.get("anyOf", [])):
            for inner, inner_schema, _ in fields(choice):
                yield f"{name}.{inner}", inner_schema, False


def kind_of(schema: Schema) -> str:
    """Return the type of a field in words."""
    if "anyOf" in schema:
        kinds = [kind_of(one) for one in schema["anyOf"] if one.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    kind = schema.get("type", "any")
    if kind != "array":
        return str(kind)
    inner = kind_of(schema.get("items", {}))
    return "array of arrays" if inner.startswith("array") else f"array of {inner}s"
