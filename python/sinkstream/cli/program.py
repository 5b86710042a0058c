"""Parses the command line and runs one command, without importing the others."""

from __future__ import annotations

import difflib
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperCommand

from sinkstream import _build
from sinkstream.cli.interrupts import INTERRUPTED, TERMINATED, raising
from sinkstream.cli.standard_streams import OutputError
from sinkstream.cli.terminal import fold
from sinkstream.errors import SinkstreamError

FAILED = 2

EXIT_CODES = {
    0: "success",
    1: "the reader of the output, such as `head`, has exited; or a bug, with a traceback",
    FAILED: "an error; one sentence on standard error explains it",
    INTERRUPTED: "Ctrl-C",
    TERMINATED: "SIGTERM",
}

# Each command is a function in a module of the same name. The summaries repeat the docstrings, so
# that `sinkstream --help` lists all commands without importing them.
COMMANDS = {
    "batch": "Answer every line of a JSONL file. A second run continues where the first one ended.",
    "bench": "Measure prefill, decode and memory bandwidth. Close other programs first.",
    "chat": "Chat with a model for as long as you like. /help lists the commands.",
    "demo": "Watch a model write far past its small cache, in constant memory.",
    "evaluate": "Measure perplexity over a long text, or recall from a long stream.",
    "generate": "Generate text from a prompt.",
    "info": "Show the model, the memory it takes, and what would make it faster on this machine.",
    "models": "List the models on this machine, and whether each can be loaded.",
    "quantize": "Quantize a model to a GGUF file, as llama.cpp's quantizer does.",
    "run": "Chat with a model, or get one reply to PROMPT.",
    "serve": "Serve a model over an OpenAI-compatible API. Options can be set in the environment.",
}

EXAMPLES = {
    "batch": "sinkstream batch questions.jsonl answers.jsonl -n 100",
    "bench": "sinkstream bench --rounds 3",
    "chat": 'sinkstream chat --system "You are a pirate."',
    "demo": "sinkstream demo --tokens 500",
    "evaluate": "sinkstream evaluate novel.txt --tokens 5000",
    "generate": 'sinkstream generate "What is the capital of France?" -n 100',
    "info": "sinkstream info model.gguf",
    "models": "sinkstream models ~/downloads",
    "quantize": "sinkstream quantize model-f16.gguf model-q4.gguf --type Q4_K_M",
    "run": 'sinkstream run smollm2 "What do bees make?"',
    "serve": "sinkstream serve --port 8000",
}

# The prefix of the variables from which a command reads its options.
_ENVIRONMENT = {"serve": "SINKSTREAM"}


