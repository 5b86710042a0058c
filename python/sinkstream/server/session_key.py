"""The name that a client gives its conversation: a hint for choosing among equal ones."""

from __future__ import annotations

from starlette.datastructures import Headers

from sinkstream.server.errors import invalid

# Names that clients give their conversations, the most explicit one first.
_SESSION_HEADERS = (
    "x-session-id",
    "x-session-affinity",
    "session_id",
    "session-id",
    "x-claude-code-session-id",
    "x-openwebui-chat-id",
    "x-conversation-id",
)
_MAX_KEY = 512


def session_key(headers: Headers, cache_key: str | None) -> str | None:
    """Return the name in the headers, or else the body's `prompt_cache_key`.

    Raises:
        ApiError: It is too long.
    """
    given = next((headers[name] for name in _SESSION_HEADERS if name in headers), None)
    key = given or cache_key
    if key is not None and len(key) > _MAX_KEY:
        raise invalid(f"headers: a session's name must have at most {_MAX_KEY} characters.")
    return key or None
