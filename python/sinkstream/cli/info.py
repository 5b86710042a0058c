"""`sinkstream info`: a model's memory, and the kernels that run it on this machine."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from sinkstream import _build, _core, devices
from sinkstream.cli import options
from sinkstream.cli.loading import load_model
from sinkstream.cli.terminal import is_terminal
from sinkstream.model import Model

# The instruction sets that a kernel table may need, by the names of /proc/cpuinfo.
_INSTRUCTIONS = (
    "avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16",
    "asimd", "asimddp", "bf16", "i8mm", "sve",
)  # fmt: skip

Facts = dict[str, dict[str, object]]


@options.takes_bundles
def info(
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object.")] = False,
    *,
    loading: options.Loading,
) -> int:
    """Show the model, its cache, the CPU, and which kernel runs each operation."""
    with load_model(loading) as loaded:
        facts = collect(loaded)
    if as_json:
        sys.stdout.write(json.dumps(facts, indent=2) + "\n")
    else:
        write(facts)
    return 0


def collect(model: Model) -> Facts:
    """Return all facts by section; sizes are in bytes."""
    spec, capacity, runtime = model.spec, model.capacity, model.runtime
    import torch

    return {
        "model": {
            "path": model.path,
            "family": spec.family,
            "layers": spec.layers,
            "hidden size": spec.hidden_size,
            "feed-forward size": spec.intermediate_size,
            "query heads": spec.heads,
            "key and value heads": spec.kv_heads,
            "head size": spec.head_dim,
            "vocabulary": spec.vocab_size,
            "trained length": spec.trained_length,
            "weight bytes": capacity.weight_bytes,
        },
        "cache": {
            "sinks": capacity.sinks,
            "window": capacity.window,
            "capacity": capacity.tokens,
            "type": runtime["kv_dtype"],
            "bytes per token": capacity.bytes_per_token,
            "bytes per sequence": capacity.bytes_per_sequence,
            "scratch bytes": capacity.scratch_bytes,
        },
        "processor": {
            "name": processor_name(),
            "instructions": " ".join(instructions()),
            "threads": runtime["threads"],
        },
        "gpu": gpu_facts(),
        "kernels": {
            "tables here": " ".join(name for name, here in _core.kernel_tables() if here),
            "tables of this build": " ".join(name for name, _ in _core.kernel_tables()),
            **{f"{name} is refused": reason for name, reason in _core.kernel_refusals().items()},
            "activations": runtime["dtype"],
            **runtime["served_by"],
        },
        "versions": {
            "sinkstream": _build.version(),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def gpu_facts() -> dict[str, object]:
    """Return the GPU's properties, or why there is none."""
    gpu = devices.find_gpu()
    if isinstance(gpu, str):
        return {"none": gpu}
    return {
        "name": gpu.name,
        "compute capability": ".".join(map(str, gpu.capability)),
        "multiprocessors": gpu.multiprocessors,
        "memory bytes": gpu.total_bytes,
        "free bytes": gpu.free_bytes,
    }


def cpuinfo(field: str) -> str:
    """Return a field of the first processor in /proc/cpuinfo; "" if it is missing."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""


def processor_name() -> str:
    """Return the CPU's name with its family and model, which some names leave unclear."""
    name = cpuinfo("model name") or platform.machine()
    family, number = cpuinfo("cpu family"), cpuinfo("model")
    return f"{name} (family {family}, model {number})" if family else name


def instructions() -> list[str]:
    """Return the known instruction sets that the CPU has."""
    found = (cpuinfo("flags") or cpuinfo("Features")).split()
    return [name for name in _INSTRUCTIONS if name in found]


def shown(name: str, value: object) -> str:
    """Format a value for people: sizes with a unit, counts with separators."""
    if isinstance(value, int):
        return f"{decimal(value)} ({value:,})" if "bytes" in name else f"{value:,}"
    return str(value)


def write(facts: Facts) -> None:
    """Write tables to a terminal, or `section: name: value` lines elsewhere."""
    console = Console(highlight=False, markup=False, emoji=False)
    for section, entries in facts.items():
        rows = [(name, shown(name, value)) for name, value in entries.items()]
        if not is_terminal(sys.stdout):
            sys.stdout.writelines(f"{section}: {name}: {value}\n" for name, value in rows)
            continue
        table = Table(title=section, title_justify="left", show_header=False)
        table.add_column(style="cyan")
        table.add_column(overflow="fold")
        for row in rows:
            table.add_row(*row)
        console.print(table)
