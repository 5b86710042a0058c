"""The command line: `sinkstream bench`, `chat`, `demo`, `evaluate`, `generate` and `info`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sinkstream import _build

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name; None takes those of the process.

    Returns:
        The exit code: 0, 2 after an error of one sentence, 130 after Ctrl-C.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:  # needs no parser, which takes longer to import than this to run
        print(f"sinkstream {_build.version()}")
        return 0
    from sinkstream.cli.program import run

    return run(given)
