"""The command line: `sinkstream chat`, `generate` and the other commands of `program.py`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sinkstream.cli import interrupts

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name. If None, those in `sys.argv`, and Ctrl-C or SIGTERM
            ends the process quietly at any moment.

    Returns:
        The exit code: 0, 1 if the output's reader has ended, 2 after a one-sentence error, 130
        after Ctrl-C, 143 after SIGTERM.
    """
    if arguments is None:
        interrupts.take_over()
    from sinkstream.cli.standard_streams import OutputError, discard, standard_streams

    with standard_streams():
        try:
            code = _run(list(sys.argv[1:] if arguments is None else arguments))
            sys.stdout.flush()
        except BrokenPipeError:
            discard(sys.stdout)
            return 1
        except OutputError as error:
            discard(sys.stdout)
            print(f"sinkstream: {error}", file=sys.stderr)
            return 2
        return code


def _run(arguments: list[str]) -> int:
    if arguments == ["--version"]:  # answered before the slow import of the parser
        from sinkstream import _build

        print(f"sinkstream {_build.version()}")
        return 0
    from sinkstream.cli.program import run

    return run(arguments)
