"""`sinkstream serve`: serves one model over an OpenAI-compatible API."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import decimal

from sinkstream.cli import common_options
from sinkstream.cli.common_options import import_loader, load_model, with_model
from sinkstream.errors import InvalidArgument, SinkstreamError, how_to_install
from sinkstream.model import Model
from sinkstream.server.config import (
    CLUSTER,
    LIMITS,
    LISTEN,
    REQUESTS,
    SETTINGS,
    ServerConfig,
    check_log,
)

if TYPE_CHECKING:
    from sinkstream.server.serve import Alone

# The command's own options that `--help` lists among the settings, and what each of them follows.
_AFTER = {
    "name": "cors_origin",
    "max_sequences": "strict_model",
    "speculation": "continue_final_message",
    "ray": "no_page",
    "replicas": "ray",
}


SERVED = 8
"""Replies at the same time, unless --max-sequences says otherwise."""


def takes_settings(command: Callable[..., int]) -> Callable[..., int]:
    """Replace a command's parameter `config` with an option for each setting that has one."""
    options = {
        setting.option or name: name for name, setting in SETTINGS.items() if setting.is_option
    }
    parameters: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        if name == "config":
            parameters |= {option: _option(option, field) for option, field in options.items()}
        else:
            parameters[name] = parameter
    names = [name for name in parameters if name not in _AFTER]
    for name, former in _AFTER.items():
        names.insert(names.index(former) + 1, name)

    @functools.wraps(command)
    def run(**given: Any) -> int:
        chosen = {field: given.pop(option, None) for option, field in options.items()}
        known: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in chosen.items()
            if value is not None
        }
        return command(config=ServerConfig(**known), **given)

    run.__signature__ = inspect.Signature([parameters[name] for name in names])  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameters[name].annotation for name in names}
    return run


