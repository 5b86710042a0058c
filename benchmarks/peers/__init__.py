"""The engines that `side_by_side_bench.py` compares, all with the interface of `peer.py`.

Every engine runs in its own process (`isolated.py`), so that none shares threads, memory or a
runtime library with another. An engine sleeps between calls and does not disturb the one being
measured.
"""
