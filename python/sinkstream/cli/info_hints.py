"""What would make a model faster or smaller on this machine: a pure function of the facts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sinkstream.checkpoint.checkpoint import STORAGE_BLOCKS
from sinkstream.cli.info_facts import Facts

# The instructions that each table needs, as /proc/cpuinfo names them, best table first.
_NEEDS = {
    "amx": {"amx_tile", "amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni"},
    "avx512": {"avx512f", "avx512_bf16", "avx512_vnni", "fma", "f16c"},
    "avx2": {"avx2", "fma", "f16c"},
}
# Whose codes are integers.
_QUANTIZED = {"INT4", "INT8", *(name for name, (count, _) in STORAGE_BLOCKS.items() if count > 1)}
# On the tile unit, int16 decoded SmolLM2 1.6 times as fast as bfloat16, and a model of 0.6 billion
# parameters 1.03 to 1.15 times (docs/decisions/0007-amx-table.md).
_SMALL_PARAMETERS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Hint:
    """One piece of advice: what it is about, and a sentence or two."""

    name: str
    text: str


def hints(facts: Facts) -> list[Hint]:
    """Return all advice that applies, most effective first."""
    if facts.kernels.device != "cpu":
        return list(_cache_type(facts))
    parts = (_faster_kernels, _cores, _activations, _cache_type, _system)
    return [hint for part in parts for hint in part(facts)]


def _faster_kernels(facts: Facts) -> Iterator[Hint]:
    kernels, processor = facts.kernels, facts.processor
    best = kernels.supported[0]
    if kernels.forced and kernels.table != best:
        yield Hint(
            "kernels",
            f"SINKSTREAM_KERNELS={kernels.forced} hides the faster kernel table {best}. Unset it.",
        )
    for name, reason in kernels.refused.items():
        yield Hint("kernels", f"The kernel table {name} cannot be used: {reason}.")
    missing = [
        name
        for name, needed in _NEEDS.items()
        if name not in kernels.built and needed <= set(processor.instructions)
    ]
    if missing:
        yield Hint(
            "kernels",
            f"This build lacks the kernel table {missing[0]}, which this processor can run. "
            "Install a build that has it.",
        )
    elif best == "generic":
        yield Hint(
            "kernels",
            f"No kernel table is optimized for this processor ({processor.machine}); generic is "
            "slow.",
        )


def _cores(facts: Facts) -> Iterator[Hint]:
    processor = facts.processor
    usable, threads = processor.usable_cores, processor.threads
    if usable < processor.cores:
        yield Hint(
            "cores",
            f"This process may use {usable} of {processor.cores} logical CPUs: an affinity mask or "
            "a CPU quota limits it.",
        )
    if threads < usable:
        yield Hint("threads", f"--threads {usable} would use all {usable} logical CPUs.")
    elif threads > usable:
        yield Hint(
            "threads",
            f"{threads} threads compete for {usable} logical {'CPU' if usable == 1 else 'CPUs'}. "
            f"--threads {usable} is faster.",
        )


def _activations(facts: Facts) -> Iterator[Hint]:
    kernels, model = facts.kernels, facts.model
    quantized = sum(
        size for kind, size in model.block_formats.items() if kind in _QUANTIZED
    ) > 0.5 * sum(model.block_formats.values())
    if not quantized or kernels.dtype in ("int8", "int16"):
        return
    if kernels.table == "avx2":
        yield Hint("dtype", f"--dtype int16 is faster than {kernels.dtype} with these weights.")
    elif kernels.table == "amx" and model.parameters <= _SMALL_PARAMETERS:
        yield Hint(
            "dtype",
            "--dtype int16 generates faster with these weights, but reads prompts at about half "
            "the speed.",
        )


def _cache_type(facts: Facts) -> Iterator[Hint]:
    # Whether keys and values are comparable in size to the weights: both are read for every token.
    is_large = 2 * facts.cache.bytes_per_sequence >= facts.memory.weight_bytes
    if is_large and facts.cache.kv_dtype != "int8":
        share = "a quarter" if facts.cache.kv_dtype == "float32" else "half"
        yield Hint(
            "kv_dtype",
            f"--kv-dtype int8 shrinks the cache to about {share}. It rounds keys and values "
            "more coarsely.",
        )


def _system(facts: Facts) -> Iterator[Hint]:
    if facts.processor.huge_pages == "never":
        yield Hint(
            "huge_pages",
            "The system has huge pages disabled, which costs a few percent of speed. To enable "
            "them: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        )
    if facts.gpu.name is not None:
        yield Hint("gpu", f"--device cuda runs the model on the {facts.gpu.name}.")
