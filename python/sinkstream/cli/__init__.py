"""The command line: `sinkstream bench`, `chat`, `demo`, `evaluate`, `generate` and `info`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sinkstream import _build
from sinkstream.cli.terminal import drop_output

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name. If None, those in `sys.argv`.

    Returns:
        The exit code: 0, 2 after a one-sentence error, 130 after Ctrl-C.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:  # answered before the slow import of the parser
        try:
            print(f"sinkstream {_build.version()}", flush=True)
        except BrokenPipeError:
            drop_output()
            return 1
        return 0
    from sinkstream.cli.program import run

    return run(given)
