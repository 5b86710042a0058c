"""A program that ends while its model streams; `stop.py` waits for its end.

Its argument is "unread", or "thread": a daemon thread reads the stream. Its last statement prints
the monotonic time.
"""

from __future__ import annotations

import sys
import threading
import time

import sinkstream

model = sinkstream.load(sys.argv[2] or None, window=252, max_sequences=1)
stream = model.stream([3, 4, 5], ignore_eos=True)
next(stream)
if sys.argv[1] == "thread":
    threading.Thread(target=list, args=(stream,), daemon=True).start()
    time.sleep(0.05)
print(time.monotonic(), flush=True)
