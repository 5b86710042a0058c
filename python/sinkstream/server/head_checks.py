"""Checks the head of a request before it is routed or its body is read. Denies by default.

The same checks hold for HTTP and WebSockets, and for paths that do not exist.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable

from sinkstream.server.api_keys import tenant_of
from sinkstream.server.config import ServerConfig, is_loopback
from sinkstream.server.content_codings import codings_of
from sinkstream.server.errors import ApiError, too_large
from sinkstream.server.page_route import FILES
from sinkstream.server.request_log import Scope

METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "POST")
_HEALTH = ("/health", "/v1/health")
_METRICS = ("/metrics", "/v1/metrics")

RawHeaders = Iterable[tuple[bytes, bytes]]


class HeadChecks:
    """The rules of one server."""

    def __init__(self, config: ServerConfig, tenants: Iterable[str]) -> None:
        """Check by the settings; `tenants` are those whose keys are accepted, if there are any."""
        names = {"localhost", config.host.lower(), *map(str.lower, config.allowed_hosts)}
        self._hosts = frozenset(name.strip("[]") for name in names)
        self._takes_any_address = not config.is_loopback
        self._origins = frozenset(config.cors_origins)
        self._tenants = [tenant.encode() for tenant in tenants]
        page = () if config.no_page else tuple(FILES)
        self._public = frozenset(_HEALTH + (_METRICS if config.public_metrics else ()) + page)
        self._max_body_bytes = config.max_body_bytes

    def check(self, scope: Scope) -> str:
        """Return the tenant: a hash of the key, or "" if there are no keys. Refuse all others."""
        headers: list[tuple[bytes, bytes]] = list(scope["headers"])
        host = self._check_host(headers)
        self._check_origin(headers, host)
        method = scope.get("method", "GET")
        if method not in METHODS:
            raise _refusal(
                405,
                "method_not_allowed",
                f"headers: the method must be one of {', '.join(METHODS)}.",
            )
        if method == "OPTIONS" and self.allowed_origin(headers) is not None:
            return ""  # a preflight, which has no key; it is answered without routing
        tenant = self._tenant(headers)
        if tenant is None:
            path = scope.get("raw_path", b"").partition(b"?")[0].decode("latin-1")
            is_public = scope["type"] == "http" and method in ("GET", "HEAD")
            if not (is_public and path in self._public):
                raise ApiError(
                    401,
                    "authentication_error",
                    "invalid_api_key",
                    'headers: `Authorization` must be "Bearer" followed by a valid API key.',
                    headers=((b"www-authenticate", b"Bearer"),),
                )
        if method == "POST":
            self._check_content(headers)
        return tenant or ""

    def allowed_origin(self, headers: RawHeaders) -> str | None:
        """Return the request's origin if its pages may read the response."""
        origin = next((value for value in _all(headers, b"origin")), None)
        return origin if origin in self._origins else None

    def _check_host(self, headers: RawHeaders) -> str:
        hosts = _all(headers, b"host")
        name = _name_of(hosts[0]) if len(hosts) == 1 else None
        if name is None or not (name in self._hosts or self._is_address(name)):
            raise _refusal(
                403,
                "host_not_allowed",
                "headers: `Host` must be a name of this server. --allow-host adds one.",
            )
        return hosts[0].lower()

    def _is_address(self, name: str) -> bool:
        """Return whether a name is an IP address, which a malicious page cannot rebind."""
        if self._takes_any_address:
            try:
                ipaddress.ip_address(name)
            except ValueError:
                return False
            return True
        return is_loopback(name)

    def _check_origin(self, headers: RawHeaders, host: str) -> None:
        for origin in _all(headers, b"origin"):
            own = origin.lower() in (f"http://{host}", f"https://{host}")
            if not own and origin not in self._origins:
                raise _refusal(
                    403,
                    "origin_not_allowed",
                    "headers: `Origin` must be this server's or an allowed one. --cors-origin adds "
                    "one.",
                )

    def _tenant(self, headers: RawHeaders) -> str | None:
        if not self._tenants:
            return ""
        given = {
            value[7:].strip() if name == b"authorization" else value
            for name in (b"authorization", b"x-api-key")
            for value in _all(headers, name)
            if name != b"authorization" or value[:7].lower() == "bearer "
        }
        if len(given) != 1:
            return None
        tenant = tenant_of(given.pop())
        is_known = False
        for known in self._tenants:  # all of them, so that the time says nothing
            is_known |= hmac.compare_digest(known, tenant.encode())
        return tenant if is_known else None

    def _check_content(self, headers: RawHeaders) -> None:
        types = _all(headers, b"content-type")
        kind, _, rest = types[0].partition(";") if len(types) == 1 else ("", "", "")
        charset = rest.strip().lower().replace('"', "")
        is_json = kind.strip().lower() == "application/json" and charset in ("", "charset=utf-8")
        if not is_json:
            raise _refusal(
                415,
                "content_type",
                "headers: `Content-Type` must be application/json in UTF-8.",
            )
        content_codings(headers)  # refuses unknown ones before the body is read
        for length in _all(headers, b"content-length"):
            if int(length) > self._max_body_bytes:
                raise too_large(f"at most {self._max_body_bytes} bytes")


def content_codings(headers: RawHeaders) -> list[str]:
    """Return the codings of a body, in the order in which they are undone."""
    return codings_of(_all(headers, b"content-encoding"))


def _refusal(status: int, code: str, message: str) -> ApiError:
    kind = "permission_error" if status == 403 else "invalid_request_error"
    return ApiError(status, kind, code, message)


def _all(headers: RawHeaders, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key == name]


def _name_of(host: str) -> str | None:
    """Return a Host header without its port; None if it is malformed."""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            return None
        port = port[1:]
    else:
        name, _, port = host.partition(":")
    return name.lower().rstrip(".") if port == "" or (port.isascii() and port.isdigit()) else None
