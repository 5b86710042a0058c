"""The command line: `sinkstream bench`, `chat`, `demo`, `evaluate`, `generate` and `info`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from sinkstream import _build

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name. None takes `sys.argv`.

    Returns:
        The exit code: 0, 2 after a one-sentence error, 130 after Ctrl-C.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:  # answered before the slow import of the parser
        try:
            print(f"sinkstream {_build.version()}", flush=True)
        except BrokenPipeError:
            # Nothing more can be written; the interpreter must not try at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        return 0
    from sinkstream.cli.program import run

    return run(given)
