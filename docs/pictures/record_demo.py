"""Records `sinkstream demo` at a terminal of its own and writes demo.svg, at the speed it ran.

`make demo-picture` runs it; it needs pyte, of the extra `docs` in pyproject.toml. The text depends
only on the seed and the model, the times on the machine and on what else it does.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from film import Caption, Frame, Row, Run, draw_film

from sinkstream.cli import demo

FILE = Path(__file__).with_name("demo.svg")
COMMAND = ("sinkstream", "demo", "--tokens", "2500")
COLUMNS, ROWS = 80, 16
FRAME_S = 1 / 15  # the demo redraws its status as often
LIMIT = 150_000  # bytes
QUIET_S = 0.004  # a redraw arrives in one piece; nothing follows it for as long

STATUS = re.compile(r"live ([\d,]+) · evicted ([\d,]+)")
SUMMARY = re.compile(r"([\d,]+) tokens are live, ([\d,]+) were evicted")


def main() -> int:
    """Record the command and write the picture."""
    cores = len(os.sched_getaffinity(0))
    caption = Caption(
        title="sinkstream demo writes text in a terminal. Its cache is soon full and stays full, "
        "while the count of evicted tokens rises.",
        command=" ".join(COMMAND),
        note=f"real time, {cores} cores",
        sinks=demo.SINKS,
        capacity=demo.SINKS + demo.WINDOW,
    )
    frames = list(record())
    svg = draw_film(frames, caption, COLUMNS)
    print(f"{len(frames)} frames, {frames[-1].at_s - frames[0].at_s:.1f} s, {len(svg):,} bytes")
    if len(svg) > LIMIT:  # the longer it takes, the more frames there are
        print(f"record_demo: not written, because {LIMIT:,} bytes are enough. Is the machine busy?")
        return 1
    FILE.write_text(svg, encoding="utf-8")
    return 0


def record() -> Iterator[Frame]:
    """Run the command and yield its screens, from its first output to its end."""
    import pyte  # only a recording needs it

    class Screen(pyte.Screen):
        """A screen that counts the lines that have left it at the top."""

        scrolled = 0

        def index(self) -> None:
            if self.cursor.y == self.lines - 1:
                self.scrolled += 1
            super().index()

    screen = Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    shown_at, count = -FRAME_S, (0, 0)
    for at, output in run():
        stream.feed(output)
        if output and at - shown_at < FRAME_S:
            continue
        shown_at = at
        count = find_count(" ".join(line.rstrip() for line in screen.display)) or count
        rows = tuple(read_row(screen.buffer[number]) for number in range(ROWS))
        yield Frame(at, screen.scrolled, rows, *count)


def run() -> Iterator[tuple[float, bytes]]:
    """Run the command at a pseudo-terminal; yield its redraws and when they came, then b""."""
    program = shutil.which(COMMAND[0], path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        raise SystemExit("record_demo: `sinkstream` must be installed, but is not on the PATH.")
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES=str(ROWS))
        signal.alarm(120)
        os.execv(program, COMMAND)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    output = b""
    while True:
        ready, _, _ = select.select([terminal], [], [], QUIET_S if output else None)
        if not ready:
            yield time.monotonic(), output
            output = b""
            continue
        try:
            output += os.read(terminal, 65536)
        except OSError:  # the program has ended
            break
    _, status = os.waitpid(process, 0)
    if status != 0:
        raise SystemExit(f"record_demo: the command must succeed, but: {output.decode()}")
    yield time.monotonic(), output
    yield time.monotonic(), b""


def find_count(text: str) -> tuple[int, int] | None:
    """Return how many tokens are live and evicted, if a screen says so."""
    found = SUMMARY.search(text) or STATUS.search(text)
    if found is None:
        return None
    live, evicted = (int(count.replace(",", "")) for count in found.groups())
    return live, evicted


def read_row(cells: dict[int, object]) -> Row:
    """Return a row of the terminal, without blanks at its end."""
    row = [cells[column] for column in range(COLUMNS)]
    runs = [
        Run("".join(cell.data for cell in same), *colors)
        for colors, same in groupby(row, key=lambda cell: (name(cell.fg), ground(cell.bg)))
    ]
    while runs and not runs[-1].ground and not runs[-1].text.strip():
        runs.pop()
    if runs and not runs[-1].ground:
        runs[-1] = Run(runs[-1].text.rstrip(), runs[-1].color)
    return tuple(runs)


def name(color: str) -> str:
    """Return the class of a text color."""
    return "" if color == "default" else color


def ground(color: str) -> str:
    """Return the class of a background."""
    return "" if color == "default" else f"on-{color}"


if __name__ == "__main__":
    sys.exit(main())
