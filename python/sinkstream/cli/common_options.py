"""Options that several commands share: declared, checked in the words of the command line, used.

The package itself checks most values.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from sinkstream.cli.interrupts import INTERRUPTED, raising
from sinkstream.cli.terminal import is_terminal, progress_bar
from sinkstream.errors import InvalidArgument
from sinkstream.request.options import OPTIONS, Sampling, StreamOptions
from sinkstream.request.value_kinds import Integer, Number

if TYPE_CHECKING:
    from sinkstream.model import Model

METAVARS = {int: "INTEGER", float: "NUMBER", Path: "PATH"}
# Flags that are not the argument's name with dashes.
_FLAGS = {"stop_token_ids": "--stop-token-id"}
# Of single commands.
_FLAGS_OF = {"demo": {"max_tokens": "--tokens"}, "evaluate": {"max_tokens": "--tokens"}}

ModelPath = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="PATH",
        allow_from_autoenv=False,  # $SINKSTREAM_MODEL is read where a model is looked for
        help="A GGUF file, a Hugging Face folder, or a name that `sinkstream models` lists. "
        'Default: $SINKSTREAM_MODEL, or "smollm2".',
    ),
]
ModelArgument = Annotated[str | None, typer.Argument(metavar="MODEL", help="Same as --model.")]
Download = Annotated[
    bool,
    typer.Option("--download", help='Fetch a model named "org/name" from the Hugging Face hub.'),
]
Sinks = Annotated[
    int,
    typer.Option(help="Number of tokens at the start of the text that always stay in the cache."),
]
Threads = Annotated[
    int | None, typer.Option(help="Compute threads. Default: one per available logical CPU.")
]

Speculation = Annotated[
    int | None,
    typer.Option(
        help="The most guessed tokens that a step verifies for a reply; 0: none. They change no "
        "token. Default: no limit but what makes it faster."
    ),
]


@dataclass(frozen=True, slots=True)
class Loading:
    """How to load the model, for every command that loads one."""

    model: ModelPath = None
    download: Download = False
    sinks: Sinks = 4
    window: Annotated[
        int | None,
        typer.Option(
            help="Number of recent tokens that the model sees. Default: the trained length minus "
            "the sinks; half of it, a quarter and so on if memory is short."
        ),
    ] = None
    threads: Threads = None
    device: Annotated[str, typer.Option(help='"cpu", "cuda" or "auto".')] = "auto"
    dtype: Annotated[
        str,
        typer.Option(help='Activations: "float32", "bfloat16", "int16", "int8" or "auto".'),
    ] = "auto"
    kv_dtype: Annotated[
        str, typer.Option(help='Cache: "float32", "float16", "bfloat16", "int8" or "auto".')
    ] = "auto"
    quantize: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help='Quantize 16-bit and 32-bit matrices: "int8" (Q8_0), "int4" (Q4_0), or a type '
            'such as "q4_k". Default: keep the file\'s types.',
        ),
    ] = None


_NEUTRAL = Sampling.from_checkpoint({})


def _or(name: str) -> str:
    """Return the sentence on the default of a sampling option."""
    return f"Default: the model's own, or {getattr(_NEUTRAL, name):g}."


@dataclass(frozen=True, slots=True)
class Replies:
    """How to generate a reply. A field that is None has the default of `Model.stream`."""

    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens", "-n", help="Tokens to generate. Default: until the model ends its text."
        ),
    ] = None
    stop: Annotated[
        list[str] | None, typer.Option(help="Stop before this text. May be repeated.")
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            "-t",
            help=f"0 takes the most probable token. {_or('temperature')}",
        ),
    ] = None
    top_k: Annotated[
        int | None,
        typer.Option(help=f"Keep the k most probable tokens; 0: all. {_or('top_k')}"),
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            help=f"Keep the most probable tokens up to this total probability. {_or('top_p')}"
        ),
    ] = None
    min_p: Annotated[
        float | None,
        typer.Option(
            help=f"Minimum probability, relative to the most probable token. {_or('min_p')}"
        ),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            help="Values above 1 make tokens in the cache less probable. "
            f"{_or('repetition_penalty')}"
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        typer.Option(
            help=f"Subtracted from the logit of each token in the cache. {_or('presence_penalty')}"
        ),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        typer.Option(
            help="Subtracted from a token's logit for each occurrence in the cache. "
            f"{_or('frequency_penalty')}"
        ),
    ] = None
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same text. Default: a random one.")
    ] = None
    speculation: Speculation = None

    def as_options(self) -> StreamOptions:
        """Return them as the keyword arguments of `Model.stream`."""
        options: StreamOptions = {**asdict(self), "stop": self.stop or ()}  # type: ignore[typeddict-item]
        return options


_GROUPS: dict[type, str] = {Loading: "Model", Replies: "Reply"}


def takes_bundles(command: Callable[..., int]) -> Callable[..., int]:
    """Replace a command's parameters `loading` and `replies` with one option for each field.

    If the command has a parameter with the name of a field, it keeps that parameter, and the bundle
    gets the field's default. Ctrl-C ends the command with its exit code.
    """
    parameters = dict(inspect.signature(command).parameters)
    hints = get_type_hints(command, include_extras=True)
    bundles = {name: hints[name] for name in parameters if hints[name] in (Loading, Replies)}
    own = [
        entry.replace(annotation=hints[name])
        for name, entry in parameters.items()
        if name not in bundles
    ]
    added = {
        name: [entry for entry in _parameters_of(bundle) if entry.name not in parameters]
        for name, bundle in bundles.items()
    }

    @functools.wraps(command)
    def run(**given: Any) -> int:
        for name, bundle in bundles.items():
            names = [entry.name for entry in added[name] if entry.name in given]
            given[name] = bundle(**{field: given.pop(field) for field in names})
        try:
            return command(**given)
        except KeyboardInterrupt:  # before the parser sees it, which would print to a pipe
            if is_terminal(sys.stderr):
                sys.stderr.write("\n")  # the shell's prompt gets a line of its own
            return INTERRUPTED

    for entry in (*own, *itertools.chain(*added.values())):
        _name_value(entry.annotation)
    # Typer derives the options from these.
    signature = inspect.Signature([*own, *itertools.chain(*added.values())])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {name: entry.annotation for name, entry in signature.parameters.items()}
    return run


def value_type(annotation: Any) -> Any:
    """Return the type of one value: int for `Annotated[list[int] | None, …]`."""
    if hasattr(annotation, "__metadata__"):
        return value_type(annotation.__origin__)
    parts = [part for part in get_args(annotation) if part is not NoneType]
    return value_type(parts[0]) if len(parts) == 1 else annotation


def _name_value(annotation: Any) -> None:
    """Say what an option's value is; typer's own names differ between its releases."""
    for info in getattr(annotation, "__metadata__", ()):
        kind = value_type(annotation)
        if isinstance(info, OptionInfo) and info.metavar is None and kind is not bool:
            info.metavar = METAVARS.get(kind, "TEXT")


def _parameters_of(bundle: type[Loading | Replies]) -> list[inspect.Parameter]:
    hints = get_type_hints(bundle, include_extras=True)
    for hint in hints.values():
        for info in hint.__metadata__:
            info.rich_help_panel = _GROUPS[bundle]
    return [
        inspect.Parameter(
            entry.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=entry.default,
            annotation=hints[entry.name],
        )
        for entry in fields(bundle)
    ]


def flag_of(command: str, name: str) -> str:
    """Return the flag of a command that sets an argument of a function of the package."""
    flags = {**_FLAGS, **_FLAGS_OF.get(command, {})}
    return flags.get(name, "--" + name.replace("_", "-"))


def check_options(command: str, options: Mapping[str, Any]) -> None:
    """Check the ranges of request options, by the names of `StreamOptions`; errors name the flag.

    None stands for the default.
    """
    for name, value in options.items():
        kind = OPTIONS[name].kind
        if value is None or not isinstance(kind, Integer | Number):
            continue
        if value not in kind:
            raise InvalidArgument(
                f"{command}: `{flag_of(command, name)}` must be in {kind}, but is "
                f"{value:{'g' if isinstance(kind, Number) else 'd'}}.",
                param=name,
            )


def in_command(command: str, sentence: str) -> str:
    """Return a sentence that begins with the command that was typed, not with a part of it."""
    return re.sub(r"^(chat|generate|load): ", f"{command}: ", sentence)


def in_flags(command: str, sentence: str, names: Collection[str]) -> str:
    """Return an error of the package with the command and the arguments `names` as typed."""
    known = {*names, *_FLAGS, *_FLAGS_OF.get(command, {})}
    sentence = in_command(command, sentence)
    return re.sub(
        r"`(\w+)`",
        lambda name: f"`{flag_of(command, name[1])}`" if name[1] in known else name[0],
        sentence,
    )


def with_model(command: str, loading: Loading, argument: str | None, flag: str | None) -> Loading:
    """Return the loading options with the model that was given as an argument or as a flag."""
    if argument is not None and flag is not None:
        raise InvalidArgument(
            f"{command}: the model must be given once, but both MODEL and --model are set."
        )
    return replace(loading, model=flag if argument is None else argument)


def import_loader() -> None:
    """Import what loading needs. During this, Ctrl-C ends the process at once."""
    with raising(False):
        import sinkstream.loading.load  # noqa: F401


def load_model(loading: Loading, *, max_sequences: int = 1, **others: Any) -> Model:
    """Return the loaded model, by default for one stream at a time. The others are for `load`."""
    import_loader()
    from sinkstream.loading.load import load

    options = asdict(loading)
    path = options.pop("model")
    with progress_bar("Loading", in_bytes=True) as show:
        return load(path, max_sequences=max_sequences, progress=show, **options, **others)
