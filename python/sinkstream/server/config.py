"""The settings of a server, each declared once, and checked before it starts.

The options of `sinkstream serve` are derived from them. Imports none of the packages that serve.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_type_hints

from sinkstream.errors import InvalidArgument
from sinkstream.request.value_kinds import Number

NO_STORE = "none"
THOUGHTS = ("drop", "keep")
TOOLS = ("generic", "ignore", "native", "refuse")
OVERFLOW = ("evict", "refuse")
LOG_LEVELS = ("debug", "error", "info", "warning")
LOG_FORMATS = ("json", "text")
SYNCS = ("full", "normal")
DATABASE = ("postgresql://", "postgres://")
"""What a store in a database begins with."""
BUCKET = "s3://"
"""What snapshots in an object store begin with."""
LISTEN, REQUESTS, CONVERSATIONS = "Address and access", "Requests", "Conversations"
LIMITS, CLUSTER, LOG = "Limits", "Several servers", "Log and metrics"
_SECRET = 16
_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+")


@dataclass(frozen=True, slots=True)
class Setting:
    """What a setting declares in addition to its type and default."""

    group: str
    """The heading of `sinkstream serve --help` that it is below."""
    meaning: str
    """What it does; of an option, what `sinkstream serve --help` says."""
    range: Number | None = None
    """Of a number."""
    option: str = ""
    """The name of the option, if it is not that of the setting."""
    letter: str = ""
    """A short form of the option, such as "-n"."""
    metavar: str | None = None
    """What `--help` shows for the option's value, if it is not the name of a type."""
    is_option: bool = True
    """Whether the command line has such an option."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """How to serve a model. An empty string selects the default that the meaning names."""

    host: Annotated[
        str,
        Setting(LISTEN, "Address to listen on. An address other than loopback needs a key."),
    ] = "127.0.0.1"
    port: Annotated[int, Setting(LISTEN, "Port; 0 takes a free one.", Number(0, 65535))] = 8000
    api_keys: Annotated[
        tuple[str, ...],
        Setting(
            LISTEN,
            "A key that clients must send. May be repeated. Best set in the environment, where "
            "other users cannot see it.",
            option="api_key",
        ),
    ] = ()
    api_key_file: Annotated[
        str,
        Setting(
            LISTEN,
            "A file with further keys, one per line. A key may be followed by a space and its "
            "weight: a key of weight 2 gets twice as much of a busy server as one of weight 1.",
            metavar="FILE",
        ),
    ] = ""
    allowed_hosts: Annotated[
        tuple[str, ...],
        Setting(
            LISTEN,
            "Another name to accept in the Host header. May be repeated.",
            option="allow_host",
        ),
    ] = ()
    cors_origins: Annotated[
        tuple[str, ...],
        Setting(
            LISTEN,
            "An origin whose web pages may use the server, such as "
            '"https://chat.example". May be repeated.',
            option="cors_origin",
        ),
    ] = ()
    model_name: Annotated[
        str,
        Setting(LISTEN, "What clients see as the model's name.", is_option=False),
    ] = "sinkstream"
    strict_model: Annotated[
        bool, Setting(REQUESTS, "Refuse requests that name a different model.")
    ] = False
    max_queue: Annotated[
        int,
        Setting(LIMITS, "Replies that may wait; further ones get status 429.", Number(0, 1 << 20)),
    ] = 64
    max_tokens: Annotated[
        int,
        Setting(
            REQUESTS,
            "Maximum tokens of a chat reply if the request sets none.",
            Number(1, 1 << 53),
            letter="-n",
        ),
    ] = 2048
    advertise_context: Annotated[
        int,
        Setting(
            REQUESTS,
            "The context length that clients see; they may truncate their history to it. 0: "
            "1,048,576, or with --on-overflow refuse what the model really sees.",
            Number(0, 1 << 53),
        ),
    ] = 0
    store: Annotated[
        str,
        Setting(
            CONVERSATIONS,
            "Where conversations are kept: a folder, or postgresql://user@host/database for "
            'replicas on several hosts; "none" keeps none. Default: a folder for this model and '
            "window in ~/.local/state/sinkstream/conversations; XDG_STATE_HOME replaces "
            "~/.local/state. Without --window, the server takes the window of what is kept there.",
            metavar="FOLDER",
        ),
    ] = ""
    replica: Annotated[
        str,
        Setting(
            CLUSTER,
            "The name of this process among those that use the same store. Several "
            "processes on one host need one, except with PostgreSQL, where each has a default.",
            metavar="NAME",
        ),
    ] = ""
    snapshots: Annotated[
        str,
        Setting(
            CLUSTER,
            "Where the states of conversations are saved: a folder, or s3://bucket/path. "
            "Needed with PostgreSQL. Default: a folder in that of the store.",
            metavar="FOLDER",
        ),
    ] = ""
    snapshot_tokens: Annotated[
        int,
        Setting(
            CONVERSATIONS,
            "A conversation's state is saved each time the conversation has grown by this "
            "number of tokens; 0: sinks + window. After a crash, at most this number of tokens "
            "and the last turn are read again.",
            Number(0, 1 << 40),
        ),
    ] = 0
    session_ttl: Annotated[
        float,
        Setting(
            CONVERSATIONS,
            "Seconds after which unused conversations are deleted; 0: never. Time in which no "
            "server uses the store does not count.",
            Number(0, 1e10),
        ),
    ] = 90 * 86400.0
    single_turn_ttl: Annotated[
        float,
        Setting(
            CONVERSATIONS,
            "The same for a chat completion that was never continued, and has no session's name, "
            "such as a title that a client asked for.",
            Number(0, 1e10),
        ),
    ] = 86400.0
    store_max_gb: Annotated[
        float,
        Setting(
            CONVERSATIONS,
            "Maximum size of the store in GB; 0: no limit. Beyond it, the key that uses the most "
            "space loses its oldest saved states, then its oldest conversations.",
            Number(0, 1e6),
        ),
    ] = 20.0
    store_sync: Annotated[
        str,
        Setting(
            CONVERSATIONS,
            'What a power cut may lose. "normal": the last turns; "full": nothing that was '
            "answered, but each turn waits for the disk. With PostgreSQL, its own settings decide.",
            metavar="full|normal",
        ),
    ] = "normal"
    park_s: Annotated[
        float,
        Setting(
            CONVERSATIONS, "Seconds after which idle conversations leave memory.", Number(0, 1e9)
        ),
    ] = 300.0
    sinks: Annotated[
        str,
        Setting(
            REQUESTS,
            'What of each conversation stays in the window for good: "system", its system prompt '
            "and tools, or a number of tokens at its start. They may take half of what the model "
            "sees.",
            metavar="system|INTEGER",
        ),
    ] = "system"
    on_overflow: Annotated[
        str,
        Setting(
            REQUESTS,
            "What happens to a prompt that is longer than sinks and window together: its oldest "
            "tokens leave the window (evict), with a warning if they are new, or the request is "
            "refused (refuse).",
            metavar="evict|refuse",
        ),
    ] = "evict"
    thoughts: Annotated[
        str,
        Setting(
            REQUESTS,
            "What kept conversations do with the thoughts of earlier replies. Default: what "
            "the chat template does; most templates drop them.",
            metavar="drop|keep",
        ),
    ] = ""
    tools: Annotated[
        str,
        Setting(
            REQUESTS,
            "How models are told of the tools in requests. native: in the chat template's own "
            "form, or in the generic form if it has none. generic: always in the generic form. "
            "ignore: not at all. refuse: such requests get status 400.",
            metavar="FORM",
        ),
    ] = "native"
    continue_final_message: Annotated[
        bool,
        Setting(
            REQUESTS,
            "Continue the last message of a conversation if it is the assistant's, unless the "
            "request says otherwise.",
        ),
    ] = False
    max_reply_s: Annotated[
        float,
        Setting(
            LIMITS,
            "Seconds after which a request ends like one with this `timeout_s`; 0: no limit.",
            Number(0, 1e9),
        ),
    ] = 0.0
    drain_s: Annotated[
        float,
        Setting(
            LIMITS, "Seconds that running replies have to finish after SIGTERM.", Number(0, 1e6)
        ),
    ] = 30.0
    watchdog_s: Annotated[
        float,
        Setting(
            LIMITS,
            "Seconds without an engine step after which waiting clients get status 503.",
            Number(1, 1e6),
        ),
    ] = 60.0
    send_timeout_s: Annotated[
        float,
        Setting(
            LIMITS,
            "Seconds after which a client that does not read is disconnected.",
            Number(0.1, 1e6),
        ),
    ] = 60.0
    max_connections: Annotated[
        int,
        Setting(
            LIMITS, "Open connections; requests on further ones get status 503.", Number(1, 1 << 20)
        ),
    ] = 2048
    log_level: Annotated[
        str,
        Setting(
            LOG,
            "The lowest level that is logged: debug, which includes health checks, info, warning "
            "or error.",
            metavar="LEVEL",
        ),
    ] = "info"
    log_format: Annotated[
        str,
        Setting(LOG, "How each line of the log is written.", metavar="|".join(LOG_FORMATS)),
    ] = "text"
    public_metrics: Annotated[bool, Setting(LOG, "Answer /metrics without a key.")] = False
    key_metrics: Annotated[
        bool,
        Setting(
            LOG,
            "Show in /metrics what each key does. Otherwise, a key sees only what it does itself.",
        ),
    ] = False
    no_page: Annotated[bool, Setting(LISTEN, "Serve no web page at /.")] = False
    address: Annotated[
        str,
        Setting(
            CLUSTER,
            "Where the other servers of a shared store reach this one. Default: where it listens.",
        ),
    ] = ""
    peer_secret: Annotated[
        str,
        Setting(
            CLUSTER,
            "A secret that the servers of a shared store send each other. Best set in the "
            "environment.",
        ),
    ] = ""
    max_body_bytes: Annotated[
        int,
        Setting(LIMITS, "Bytes of a request's body.", Number(1 << 10, 1 << 32), is_option=False),
    ] = 32 << 20
    body_timeout_s: Annotated[
        float,
        Setting(
            LIMITS,
            "Seconds in which a request's body must arrive.",
            Number(0.1, 3600),
            is_option=False,
        ),
    ] = 60.0
    keepalive_s: Annotated[
        float,
        Setting(
            LIMITS,
            "Seconds between comments in a stream that has nothing to send.",
            Number(0.01, 3600),
            is_option=False,
        ),
    ] = 10.0
    flush_s: Annotated[
        float,
        Setting(
            LIMITS,
            "Seconds between two writes of a stream: the tokens of that time are sent together.",
            Number(0, 10),
            is_option=False,
        ),
    ] = 0.025

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can connect."""
        return is_loopback(self.host)

    @property
    def pinned(self) -> int | Literal["system"]:
        """Return `sinks` as requests have it.

        Raises:
            InvalidArgument: It is neither "system" nor a number.
        """
        if self.sinks == "system":
            return "system"
        if not (self.sinks.isascii() and self.sinks.isdigit() and len(self.sinks) < 10):
            raise _refusal("sinks", f'must be "system" or an integer, but is {self.sinks[:40]!r}.')
        return int(self.sinks)

    @property
    def refuses_overflow(self) -> bool:
        """Return whether prompts must fit into what the model sees."""
        return self.on_overflow == "refuse"

    @property
    def is_in_database(self) -> bool:
        """Return whether `store` is the address of a database, not a folder."""
        return self.store.startswith(DATABASE)

    @property
    def is_shared(self) -> bool:
        """Return whether the store is one that `sinkstream.cluster` opens."""
        has_peers = bool(self.replica or self.peer_secret)
        return has_peers or self.is_in_database or self.snapshots.startswith(BUCKET)


