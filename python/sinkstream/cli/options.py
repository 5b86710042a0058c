"""Options that several commands share. The package itself checks the values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, get_type_hints

import typer

ModelPath = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        metavar="PATH",
        help="A GGUF file, a Hugging Face folder, or a name. "
        'Default: $SINKSTREAM_MODEL, or "smollm2".',
    ),
]
Sinks = Annotated[int, typer.Option(help="First tokens, which always stay in the cache.")]
Window = Annotated[
    int | None,
    typer.Option(
        help="Most recent tokens that the model sees. Default: the trained length, at most 4,096."
    ),
]
Threads = Annotated[
    int | None, typer.Option(help="Compute threads. Default: one per available core.")
]
Device = Annotated[str, typer.Option(help='"cpu", "cuda" or "auto".')]
Dtype = Annotated[str, typer.Option(help='Activations: "float32", "bfloat16", "int16" or "auto".')]
KvDtype = Annotated[
    str, typer.Option(help='Cache: "float32", "float16", "bfloat16", "int8" or "auto".')
]


@dataclass(frozen=True, slots=True)
class Loading:
    """How to load the model. Each field is an option of every command that loads one."""

    model: ModelPath = None
    sinks: Sinks = 4
    window: Window = None
    threads: Threads = None
    device: Device = "auto"
    dtype: Dtype = "auto"
    kv_dtype: KvDtype = "auto"


def takes_loading(command: Callable[..., int]) -> Callable[..., int]:
    """Replace a command's parameter `loading` by one option for each field of `Loading`.

    If the command has a parameter with the name of a field, it keeps that parameter, and
    `loading` has the field's default.
    """
    parameters = dict(inspect.signature(command).parameters)
    del parameters["loading"]
    hints = get_type_hints(command, include_extras=True) | {"return": int}
    added = [entry for entry in fields(Loading) if entry.name not in parameters]
    types = get_type_hints(Loading, include_extras=True)

    @functools.wraps(command)
    def run(**given: Any) -> int:
        bundle = {entry.name: given.pop(entry.name) for entry in added if entry.name in given}
        return command(**given, loading=Loading(**bundle))

    # Typer derives the options from these.
    signature = inspect.Signature(
        [
            *(entry.replace(annotation=hints[name]) for name, entry in parameters.items()),
            *(
                inspect.Parameter(
                    entry.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=entry.default,
                    annotation=types[entry.name],
                )
                for entry in added
            ),
        ],
        return_annotation=int,
    )
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {name: entry.annotation for name, entry in signature.parameters.items()}
    return run


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
    float | None, typer.Option(help="Above 1 makes tokens in the cache less probable.")
]
PresencePenalty = Annotated[
    float | None, typer.Option(help="Subtracted for each token in the cache.")
]
FrequencyPenalty = Annotated[
    float | None, typer.Option(help="Subtracted for each occurrence in the cache.")
]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same text.")]
