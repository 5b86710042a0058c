"""A program that streams and is interrupted again and again; `stop.py` presses Ctrl-C.

Prints "streaming" when a stream is under way, and for each interrupt two monotonic times: when the
program had its KeyboardInterrupt, and when the engine was idle.
"""

from __future__ import annotations

import signal
import sys
import time

import sinkstream


def main() -> None:
    """Stream until interrupted, so many times."""
    rounds, path = int(sys.argv[1]), sys.argv[2] or None
    # A shell makes programs in the background ignore it, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with sinkstream.load(path, window=252, max_sequences=1) as model:
        for _ in range(rounds):
            try:
                for number, _ in enumerate(model.stream([3, 4, 5], ignore_eos=True)):
                    if number == 2:
                        print("streaming", flush=True)
            except KeyboardInterrupt:
                caught = time.monotonic()
            while model.stats()["running"]:
                time.sleep(0.0005)
            print(caught, time.monotonic(), flush=True)


if __name__ == "__main__":
    main()
