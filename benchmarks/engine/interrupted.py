"""A program that streams and is interrupted repeatedly; `stop.py` sends the signals.

Prints "streaming" once a stream runs, and for each interrupt two monotonic times: when the program
caught KeyboardInterrupt, and when the engine was idle.
"""

from __future__ import annotations

import signal
import sys
import time

import sinkstream


def main() -> None:
    """Stream until interrupted, as often as the first argument says."""
    rounds, path = int(sys.argv[1]), sys.argv[2] or None
    # Shells make background programs ignore SIGINT, and children inherit that.
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
