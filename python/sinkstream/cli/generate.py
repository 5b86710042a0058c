"""`sinkstream generate`: one prompt, one reply, with every sampling option."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import sinkstream
from sinkstream.cli import options
from sinkstream.cli.loading import load_model
from sinkstream.cli.progress import progress_bar
from sinkstream.cli.terminal import is_terminal, printable
from sinkstream.request.options import StreamOptions
from sinkstream.streams.stream import Event, Finished, Prefill, Stream, Token

# Shorter prompts are read before a progress bar would be visible.
_LONG_PROMPT = 512


@options.takes_bundles
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads standard input.")],
    chat: Annotated[
        bool, typer.Option("--chat", help="Send the prompt as a chat message.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="System message; implies --chat.")] = None,
    stop_token_id: Annotated[
        list[int] | None, typer.Option(help="End at this token. May be repeated.")
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Continue past the model's end tokens.")
    ] = False,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(metavar="ID=NUMBER", help="Added to a token's logit. May be repeated."),
    ] = None,
    logprobs: Annotated[
        int, typer.Option(help="Most probable tokens to report with each token, with --json.")
    ] = 0,
    stream_interval: Annotated[int, typer.Option(help="Tokens delivered at a time.")] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write events, one JSON object per line.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a timeline of the steps for Perfetto."),
    ] = None,
    prefill_chunk: Annotated[
        int | None, typer.Option(help="Prompt tokens per step; does not change any result.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help='Revision of a model named "org/name".')
    ] = None,
    *,
    replies: options.Replies,
    loading: options.Loading,
) -> int:
    """Generate text from a prompt."""
    text = read_prompt(prompt)
    bias = parse_logit_bias(logit_bias or ())
    with ExitStack() as stack:
        if trace is not None:
            stack.enter_context(sinkstream.trace(trace))
        loaded = stack.enter_context(
            load_model(loading, prefill_chunk=prefill_chunk, revision=revision)
        )
        request: StreamOptions = {
            **replies.as_options(),
            "stop_token_ids": stop_token_id or (),
            "ignore_eos": ignore_eos,
            "logit_bias": bias or None,
            "logprobs": logprobs,
            "stream_interval": stream_interval,
        }
        is_message = chat or system is not None
        prompt_or_messages = as_messages(text, system) if is_message else text
        with loaded.stream(prompt_or_messages, **request) as stream:
            write_json(stream) if as_json else write_text(stream)
    return 0


def read_prompt(prompt: str) -> str:
    """Return the prompt; "-" reads it from standard input."""
    if prompt != "-":
        return prompt
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(
            f"generate: standard input must be UTF-8, but byte {error.start} is not."
        ) from None


def parse_logit_bias(entries: Sequence[str]) -> dict[int, float]:
    """Return token ids and numbers from strings like "17=-2.5"."""
    bias: dict[int, float] = {}
    for entry in entries:
        token, _, number = entry.partition("=")
        try:
            bias[int(token)] = float(number)
        except ValueError:
            raise typer.BadParameter(
                f"generate: `--logit-bias` must be ID=NUMBER, but is {entry!r}."
            ) from None
    return bias


def as_messages(text: str, system: str | None) -> list[dict[str, str]]:
    """Return a conversation that starts with this prompt."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": text}]


def write_json(stream: Stream) -> None:
    """Write one JSON object per line for each event; the last one has the statistics."""
    for event in stream.events():
        line: dict[str, Any] = {"event": type(event).__name__.lower(), **asdict(event)}
        if isinstance(event, Finished):
            line["stats"] = asdict(stream.stats)
        sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
        sys.stdout.flush()


def write_text(stream: Stream) -> None:
    """Write the text as it is generated. On a terminal, a long prompt shows a progress bar."""
    at_terminal = is_terminal(sys.stdout)
    with ExitStack() as stack:
        show: Callable[..., None] | None = None
        for event in stream.events():
            if isinstance(event, Prefill) and at_terminal and event.total >= _LONG_PROMPT:
                show = show or stack.enter_context(progress_bar("Reading the prompt"))
                show(event.done, event.total)
            elif text := text_of(event):
                stack.close()
                sys.stdout.write(printable(text) if at_terminal else text)
                sys.stdout.flush()
    sys.stdout.write("\n")


def text_of(event: Event) -> str:
    """Return the text of an event."""
    return event.text if isinstance(event, Token | Finished) else ""
