"""Parses the command line and runs one command; no other command's module is imported."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any, TextIO

import typer

from sinkstream import _build
from sinkstream.errors import SinkstreamError

INTERRUPTED = 130  # what shells report for a program that Ctrl-C ended
FAILED = 2

# A command is a function in a module of the same name. Its summary stands here as well, because
# `sinkstream --help` lists all commands and imports none.
COMMANDS = {
    "bench": "Measure prompts, tokens and the machine's memory; close other programs first.",
    "chat": "Talk to a model for as long as you like; /help lists what else can be said.",
    "demo": "Watch a model write while a small cache wraps under it, in memory that does not grow.",
    "evaluate": "Measure how well a model predicts a long text, or what it remembers of a stream.",
    "generate": "Write the text that follows a prompt.",
    "info": "Show the model, its cache, the processor, and which kernels serve which operation.",
}


def run(arguments: Sequence[str]) -> int:
    """Run a command; return the exit code as `main` does."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            app = build_app(arguments)
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


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """Return a parser that knows all commands by name, and the one that is called by its options.

    No option before the command takes a value, so that the first other word is the command.
    """
    called = next((word for word in arguments if not word.startswith("-")), None)
    app = typer.Typer(
        name="sinkstream",
        help="Stream text from a language model for ever, in a fixed amount of memory.",
        no_args_is_help=True,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        callback=_options,
    )
    for name, summary in COMMANDS.items():
        app.command(name, help=summary)(function_of(name) if name == called else _not_called)
    return app


def function_of(name: str) -> Callable[..., Any]:
    """Import a command."""
    function: Callable[..., Any] = getattr(import_module(f"sinkstream.cli.{name}"), name)
    return function


def _not_called() -> None:
    pass


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"sinkstream {_build.version()}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


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
