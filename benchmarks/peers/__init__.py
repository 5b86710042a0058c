"""Engines that `side_by_side_bench.py` runs beside each other, each behind the same few calls.

Every engine lives in a process of its own (`isolated.py`), so that none of them shares threads,
memory or a runtime library with another, and an engine that waits does not disturb the one that
is measured: all of them sleep between calls.
"""
