"""The GPU that models can run on, if there is one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sinkstream import _core


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, as `sinkstream info` shows it."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    total_bytes: int
    free_bytes: int
    """At the time of `find_gpu()`."""
    driver_compiles: bool
    """Whether the driver compiles the kernels at the first load, because they have no machine code
    for this GPU."""


def cuda_library_path() -> str:
    """Return the path of the library with the CUDA kernels, which need not exist.

    The environment variable SINKSTREAM_CUDA_LIBRARY overrides it: tests set it to a library that
    emulates a GPU on the CPU.
    """
    default = Path(_core.__file__).with_name("_cuda.so")
    return os.environ.get("SINKSTREAM_CUDA_LIBRARY") or str(default)


def find_gpu() -> Gpu | str:
    """Return the GPU, or a sentence explaining why there is none."""
    found = _core.find_gpu(cuda_library_path())
    problem = found.pop("problem")
    return str(problem) if problem else Gpu(**found)
