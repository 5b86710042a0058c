"""The settings of a server, checked before it starts."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, fields
from typing import Any

from sinkstream.errors import InvalidArgument

NO_STORE = "none"
THOUGHTS = ("drop", "keep")
_DATABASE = ("postgresql://", "postgres://")
_BUCKET = "s3://"
_SECRET = 16
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+")
# Lowest and highest value of each number.
_RANGES: dict[str, tuple[float, float]] = {
    "port": (0, 65535),
    "max_queue": (0, 1 << 20),
    "max_tokens": (1, 1 << 53),
    "max_body_bytes": (1 << 10, 1 << 32),
    "advertise_context": (1, 1 << 53),
    "keepalive_s": (0.01, 3600),
    "flush_s": (0, 10),
    "drain_s": (0, 1e6),
    "watchdog_s": (1, 1e6),
    "send_timeout_s": (0.1, 1e6),
    "max_connections": (1, 1 << 20),
    "body_timeout_s": (0.1, 3600),
    "session_ttl": (0, 1e10),
    "store_max_gb": (0, 1e6),
    "park_s": (0, 1e9),
    "snapshot_tokens": (0, 1 << 40),
}


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How to serve a model. `sinkstream serve --help` explains each setting."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free one."""
    api_keys: tuple[str, ...] = ()
    """If empty, no key is required; only a loopback address allows that."""
    allowed_hosts: tuple[str, ...] = ()
    """Names in the Host header, in addition to `host` and the loopback names."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may use the server, such as "https://chat.example"."""
    model_name: str = "sinkstream"
    """What clients see as the model's name."""
    strict_model: bool = False
    """Whether a different name is an error."""
    max_queue: int = 64
    """Replies that may wait, in addition to those that the model generates at the same time."""
    max_tokens: int = 2048
    """Tokens of a chat reply whose request sets no limit."""
    max_body_bytes: int = 32 << 20
    advertise_context: int = 1 << 20
    """`max_model_len` in the list of models. Clients may truncate their history to it."""
    keepalive_s: float = 10.0
    """Seconds between comments in a stream that has nothing to send."""
    flush_s: float = 0.025
    """Seconds between two writes of a stream: the tokens of that time are sent together."""
    drain_s: float = 30.0
    """Seconds that running replies have after SIGTERM."""
    watchdog_s: float = 60.0
    """If no engine step ends for this long while replies are running, the server is unhealthy."""
    body_timeout_s: float = 60.0
    """Seconds in which a request's body must arrive."""
    send_timeout_s: float = 60.0
    """Seconds in which a client must read something; otherwise its connection is cut."""
    max_connections: int = 2048
    """HTTP and WebSocket connections; requests on further ones get 503."""
    public_metrics: bool = False
    """Whether /metrics needs no key."""
    no_page: bool = False
    """Whether there is no web page at /."""
    store: str = ""
    """The folder of the conversations, or `postgresql://…`; "none" keeps none, "" is the model's
    own folder."""
    replica: str = ""
    """The name of this process among those that use the store; "" if it is the only one."""
    snapshots: str = ""
    """A folder, or `s3://…`, for snapshots of conversations; "" is one inside the store's."""
    snapshot_tokens: int = 0
    """Tokens by which a conversation grows until its next snapshot; 0: sinks + window."""
    session_ttl: float = 30 * 86400.0
    """Seconds after which a conversation that is not used is deleted; 0: never."""
    store_max_gb: float = 20.0
    """The size limit of the store, in units of 10^9 bytes; 0: no limit."""
    park_s: float = 300.0
    """Idle conversations leave memory after this time."""
    thoughts: str = ""
    """"keep" or "drop" the thoughts of earlier replies in kept conversations; "" is what the chat
    template does."""
    address: str = ""
    """Where servers that share the store reach this one; "" is `host` and `port`."""
    peer_secret: str = ""
    """A secret shared by those servers; without it, they do not contact each other."""

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can connect."""
        return is_loopback(self.host)

    @property
    def is_in_database(self) -> bool:
        """Return whether `store` is the address of a database, not a folder."""
        return self.store.startswith(_DATABASE)

    @property
    def is_shared(self) -> bool:
        """Return whether the store is one that `sinkstream.cluster` opens."""
        has_peers = bool(self.replica or self.peer_secret)
        return has_peers or self.is_in_database or self.snapshots.startswith(_BUCKET)


def check_config(config: ServerConfig) -> None:
    """Check the settings.

    Raises:
        InvalidArgument: A value is not allowed; `param` is its name.
    """
    _check_types(config)
    for name, (low, high) in _RANGES.items():
        value = getattr(config, name)
        if not low <= value <= high:  # NaN is in no range
            raise _refusal(name, f"must be in [{low:g}, {high:g}], but is {value:g}.")
    if not config.api_keys and not config.is_loopback:
        raise _refusal(
            "api_key",
            f'must be set, because `host` is "{config.host}", which is not a loopback address. '
            "Set SINKSTREAM_API_KEY.",
        )
    for key in config.api_keys:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise _refusal("api_key", "must be printable ASCII without spaces.")
    _check_peers(config)
    if config.thoughts not in ("", *THOUGHTS):
        raise _refusal("thoughts", f'must be "drop" or "keep", but is {config.thoughts[:40]!r}.')
    for origin in config.cors_origins:
        if not _ORIGIN.fullmatch(origin):
            raise _refusal(
                "cors_origin",
                f'must be an origin such as "https://chat.example", but is {origin[:80]!r}.',
            )


def _check_types(config: ServerConfig) -> None:
    """Refuse values of the wrong type: a Ray Serve config file may hold whatever YAML reads."""
    for one in fields(config):
        value, default = getattr(config, one.name), one.default
        if isinstance(default, tuple):
            is_list = isinstance(value, list | tuple)
            is_right = is_list and all(isinstance(part, str) for part in value)
            rule = "a list of strings"
        elif isinstance(default, bool):
            is_right, rule = isinstance(value, bool), "true or false"
        elif isinstance(default, str):
            is_right, rule = isinstance(value, str), "a string"
        else:
            is_right = isinstance(value, int | float) and not isinstance(value, bool)
            rule = "a number"
        if not is_right:
            raise _refusal(one.name, f"must be {rule}, but is {_kind_of(value)}.")


def _kind_of(value: Any) -> str:
    """Return the type of a value, which may be a secret itself."""
    kind = type(value).__name__
    if not isinstance(value, list | tuple):
        return f"of type {kind}"
    return f"a {kind} of {' and '.join(sorted({type(part).__name__ for part in value}))}"


def _check_peers(config: ServerConfig) -> None:
    secret = config.peer_secret
    if secret and (len(secret) < _SECRET or not secret.isascii() or not secret.isprintable()):
        raise _refusal("peer_secret", f"must be at least {_SECRET} characters of printable ASCII.")
    has_name = config.replica or config.is_in_database  # which has a default
    if secret and not has_name:
        raise _refusal("replica", "must be given with `peer_secret`, but is not.")
    if config.address and not _ORIGIN.fullmatch(config.address):
        raise _refusal(
            "address",
            f'must be an address such as "http://10.0.0.5:8000", but is {config.address[:80]!r}.',
        )
    if secret and not config.address and config.host in ("0.0.0.0", "::"):
        raise _refusal("address", f'must be given, because `host` is "{config.host}".')


def _refusal(name: str, rule: str) -> InvalidArgument:
    return InvalidArgument(f"serve: `{name}` {rule}", param=name)


def is_loopback(host: str) -> bool:
    """Return whether a name or an address is this machine's own."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
