"""The command line: `sinkstream bench`, `chat`, `demo`, `evaluate`, `generate` and `info`."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, TextIO

import typer

from sinkstream import __version__
from sinkstream.cli import bench, chat, demo, evaluate, generate, info
from sinkstream.errors import SinkstreamError

__all__ = ["main"]

INTERRUPTED = 130  # what shells report for a program that Ctrl-C ended
FAILED = 2

app = typer.Typer(
    name="sinkstream",
    help="Stream text from a language model for ever, in a fixed amount of memory.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"sinkstream {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


app.command()(bench.bench)
app.command()(chat.chat)
app.command()(demo.demo)
app.command()(evaluate.evaluate)
app.command()(generate.generate)
app.command()(info.info)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name; None takes those of the process.

    Returns:
        The exit code: 0, 2 after an error of one sentence, 130 after Ctrl-C.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            result = app(args=arguments, prog_name="sinkstream", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe has gone, as `head` does. Python would complain at exit once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SinkstreamError as error:
        return _fail(str(error))
    except Exception as error:
        # The parser's own errors have no public base class, but all can say themselves in words.
        if not hasattr(error, "format_message"):
            raise
        return _fail(str(error.format_message()))


def _fail(sentence: str) -> int:
    if sentence:  # none where the parser has shown its help instead
        print(f"sinkstream: {sentence}", file=sys.stderr)
    return FAILED


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"sinkstream: {message}", file=sys.stderr)
