"""Measures every figure that has a goal on a GPU, and what transformers does beside it.

`python -m tests.gpu.bench` goes through the jobs of `sizes.py`. Each is a process of its own
(`job.py`), so that a kernel that fails, or one that never ends, takes its own figures and no
others.
"""
