"""Options that several commands share. The package itself checks the values."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from sinkstream.cli.interrupts import INTERRUPTED
from sinkstream.cli.terminal import is_terminal
from sinkstream.request.options import StreamOptions

METAVARS = {int: "INTEGER", float: "NUMBER", Path: "PATH"}

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
Window = Annotated[
    int | None,
    typer.Option(
        help="Number of recent tokens that the model sees. Default: the trained length or 4,096, "
        "whichever is smaller, minus the sinks."
    ),
]
Threads = Annotated[
    int | None, typer.Option(help="Compute threads. Default: one per available logical CPU.")
]
Device = Annotated[str, typer.Option(help='"cpu", "cuda" or "auto".')]
Dtype = Annotated[
    str,
    typer.Option(help='Activations: "float32", "bfloat16", "int16", "int8" or "auto".'),
]
KvDtype = Annotated[
    str, typer.Option(help='Cache: "float32", "float16", "bfloat16", "int8" or "auto".')
]
Quantize = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE",
        help='Quantize 16-bit and 32-bit matrices: "int8" (Q8_0), "int4" (Q4_0), or a type such as '
        '"q4_k". Default: keep the file\'s types.',
    ),
]

MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens", "-n", help="Tokens to generate. Default: until the model ends its text."
    ),
]
Stop = Annotated[list[str] | None, typer.Option(help="Stop before this text. May be repeated.")]
Temperature = Annotated[
    float | None, typer.Option("--temperature", "-t", help="0 takes the most probable token.")
]
TopK = Annotated[int | None, typer.Option(help="Keep the k most probable tokens; 0: all.")]
TopP = Annotated[
    float | None, typer.Option(help="Keep the most probable tokens up to this total probability.")
]
MinP = Annotated[
    float | None, typer.Option(help="Minimum probability, relative to the most probable token.")
]
RepetitionPenalty = Annotated[
    float | None, typer.Option(help="Values above 1 make tokens in the cache less probable.")
]
PresencePenalty = Annotated[
    float | None, typer.Option(help="Subtracted from the logit of each token in the cache.")
]
FrequencyPenalty = Annotated[
    float | None,
    typer.Option(help="Subtracted from a token's logit for each occurrence in the cache."),
]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same text.")]


@dataclass(frozen=True, slots=True)
class Loading:
    """How to load the model, for every command that loads one."""

    model: ModelPath = None
    download: Download = False
    sinks: Sinks = 4
    window: Window = None
    threads: Threads = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    kv_dtype: KvDtype = "auto"
    quantize: Quantize = None


@dataclass(frozen=True, slots=True)
class Replies:
    """How to generate a reply. A field that is None has the default of `Model.stream`."""

    max_tokens: MaxTokens = None
    stop: Stop = None
    temperature: Temperature = None
    top_k: TopK = None
    top_p: TopP = None
    min_p: MinP = None
    repetition_penalty: RepetitionPenalty = None
    presence_penalty: PresencePenalty = None
    frequency_penalty: FrequencyPenalty = None
    seed: Seed = None

    def as_options(self) -> StreamOptions:
        """Return them as the keyword arguments of `Model.stream`."""
        options: StreamOptions = {**asdict(self), "stop": self.stop or ()}  # type: ignore[typeddict-item]
        return options


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
    return [
        inspect.Parameter(
            entry.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=entry.default,
            annotation=hints[entry.name],
        )
        for entry in fields(bundle)
    ]
