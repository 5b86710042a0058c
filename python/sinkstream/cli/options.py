"""Options that several commands share. What a value may be is checked by the package itself."""

from __future__ import annotations

from typing import Annotated

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
Sinks = Annotated[int, typer.Option(help="First tokens that stay in the cache for ever.")]
Window = Annotated[
    int | None,
    typer.Option(
        help="Last tokens that the model sees. Default: what it was trained on, or 4,096."
    ),
]
Threads = Annotated[
    int | None, typer.Option(help="Threads that compute. Default: the cores that may be used.")
]
Device = Annotated[str, typer.Option(help='"cpu", "cuda" or "auto".')]
Dtype = Annotated[str, typer.Option(help='Activations: "float32", "bfloat16", "int16" or "auto".')]
KvDtype = Annotated[
    str, typer.Option(help='Cache: "float32", "float16", "bfloat16", "int8" or "auto".')
]

MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", "-n", help="Default: until the model ends.")
]
Stop = Annotated[list[str] | None, typer.Option(help="End before this text. May be repeated.")]
Temperature = Annotated[
    float | None, typer.Option("--temperature", "-t", help="0 takes the likeliest token.")
]
TopK = Annotated[int | None, typer.Option(help="Keep the k likeliest tokens; 0: all.")]
TopP = Annotated[float | None, typer.Option(help="Keep this much probability.")]
MinP = Annotated[
    float | None, typer.Option(help="Least share of the likeliest token's probability.")
]
RepetitionPenalty = Annotated[
    float | None, typer.Option(help="Above 1 makes tokens in the cache less likely.")
]
PresencePenalty = Annotated[
    float | None, typer.Option(help="Subtracted for each token in the cache.")
]
FrequencyPenalty = Annotated[
    float | None, typer.Option(help="Subtracted for each occurrence in the cache.")
]
Seed = Annotated[int | None, typer.Option(help="Repeats the draws.")]