def run(arguments: Sequence[str]) -> int:
    """Run a command; return the exit code as `main` does.

    Raises:
        BrokenPipeError: The reader of standard output has ended.
        OutputError: Standard output cannot be written.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = partial(_show_warning, _called(arguments))
            app = build_app(arguments)
            with raising():
                result = app(args=arguments, prog_name="sinkstream", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except SystemExit as ended:  # SIGTERM, and the completion of shells, end like this
        return ended.code if isinstance(ended.code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except (BrokenPipeError, OutputError):
        raise
    except SinkstreamError as error:
        return _fail(_in_flags(str(error), arguments))
    except OSError as error:
        return _fail(_sentence(error))
    except Exception as error:
        # The parser's errors have no public base class, but all have this method.
        if not hasattr(error, "format_message"):
            raise
        if str(error.format_message()).startswith("Usage: "):  # there is no command
            print(error.format_message(), file=sys.stderr)
            return FAILED
        return _fail(_of_parser(error, arguments))


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """Return a parser that knows every command's name, and the options of the one called.

    No option before the command takes a value, so the first word that is not an option is the
    command.
    """
    called = _called(arguments or _words_to_complete())
    app = typer.Typer(
        name="sinkstream",
        help="Stream text from a language model indefinitely, in a fixed amount of memory.",
        no_args_is_help=True,
        rich_markup_mode=None,  # tables would cut names in a narrow terminal
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        callback=_options,
    )
    for name, summary in COMMANDS.items():
        function = function_of(name) if name == called else _not_called
        settings = {"auto_envvar_prefix": _ENVIRONMENT.get(name)}
        app.command(
            name,
            cls=_Command,
            help=summary,
            short_help=summary,
            epilog=f"Example: {EXAMPLES[name]}",
            context_settings=settings,
        )(function)
    return app


class _Command(TyperCommand):
    """A command whose help lists options below headings, and arguments as they are typed."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words after the command: arguments without braces."""
        return [re.sub(r"^\{(.*)\}$", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options; each names its heading, if it has one."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if (line := parameter.get_help_record(ctx)) is None:
                continue
            is_argument = parameter.param_type_name == "argument"
            heading = getattr(parameter, "rich_help_panel", None)
            heading = "Arguments" if is_argument else heading or "Options"
            sections.setdefault(heading, []).append(line)
        for heading, lines in sections.items():
            with formatter.section(heading):
                formatter.write_dl(lines)


def _called(arguments: Sequence[str]) -> str | None:
    return next((word for word in arguments if not word.startswith("-")), None)


def _words_to_complete() -> list[str]:
    """Return the words of the line that a shell wants to complete, if it wants any."""
    line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    return line.split()[1:] if "_SINKSTREAM_COMPLETE" in os.environ else []


def _of_parser(error: Any, arguments: Sequence[str]) -> str:
    """Return what is wrong with a command line."""
    kind = re.search("valid (int|float|number)", str(error.format_message()))
    names = getattr(getattr(error, "param", None), "opts", [])
    if kind is not None and names:
        what = "an integer" if kind[1] == "int" else "a number"
        found = _value_after(names, arguments)
        rest = "." if found is None else f', but is "{found[:40]}".'
        return f"Invalid value for '{max(names, key=len)}': it must be {what}{rest}"
    wrong = getattr(error, "option_name", None)
    if wrong is None or not hasattr(error, "possibilities"):
        sentence = str(error.format_message())
        if "unexpected extra argument" in sentence and _called(arguments) == "generate":
            sentence = f"{sentence.rstrip('.')}. Quote a prompt of several words."
        return sentence
    names = [
        name
        for parameter in error.ctx.command.params
        for name in parameter.opts
        if name.startswith("--")
    ]
    written = wrong.replace("_", "-")
    starts = [name for name in names if name.startswith(written)]
    meant = starts or difflib.get_close_matches(written, names, n=1, cutoff=0.7)
    remedy = f"Did you mean {meant[0]}?" if meant else "--help lists them."
    return f"{error.message}. {remedy}"


def _value_after(names: Sequence[str], arguments: Sequence[str]) -> str | None:
    """Return the value that a command line gives an option; None if it is not clear."""
    for word, following in zip(arguments, [*arguments[1:], None], strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else following
    return None


def _in_flags(sentence: str, arguments: Sequence[str]) -> str:
    from sinkstream.cli.common_options import in_flags

    called = _called(arguments)
    if called not in COMMANDS:
        return sentence
    names = inspect.signature(function_of(called)).parameters.keys()
    return in_flags(called, sentence, names)


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
    if sentence:  # empty if the parser has shown its help instead
        print(fold(f"sinkstream: {sentence}", sys.stderr), file=sys.stderr)
    return FAILED


def _sentence(error: OSError) -> str:
    """Return what failed in the file system; an error without a number brings its own sentence."""
    from sinkstream.checkpoint.quoting import quoted

    reason = error.strerror or str(error)
    return reason if error.filename is None else f"{quoted(os.fspath(error.filename))}: {reason}."


def _show_warning(
    called: str | None,
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    from sinkstream.cli.common_options import in_command

    sentence = in_command(called, str(message)) if called in COMMANDS else message
    print(fold(f"sinkstream: {sentence}", sys.stderr), file=sys.stderr)
