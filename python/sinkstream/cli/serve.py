"""`sinkstream serve`: serves one model over an OpenAI-compatible API."""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sinkstream.cli import options
from sinkstream.cli.loading import import_loader, load_model
from sinkstream.cli.option_checks import with_model
from sinkstream.errors import InvalidArgument, SinkstreamError
from sinkstream.model import Model

if TYPE_CHECKING:
    from sinkstream.server.config import ServerConfig
    from sinkstream.server.serve import Alone

MISSING = (
    "serve: the packages of the extra `serve` must be installed, but {name} is not. "
    "`pip install 'sinkstream[serve]'` installs them."
)
MISSING_RAY = (
    "serve: Ray must be installed, but {name} is not. `pip install 'sinkstream[serve,cluster]'` "
    "installs it."
)


@options.takes_bundles
def serve(
    model: options.ModelArgument = None,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on. An address other than loopback needs a key."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.")] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            help="A key that clients must send. May be repeated. Best set in the "
            "environment, where other users cannot see it."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another name to accept in the Host header. May be repeated."),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="An origin whose web pages may use the server, such as "
            '"https://chat.example". May be repeated.'
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="The model's name for clients. Default: that of its file.")
    ] = None,
    strict_model: Annotated[
        bool, typer.Option("--strict-model", help="Refuse requests that name a different model.")
    ] = False,
    max_sequences: Annotated[
        int, typer.Option(help="Replies that are generated at the same time.")
    ] = 8,
    max_queue: Annotated[
        int, typer.Option(help="Replies that may wait; further ones get status 429.")
    ] = 64,
    max_tokens: Annotated[
        int,
        typer.Option(
            "--max-tokens", "-n", help="Maximum tokens of a chat reply if the request sets none."
        ),
    ] = 2048,
    advertise_context: Annotated[
        int,
        typer.Option(
            help="The context length that clients see; they may truncate their history to it."
        ),
    ] = 1 << 20,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Where conversations are kept: a folder, or postgresql://user@host/database for "
            'replicas on several hosts; "none" keeps none. Default: a folder for this model and '
            "window in ~/.local/state/sinkstream/conversations; XDG_STATE_HOME replaces "
            "~/.local/state.",
        ),
    ] = None,
    replica: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The name of this process among those that use the same store. Several "
            "processes on one host need one, except with PostgreSQL, where each has a default.",
        ),
    ] = "",
    snapshots: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="Where the states of conversations are saved: a folder, or s3://bucket/path. "
            "Needed with PostgreSQL. Default: a folder in that of the store.",
        ),
    ] = "",
    snapshot_tokens: Annotated[
        int,
        typer.Option(
            help="A conversation's state is saved each time the conversation has grown by this "
            "number of tokens; 0: sinks + window. After a crash, at most this number of tokens "
            "and the last turn are read again."
        ),
    ] = 0,
    session_ttl: Annotated[
        float,
        typer.Option(help="Seconds after which unused conversations are deleted; 0: never."),
    ] = 30 * 86400.0,
    store_max_gb: Annotated[
        float,
        typer.Option(
            help="Maximum size of the store in GB. Beyond it, the oldest saved states are deleted, "
            "then the oldest conversations; 0: no limit."
        ),
    ] = 20.0,
    park_s: Annotated[
        float, typer.Option(help="Seconds after which idle conversations leave memory.")
    ] = 300.0,
    thoughts: Annotated[
        str,
        typer.Option(
            metavar="drop|keep",
            help="What kept conversations do with the thoughts of earlier replies. Default: what "
            "the chat template does; most templates drop them.",
        ),
    ] = "",
    drain_s: Annotated[
        float, typer.Option(help="Seconds that running replies have to finish after SIGTERM.")
    ] = 30.0,
    watchdog_s: Annotated[
        float,
        typer.Option(
            help="Seconds without an engine step after which waiting clients get status 503."
        ),
    ] = 60.0,
    send_timeout_s: Annotated[
        float,
        typer.Option(help="Seconds after which a client that does not read is disconnected."),
    ] = 60.0,
    max_connections: Annotated[
        int, typer.Option(help="Open connections; requests on further ones get status 503.")
    ] = 2048,
    public_metrics: Annotated[
        bool, typer.Option("--public-metrics", help="Answer /metrics without a key.")
    ] = False,
    no_page: Annotated[bool, typer.Option("--no-page", help="Serve no web page at /.")] = False,
    ray: Annotated[
        bool,
        typer.Option(
            "--ray",
            help="Serve with Ray on this host, in --replicas processes.",
        ),
    ] = False,
    replicas: Annotated[
        int | None, typer.Option(help="Processes of --ray, each with the model. Default: 2.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Where the other servers of a shared store reach this one. Default: where it "
            "listens."
        ),
    ] = None,
    peer_secret: Annotated[
        str | None,
        typer.Option(
            help="A secret that the servers of a shared store send each other. Best set in the "
            "environment.",
        ),
    ] = None,
    model_option: options.ModelPath = None,
    *,
    loading: options.Loading,
) -> int:
    """Serve a model over an OpenAI-compatible API. Options can be set in the environment."""
    loading = with_model("serve", loading, model, model_option)
    import_loader()
    try:
        from sinkstream.server.config import ServerConfig
        from sinkstream.server.memory import keep_heap_small
        from sinkstream.server.serve import serve as run
    except ModuleNotFoundError as error:
        raise SinkstreamError(MISSING.format(name=error.name)) from None
    config = ServerConfig(
        host=host,
        port=port,
        api_keys=tuple(api_key or ()),
        allowed_hosts=tuple(allow_host or ()),
        cors_origins=tuple(cors_origin or ()),
        model_name=name or _name_of(loading.model or os.environ.get("SINKSTREAM_MODEL")),
        strict_model=strict_model,
        max_queue=max_queue,
        max_tokens=max_tokens,
        advertise_context=advertise_context,
        drain_s=drain_s,
        watchdog_s=watchdog_s,
        send_timeout_s=send_timeout_s,
        max_connections=max_connections,
        public_metrics=public_metrics,
        no_page=no_page,
        store=store or "",
        replica=replica,
        snapshots=snapshots,
        snapshot_tokens=snapshot_tokens,
        session_ttl=session_ttl,
        store_max_gb=store_max_gb,
        park_s=park_s,
        thoughts=thoughts,
        address=address or "",
        peer_secret=peer_secret or "",
    )
    _log_to_stderr()
    if ray:
        return _serve_with_ray(loading, config, 2 if replicas is None else replicas, max_sequences)
    if replicas is not None:
        raise InvalidArgument("serve: `replicas` must be given together with `ray`. Add --ray.")

    def load() -> Model:
        loaded = load_model(loading, max_sequences=max_sequences)
        # Warnings about requests quote them, and a log must not.
        warnings.simplefilter("ignore")
        return loaded

    keep_heap_small()
    run(config, load, _report, sharing=_sharing(config))
    return 0


