"""What `sinkstream info` knows: a loaded model, this machine, and how they fit."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from sinkstream import _build, _core, devices
from sinkstream.checkpoint.open_tensors import open_tensors
from sinkstream.checkpoint.spec import weight_slots
from sinkstream.checkpoint.storage import row_bytes
from sinkstream.cli.processor import huge_pages, instructions, processor_name
from sinkstream.cli.terminal import printable
from sinkstream.model import Model


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The checkpoint. Names and units as in `DecoderSpec`."""

    name: str
    path: str
    family: str
    parameters: int
    block_formats: dict[str, int]
    """Bytes of the file's weights by block format, the largest first."""
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    trained_length: int


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """The context that each sequence keeps."""

    sinks: int
    window: int
    capacity: int
    """Sinks and window together, in tokens."""
    kv_dtype: str
    bytes_per_token: int
    bytes_per_sequence: int


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """The memory of the loaded model."""

    total_bytes: int
    weight_bytes: int
    cache_bytes: int
    """Of all sequences together."""
    scratch_bytes: int
    max_sequences: int


@dataclass(frozen=True, slots=True)
class ProcessorFacts:
    """The CPU, and how much of it this process uses."""

    name: str
    machine: str
    instructions: list[str]
    cores: int
    """Of the machine."""
    usable_cores: int
    """As far as the affinity mask and the CPU quota allow."""
    threads: int
    huge_pages: str | None


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """The GPU, or why there is none; then all other fields are None."""

    problem: str | None = None
    name: str | None = None
    compute_capability: str | None = None
    multiprocessors: int | None = None
    memory_bytes: int | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """The kernels in use, and those available."""

    device: str
    table: str
    forced: str
    """The value of SINKSTREAM_KERNELS; "" if it is not set."""
    dtype: str
    """The type of activations."""
    supported: list[str]
    """The tables that run here, the fastest first."""
    built: list[str]
    """The tables of this build, the fastest first."""
    refused: dict[str, str]
    """Why the system withholds a table that the CPU could run."""
    operations: dict[str, str]
    """The table that runs each operation."""


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """The versions of the package, torch and Python."""

    sinkstream: str
    torch: str
    python: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything, by section; sizes are in bytes."""

    model: ModelFacts
    cache: CacheFacts
    memory: MemoryFacts
    processor: ProcessorFacts
    gpu: GpuFacts
    kernels: KernelFacts
    versions: VersionFacts


def collect(model: Model) -> Facts:
    """Return the facts of a loaded model and of this machine."""
    spec, capacity, runtime = model.spec, model.capacity, model.runtime
    tables = _core.kernel_tables()
    return Facts(
        model=ModelFacts(
            name=display_name(model.path),
            path=model.path,
            family=spec.family,
            parameters=sum(slot.rows * slot.cols for slot in weight_slots(spec)),
            block_formats=block_formats(model.path),
            layers=spec.layers,
            hidden_size=spec.hidden_size,
            intermediate_size=spec.intermediate_size,
            heads=spec.heads,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            vocab_size=spec.vocab_size,
            trained_length=spec.trained_length,
        ),
        cache=CacheFacts(
            sinks=capacity.sinks,
            window=capacity.window,
            capacity=capacity.tokens,
            kv_dtype=runtime["kv_dtype"],
            bytes_per_token=capacity.bytes_per_token,
            bytes_per_sequence=capacity.bytes_per_sequence,
        ),
        memory=MemoryFacts(
            total_bytes=capacity.weight_bytes + capacity.cache_bytes + capacity.scratch_bytes,
            weight_bytes=capacity.weight_bytes,
            cache_bytes=capacity.cache_bytes,
            scratch_bytes=capacity.scratch_bytes,
            max_sequences=capacity.max_sequences,
        ),
        processor=ProcessorFacts(
            name=processor_name(),
            machine=platform.machine(),
            instructions=instructions(),
            cores=os.cpu_count() or 1,
            usable_cores=_core.usable_threads(),
            threads=runtime["threads"],
            huge_pages=huge_pages(),
        ),
        gpu=gpu_facts(),
        kernels=KernelFacts(
            device=runtime["device"],
            table=runtime["kernels"],
            forced=os.environ.get("SINKSTREAM_KERNELS", ""),
            dtype=runtime["dtype"],
            supported=[name for name, is_supported in tables if is_supported],
            built=[name for name, _ in tables],
            refused=_core.kernel_refusals(),
            operations=runtime["served_by"],
        ),
        versions=VersionFacts(
            sinkstream=_build.version(),
            torch=metadata.version("torch"),  # importing it takes a second
            python=platform.python_version(),
        ),
    )


def display_name(path: str) -> str:
    """Return a short name for a checkpoint: that of its file or folder, or org/name."""
    found = Path(path)
    for part in found.parts:  # in the hub's cache: models--org--name/snapshots/<commit>
        if part.startswith("models--") and "snapshots" in found.parts:
            return part.removeprefix("models--").replace("--", "/", 1)
    return printable(os.fsencode(found.name).decode("utf-8", errors="replace"))


def block_formats(path: str) -> dict[str, int]:
    """Return the bytes of a checkpoint's weights by block format, the largest first."""
    opened = open_tensors(path)
    opened.source.close()
    found: dict[str, int] = {}
    for tensor in opened.tensors:
        size = tensor.slot.rows * row_bytes(tensor.storage, tensor.slot.cols)
        found[tensor.storage] = found.get(tensor.storage, 0) + size
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def gpu_facts() -> GpuFacts:
    """Return the GPU's properties, or why there is none."""
    gpu = devices.find_gpu()
    if isinstance(gpu, str):
        return GpuFacts(problem=gpu)
    return GpuFacts(
        name=gpu.name,
        compute_capability=".".join(map(str, gpu.capability)),
        multiprocessors=gpu.multiprocessors,
        memory_bytes=gpu.total_bytes,
        free_bytes=gpu.free_bytes,
    )