SETTINGS: dict[str, Setting] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(ServerConfig, include_extras=True).items()
}


def check_config(config: ServerConfig) -> None:
    """Check the settings.

    Raises:
        InvalidArgument: A value is not allowed; `param` is its name.
    """
    _check_types(config)
    for name, setting in SETTINGS.items():
        value = getattr(config, name)
        if setting.range is not None and value not in setting.range:
            raise _refusal(name, f"must be in {setting.range}, but is {value:g}.")
    if not (config.api_keys or config.api_key_file) and not config.is_loopback:
        raise _refusal(
            "api_key",
            f'must be set, because `host` is "{config.host}", which is not a loopback address. '
            "Set SINKSTREAM_API_KEY, or give --api-key-file.",
        )
    for key in config.api_keys:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise _refusal("api_key", "must be printable ASCII without spaces.")
    _check_peers(config)
    _ = config.pinned  # is checked
    thoughts = {"thoughts": THOUGHTS} if config.thoughts else {}
    for name, (one, other) in {"on_overflow": OVERFLOW, "store_sync": SYNCS, **thoughts}.items():
        value = getattr(config, name)
        if value not in (one, other):
            raise _refusal(name, f'must be "{one}" or "{other}", but is {value[:40]!r}.')
    if config.tools not in TOOLS:
        raise _refusal("tools", f"must be one of {', '.join(TOOLS)}, but is {config.tools[:40]!r}.")
    check_log(config)
    for origin in config.cors_origins:
        if not _ORIGIN.fullmatch(origin):
            raise _refusal(
                "cors_origin",
                f'must be an origin such as "https://chat.example", but is {origin[:80]!r}.',
            )


def check_log(config: ServerConfig) -> None:
    """Check how the log is to be written; `check_config` does, too."""
    for name, known in (("log_level", LOG_LEVELS), ("log_format", LOG_FORMATS)):
        value = getattr(config, name)
        if value not in known:
            raise _refusal(name, f"must be one of {', '.join(known)}, but is {value[:40]!r}.")


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