def _sharing(config: ServerConfig) -> Alone | None:
    """Return what a server does differently that shares its store; None for any other."""
    if not config.is_shared:
        return None
    from sinkstream.cluster.serving import Sharing

    return Sharing()


def _serve_with_ray(
    loading: options.Loading, config: ServerConfig, replicas: int, max_sequences: int
) -> int:
    if replicas < 1:
        raise InvalidArgument(f"serve: `replicas` must be at least 1, but is {replicas}.")
    if config.port == 0:
        raise InvalidArgument("serve: `port` must be at least 1 with `ray`, but is 0.")
    if config.replica or config.address:
        raise InvalidArgument(
            "serve: `replica` and `address` must not be given with `ray`: each replica has its own."
        )
    try:
        from sinkstream.cluster.ray.deployment import app, run
    except ModuleNotFoundError as error:
        raise SinkstreamError(MISSING_RAY.format(name=error.name)) from None
    load = {**asdict(loading), "max_sequences": max_sequences}
    model = load.pop("model")
    application = app(model, replicas=replicas, num_cpus=0, server=config, **load)
    run(application, config, lambda address: print(f"Listening on {address}", flush=True))
    return 0


def _report(address: str, model: Model) -> None:
    capacity = model.capacity
    replies = "1 reply" if capacity.max_sequences == 1 else f"{capacity.max_sequences} replies"
    print(f"Listening on {address}", flush=True)
    print(
        f"{Path(model.path).name} with {capacity.sinks:,} sinks and a window of "
        f"{capacity.window:,} tokens, {replies} at a time. Ctrl-C ends the server.",
        file=sys.stderr,
    )


def _name_of(model: str | None) -> str:
    """Return a model's name for clients: a file's name without its extension."""
    path = Path(model or "smollm2")
    return re.sub(r"\.gguf$", "", path.name) or "sinkstream"


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("sinkstream.server")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
