"""Threads that hold the GIL whenever they can; as a script, until standard input ends.

python benchmarks/engine/spin.py 4
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def spinning(count: int) -> Iterator[None]:
    """Run `count` threads that loop without doing anything."""
    done = threading.Event()

    def spin() -> None:
        while not done.is_set():
            pass

    threads = [threading.Thread(target=spin) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    with spinning(int(sys.argv[1])):
        print("spinning", flush=True)
        sys.stdin.read()
