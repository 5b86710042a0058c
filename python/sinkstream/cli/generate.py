"""`sinkstream generate`: one prompt, one reply, with every sampling option."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import sinkstream
from sinkstream.cli import common_options
from sinkstream.cli.common_options import check_options, import_loader, load_model
from sinkstream.cli.standard_streams import json_line
from sinkstream.cli.terminal import (
    WordWrap,
    can_wrap,
    is_terminal,
    printable,
    progress_bar,
    width_of,
)
from sinkstream.errors import InvalidArgument, warn_caller
from sinkstream.request.options import StreamOptions
from sinkstream.streams.events import text_of
from sinkstream.streams.stream import Finished, Prefill, Stream

# Shorter prompts are read before a progress bar would be visible.
_LONG_PROMPT = 512

PIPED_TOKENS = 256
"""The default number of tokens in a pipe, where no one would press Ctrl-C; as `Model.generate`."""


@common_options.takes_bundles
def generate(
    prompt: Annotated[
        str,
        typer.Argument(
            metavar="PROMPT",
            help="The question; with --raw, or if the model has no chat template, the text to "
            'continue. "-" reads standard input.',
        ),
    ],
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as plain text, without a template.")
    ] = False,
    chat: Annotated[
        bool, typer.Option("--chat", help="Refuse a model that has no chat template.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="System message; implies --chat.")] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            "-n",
            help="Maximum tokens to generate. Default: no limit on a terminal, otherwise "
            f"{PIPED_TOKENS}.",
        ),
    ] = None,
    endless: Annotated[
        bool, typer.Option("--endless", help="Set no limit, even in a pipe.")
    ] = False,
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
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON schema that the reply follows.")
    ] = None,
    regex: Annotated[
        str | None, typer.Option(help="Regular expression that matches the whole reply.")
    ] = None,
    grammar: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Grammar that the reply follows, in Lark syntax or GBNF."
        ),
    ] = None,
    prediction: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What the reply probably says, such as a file that it changes in places. Where it "
            "is right, the reply comes faster.",
        ),
    ] = None,
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
    replies: common_options.Replies,
    loading: common_options.Loading,
) -> int:
    """Generate text from a prompt."""
    refuse_contradictions(raw=raw, chat=chat, system=system, endless=endless, limit=max_tokens)
    is_limited = max_tokens is None and not endless and not is_terminal(sys.stdout)
    request: StreamOptions = {
        **replies.as_options(),
        "max_tokens": PIPED_TOKENS if is_limited else max_tokens,
        "stop_token_ids": stop_token_id or (),
        "ignore_eos": ignore_eos,
        "logit_bias": parse_logit_bias(logit_bias or ()) or None,
        "logprobs": logprobs,
        "schema": read_file("--schema", schema),
        "regex": regex,
        "grammar": read_file("--grammar", grammar),
        "prediction": read_file("--prediction", prediction) or (),
        "stream_interval": stream_interval,
    }
    check_options("generate", request)
    text = read_prompt(prompt)
    import_loader()
    warn_of_model_name(text)
    with ExitStack() as stack:
        if trace is not None:
            stack.enter_context(sinkstream.trace(trace))
        loaded = stack.enter_context(
            load_model(loading, prefill_chunk=prefill_chunk, revision=revision)
        )
        is_message = chat or system is not None or (loaded.has_chat_template and not raw)
        asked = as_messages(text, system) if is_message else text
        with loaded.stream(asked, **request) as stream:
            write_json(stream) if as_json else write_text(stream)
            if is_limited and stream.finish_reason == "length":
                warn_caller(
                    f"generate: the text ends after {PIPED_TOKENS} tokens, the default in a pipe. "
                    "-n sets another limit."
                )
    return 0


def refuse_contradictions(
    *, raw: bool, chat: bool, system: str | None, endless: bool, limit: int | None
) -> None:
    """Refuse flags that would cancel each other."""
    for flag, is_given in (("--chat", chat), ("--system", system is not None)):
        if raw and is_given:
            raise InvalidArgument(
                f"generate: {flag} must not be given with --raw, which sends plain text."
            )
    if endless and limit is not None:
        raise InvalidArgument(
            "generate: --max-tokens must not be given with --endless, which sets no limit."
        )


def read_prompt(prompt: str) -> str:
    """Return the prompt; "-" reads it from standard input."""
    if prompt != "-":
        return prompt
    try:
        if sys.stdin is None:
            raise OSError("it is closed")
        return sys.stdin.buffer.read().decode("utf-8")
    except OSError as error:
        raise InvalidArgument(
            "generate: standard input must hold the prompt, but cannot be read: "
            f"{error.strerror or error}."
        ) from None
    except UnicodeDecodeError as error:
        raise typer.BadParameter(
            f"generate: standard input must be UTF-8, but byte {error.start} is not."
        ) from None


def warn_of_model_name(prompt: str) -> None:
    """Warn if the prompt is the name of a model: other programs take one there."""
    from sinkstream.checkpoint.stores import is_model_name

    if is_model_name(prompt):
        warn_caller(
            f"generate: {prompt!r} is sent as the prompt, but is the name of a model. "
            f"`sinkstream run {prompt}` runs that model."
        )


def read_file(flag: str, path: Path | None) -> str | None:
    """Return the text of a file that a flag names."""
    if path is None:
        return None
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidArgument(
            f"generate: `{flag}` must name a text file, but {str(path)!r} cannot be read: {reason}."
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
    if not text.strip():
        raise InvalidArgument(
            "generate: PROMPT must not be empty, because it is sent as a message. --raw sends "
            "plain text."
        )
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": text}]


def write_json(stream: Stream) -> None:
    """Write one JSON object per line for each event; the last one has the statistics."""
    for event in stream.events():
        line: dict[str, Any] = {"event": type(event).__name__.lower(), **asdict(event)}
        if isinstance(event, Finished):
            line["stats"] = asdict(stream.stats)
        sys.stdout.write(json_line(line))
        sys.stdout.flush()


def write_text(stream: Stream) -> None:
    """Write the text as it is generated. On a terminal, a long prompt shows a progress bar."""
    at_terminal = is_terminal(sys.stdout)
    laid_out = layout()
    with ExitStack() as stack:
        show: Callable[..., None] | None = None
        for event in stream.events():
            if isinstance(event, Prefill) and at_terminal and event.total >= _LONG_PROMPT:
                show = show or stack.enter_context(progress_bar("Reading the prompt"))
                show(event.done, event.total)
            elif text := text_of(event):
                stack.close()
                sys.stdout.write(laid_out(text))
                sys.stdout.flush()
    sys.stdout.write("\n")


def layout() -> Callable[[str], str]:
    """Return a function from the next piece of text to what standard output gets for it.

    A terminal gets no control characters, and line breaks between words.
    """
    if not is_terminal(sys.stdout):
        return str
    wrap = WordWrap() if can_wrap(sys.stdout) else None

    def lay_out(text: str) -> str:
        width = width_of(sys.stdout)  # the terminal may have been resized
        shown = printable(text)
        return shown if wrap is None or width is None else wrap.feed(shown, width)

    return lay_out