def _option(option: str, name: str) -> inspect.Parameter:
    """Return the parameter for a setting. One that is not given leaves the setting's default."""
    setting, default = SETTINGS[name], getattr(ServerConfig(), name)
    kind: Any = type(default)
    # Named, since a flag would otherwise have a --no-flag.
    flags = ["--" + option.replace("_", "-"), *([setting.letter] if setting.letter else [])]
    if kind is tuple:
        kind, default = list[str] | None, None
    elif default == "":
        kind, default = str | None, None
    info = typer.Option(
        *flags, metavar=setting.metavar, help=setting.meaning, rich_help_panel=setting.group
    )
    return inspect.Parameter(
        option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


@common_options.takes_bundles
@takes_settings
def serve(
    model: common_options.ModelArgument = None,
    *,
    config: ServerConfig,
    name: Annotated[
        str | None,
        typer.Option(
            help="The model's name for clients. Default: that of its file.",
            rich_help_panel=LISTEN,
        ),
    ] = None,
    max_sequences: Annotated[
        int,
        typer.Option(help="Replies that are generated at the same time.", rich_help_panel=LIMITS),
    ] = SERVED,
    speculation: Annotated[
        int | None,
        typer.Option(
            help="Guessed tokens that a step verifies for a reply, of which a request can ask for "
            "fewer; 0: none. They change no token. Default: as many as make replies faster.",
            rich_help_panel=REQUESTS,
        ),
    ] = None,
    ray: Annotated[
        bool,
        typer.Option(
            "--ray",
            help="Serve with Ray on this host, in --replicas processes.",
            rich_help_panel=CLUSTER,
        ),
    ] = False,
    replicas: Annotated[
        int | None,
        typer.Option(
            help="Processes of --ray, each with the model. Default: 2.", rich_help_panel=CLUSTER
        ),
    ] = None,
    model_option: common_options.ModelPath = None,
    loading: common_options.Loading,
) -> int:
    """Serve a model over an OpenAI-compatible API. Options can be set in the environment."""
    loading = with_model("serve", loading, model, model_option)
    import_loader()
    try:
        from sinkstream.server.process_settings import keep_heap_small
        from sinkstream.server.request_log import log_to_stderr
        from sinkstream.server.serve import serve as run
    except ModuleNotFoundError as error:
        raise SinkstreamError(
            f"serve: the packages of the extra `serve` must be installed, but {error.name} is not. "
            f"{how_to_install('serve')} installs them."
        ) from None
    if isinstance(pinned := config.pinned, int):  # the model is loaded with the number
        loading = replace(loading, sinks=pinned)
    shown = name or _name_of(loading.model or os.environ.get("SINKSTREAM_MODEL"))
    config = replace(config, model_name=shown)
    check_log(config)
    log_to_stderr(config.log_level, config.log_format)
    further: dict[str, Any] = {"max_sequences": max_sequences, "speculation": speculation}
    given, loading = loading, _with_stored_window(config, loading, max_sequences)
    if ray:
        return _serve_with_ray(loading, config, 2 if replicas is None else replicas, further)
    if replicas is not None:
        raise InvalidArgument("serve: `replicas` must be given together with `ray`. Add --ray.")

    def load() -> Model:
        loaded = load_model(loading, **further)
        # Warnings about requests quote them, and a log must not.
        warnings.simplefilter("ignore")
        return loaded

    keep_heap_small()
    report = functools.partial(_report, config, is_of_store=loading != given)
    run(config, load, report, sharing=_sharing(config))
    return 0


def _with_stored_window(
    config: ServerConfig, loading: common_options.Loading, max_sequences: int
) -> common_options.Loading:
    """Return the loading options with the window of the store, if none is given."""
    from sinkstream.loading.load import check_options
    from sinkstream.server.store_choice import stored_window

    if loading.window is not None:
        return loading
    options = asdict(loading)
    path, download = options.pop("model"), options.pop("download")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # loading warns of the same
        checked = check_options(**options, max_sequences=max_sequences)
        return replace(loading, window=stored_window(config, checked, path, download=download))


def _sharing(config: ServerConfig) -> Alone | None:
    """Return what a server does differently that shares its store; None for any other."""
    if not config.is_shared:
        return None
    from sinkstream.cluster.serving import Sharing

    return Sharing()


def _serve_with_ray(
    loading: common_options.Loading, config: ServerConfig, replicas: int, further: dict[str, Any]
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
        raise SinkstreamError(
            f"serve: Ray must be installed, but {error.name} is not. "
            f"{how_to_install('serve', 'cluster')} installs it."
        ) from None
    load = {**asdict(loading), **further}
    model = load.pop("model")
    application = app(model, replicas=replicas, num_cpus=0, server=config, **load)
    run(application, config, lambda address: print(f"Listening on {address}", flush=True))
    return 0


def _report(config: ServerConfig, address: str, model: Model, *, is_of_store: bool) -> None:
    """Say where the server listens, what the model sees, and what memory and disk it takes."""
    from sinkstream.server.store_choice import store_sentences

    capacity = model.capacity
    total = capacity.weight_bytes + capacity.cache_bytes + capacity.scratch_bytes
    replies = "1 reply" if capacity.max_sequences == 1 else f"{capacity.max_sequences} replies"
    of_store = " (that of its conversations)" if is_of_store else ""
    print(f"Listening on {address}", flush=True)
    print(
        f"{Path(model.path).name} with {capacity.sinks:,} sinks and a window of "
        f"{capacity.window:,} tokens{of_store}, {replies} at a time. Ctrl-C ends the server.\n"
        f"Memory: {decimal(total)}, fixed. It does not grow with conversations.",
        *store_sentences(model, config),
        sep="\n",
        file=sys.stderr,
    )


def _name_of(model: str | None) -> str:
    """Return a model's name for clients: a file's name without its extension."""
    path = Path(model or "smollm2")
    return re.sub(r"\.gguf$", "", path.name) or "sinkstream"
