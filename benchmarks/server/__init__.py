"""The parts of `server_bench.py`."""
