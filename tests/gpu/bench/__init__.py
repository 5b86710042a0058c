"""Measures every figure with a goal on a GPU, and transformers for comparison.

`python -m tests.gpu.bench` runs the jobs of `sizes.py`, each in a separate process (`job.py`), so
that a kernel that fails or hangs costs only its own figures.
"""
