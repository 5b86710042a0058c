"""What `sinkstream info` knows: a model, from its headers alone, this machine, and how they fit."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

from sinkstream import _build, _core
from sinkstream.checkpoint.checkpoint import Checkpoint, TensorSource
from sinkstream.checkpoint.describe import Description, TypeShare, describe
from sinkstream.checkpoint.open_tensors import open_tensors
from sinkstream.checkpoint.spec import share_per_token, weight_slots
from sinkstream.checkpoint.stores import locate_model
from sinkstream.cli.chat_loop import MOST
from sinkstream.cli.common_options import Loading
from sinkstream.cli.info_memory import (
    Probed,
    Sizes,
    largest_window,
    probe,
    sizes_of,
)
from sinkstream.cli.serve import SERVED
from sinkstream.cli.terminal import printable
from sinkstream.devices import available_bytes, find_gpu, huge_pages, instructions, processor_name
from sinkstream.errors import CheckpointError
from sinkstream.host import ModelOptions
from sinkstream.loading.default_window import choose_window
from sinkstream.loading.load import check_options
from sinkstream.loading.open_checkpoint import rounded, with_text

SEQUENCES = {"chat": MOST, "serve": SERVED}
"""How many sequences `sinkstream chat` and `sinkstream serve` have room for. A stream takes one."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The checkpoint. Names and units as in `DecoderSpec`."""

    name: str
    path: str
    family: str
    parameters: int
    block_formats: dict[str, int]
    """Bytes of the weights by the block format that they are kept in, largest first."""
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    trained_length: int
    quantization: str | None = None
    """The mix of block formats that the file names; otherwise the largest."""
    file_bytes: int = 0
    tokenizer: str | None = None
    has_chat_template: bool = False
    bytes_read_per_token: int = 0
    """The bytes of the weights that the forward pass of one token reads."""
    tensor_types: dict[str, TypeShare] = field(default_factory=dict)
    """All tensors of the files by block type, most bytes first."""
    quantize: str | None = None
    """The block format to which 16-bit and 32-bit matrices are quantized."""
    active_parameters: int = 0
    """The parameters that a token uses: all but those of the experts that it does not choose."""
    experts: int = 0
    """The experts of a layer; 0 if there are none."""
    chosen_experts: int = 0
    """How many of them each token uses."""


@dataclass(frozen=True, slots=True)
class RefusedModel:
    """What is known about a model that cannot be loaded."""

    name: str
    path: str
    family: str | None
    parameters: int
    quantization: str | None
    file_bytes: int
    tokenizer: str | None
    has_chat_template: bool
    tensor_types: dict[str, TypeShare]


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
    rope_changes_above: int | None = None
    """The capacity above which the model has different rotary frequencies (longrope)."""
    has_long_rope: bool = False
    """Whether it has such frequencies."""


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """The memory that the model takes once it is loaded, and the memory available."""

    total_bytes: int
    weight_bytes: int
    cache_bytes: int
    """The bytes of all sequences together."""
    scratch_bytes: int
    max_sequences: int
    available_bytes: int = 0
    """The device's available memory."""
    fits: bool = True
    largest_window: int = 0
    """The longest window within memory and the trained length; 0 if there is none."""
    command_bytes: dict[str, int] = field(default_factory=dict)
    """What commands take with their own numbers of sequences: `SEQUENCES`."""


@dataclass(frozen=True, slots=True)
class ProcessorFacts:
    """The CPU, and how much of it this process uses."""

    name: str
    machine: str
    instructions: list[str]
    cores: int
    """The machine's logical CPUs."""
    usable_cores: int
    """The logical CPUs that the affinity mask and the CPU quota allow."""
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
    """The tables that run here, fastest first."""
    built: list[str]
    """The tables of this build, fastest first."""
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


@dataclass(frozen=True, slots=True)
class Refused:
    """A model that cannot be loaded, and the errors that `load` would raise."""

    model: RefusedModel
    refused: list[str]


def read_facts(loading: Loading, max_sequences: int = 1) -> Facts | Refused:
    """Return the facts of a model and of this machine. No weights are read.

    Raises:
        CheckpointError: There is no such model.
        InvalidArgument: An option is out of range, or does not fit this machine.
    """
    options = check_options(
        device=loading.device,
        dtype=loading.dtype,
        kv_dtype=loading.kv_dtype,
        quantize=loading.quantize,
        sinks=loading.sinks,
        window=loading.window,
        max_sequences=max_sequences,
        threads=loading.threads,
    )
    path = locate_model(loading.model, download=loading.download).absolute()
    name = loading.model or ""
    name = name if name.startswith(("lmstudio:", "ollama:")) else display_name(str(path))
    found = describe(path)
    try:
        checkpoint = _open(path, options)
    except CheckpointError as error:
        return Refused(_refused_model(name, path, found), [str(error)])
    given, options = options, choose_window(options, checkpoint.spec, checkpoint.tensors)
    ropes = checkpoint.spec.ropes
    spec = checkpoint.spec.at_capacity(options.sinks, options.window)
    checkpoint = replace(checkpoint, spec=spec)
    probed = probe(checkpoint.spec, options)
    sizes = sizes_of(checkpoint.spec, checkpoint.tensors, options, probed)
    gpu = gpu_facts()
    available = gpu.free_bytes or 0 if probed.device == "cuda" else available_bytes()
    return Facts(
        model=_model_facts(name, found, checkpoint, sizes, options.quantize),
        cache=CacheFacts(
            sinks=options.sinks,
            window=options.window,
            capacity=options.sinks + options.window,
            kv_dtype=probed.kv_dtype,
            bytes_per_token=probed.bytes_per_token,
            bytes_per_sequence=sizes.sequence,
            rope_changes_above=next((rope.long.above for rope in ropes if rope.long), None),
            has_long_rope=[rope.inverse_frequencies for rope in spec.ropes]
            != [rope.inverse_frequencies for rope in ropes],
        ),
        memory=replace(
            _memory_facts(checkpoint, options, probed, sizes, available),
            command_bytes=_command_bytes(checkpoint, given, probed),
        ),
        processor=ProcessorFacts(
            name=processor_name(),
            machine=platform.machine(),
            instructions=instructions(),
            cores=os.cpu_count() or 1,
            usable_cores=_core.usable_threads(),
            threads=probed.threads,
            huge_pages=huge_pages(),
        ),
        gpu=gpu,
        kernels=_kernel_facts(probed),
        versions=VersionFacts(
            sinkstream=_build.version(),
            torch=metadata.version("torch"),  # importing it takes a second
            python=platform.python_version(),
        ),
    )


def _open(path: Path, options: ModelOptions) -> Checkpoint:
    """Open a checkpoint, with its tokenizer, and close its files."""
    opened = open_tensors(path, headers_only=True)
    try:
        return with_text(rounded(opened, options.quantize))
    finally:
        opened.source.close()


def _model_facts(
    name: str, found: Description, checkpoint: Checkpoint, sizes: Sizes, quantize: str | None
) -> ModelFacts:
    spec = checkpoint.spec
    slots = [(slot, slot.rows * slot.cols) for slot in weight_slots(spec)]
    experts = next((block.experts for block in spec.blocks if block.experts is not None), None)
    return ModelFacts(
        name=name,
        path=checkpoint.path,
        family=spec.family,
        parameters=sum(numbers for _, numbers in slots),
        block_formats=block_formats(checkpoint.tensors),
        layers=spec.layers,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        vocab_size=spec.vocab_size,
        trained_length=spec.trained_length,
        quantization=_shown(found.quantization),
        file_bytes=found.file_bytes,
        tokenizer=_shown(found.tokenizer),
        has_chat_template=checkpoint.text.chat_template is not None,
        bytes_read_per_token=sizes.weights_per_token,
        tensor_types=dict(found.types),
        quantize=quantize,
        active_parameters=int(
            sum(numbers * share_per_token(spec, slot) for slot, numbers in slots)
        ),
        experts=0 if experts is None else experts.experts,
        chosen_experts=0 if experts is None else experts.chosen,
    )


def _refused_model(name: str, path: Path, found: Description) -> RefusedModel:
    return RefusedModel(
        name=name,
        path=str(path),
        family=_shown(found.family),
        parameters=found.parameters,
        quantization=_shown(found.quantization),
        file_bytes=found.file_bytes,
        tokenizer=_shown(found.tokenizer),
        has_chat_template=found.has_chat_template,
        tensor_types=dict(found.types),
    )


def _memory_facts(
    checkpoint: Checkpoint, options: ModelOptions, probed: Probed, sizes: Sizes, available: int
) -> MemoryFacts:
    cache = options.max_sequences * sizes.sequence
    spec, tensors = checkpoint.spec, checkpoint.tensors
    total = sizes.weights + cache + sizes.scratch
    return MemoryFacts(
        total_bytes=total,
        weight_bytes=sizes.weights,
        cache_bytes=cache,
        scratch_bytes=sizes.scratch,
        max_sequences=options.max_sequences,
        available_bytes=available,
        fits=total <= available,
        largest_window=largest_window(spec, tensors, options, probed, available),
    )


def _command_bytes(checkpoint: Checkpoint, options: ModelOptions, probed: Probed) -> dict[str, int]:
    """Return what each command takes; without a given window, it may choose a shorter one."""
    found = {}
    for name, sequences in SEQUENCES.items():
        chosen = replace(options, max_sequences=sequences)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the caller has had them
            chosen = choose_window(chosen, checkpoint.spec, checkpoint.tensors)
        sizes = sizes_of(checkpoint.spec, checkpoint.tensors, chosen, probed)
        found[name] = sizes.weights + sequences * sizes.sequence + sizes.scratch
    return found


def _kernel_facts(probed: Probed) -> KernelFacts:
    tables = _core.kernel_tables()
    return KernelFacts(
        device=probed.device,
        table=probed.kernels,
        forced=os.environ.get("SINKSTREAM_KERNELS", ""),
        dtype=probed.dtype,
        supported=[name for name, is_supported in tables if is_supported],
        built=[name for name, _ in tables],
        refused=_core.kernel_refusals(),
        operations=probed.served_by,
    )


def _shown(text: str | None) -> str | None:
    """Return text from an untrusted file in a form that is safe for a terminal."""
    return None if text is None else printable(text)


def display_name(path: str) -> str:
    """Return a short name for a checkpoint: its file's, its folder's, or org/name."""
    found = Path(path)
    for part in found.parts:  # in the hub's cache: models--org--name/snapshots/<commit>
        if part.startswith("models--") and "snapshots" in found.parts:
            return part.removeprefix("models--").replace("--", "/", 1)
    return printable(os.fsencode(found.name).decode("utf-8", errors="replace"))


def block_formats(tensors: Sequence[TensorSource]) -> dict[str, int]:
    """Return the bytes of a model's weights by block format, largest first."""
    found: dict[str, int] = {}
    for tensor in tensors:
        size = tensor.slot.rows * tensor.row_bytes
        found[tensor.kept] = found.get(tensor.kept, 0) + size
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def gpu_facts() -> GpuFacts:
    """Return the GPU's properties, or why there is none."""
    gpu = find_gpu()
    if isinstance(gpu, str):
        return GpuFacts(problem=gpu)
    return GpuFacts(
        name=gpu.name,
        compute_capability=".".join(map(str, gpu.capability)),
        multiprocessors=gpu.multiprocessors,
        memory_bytes=gpu.total_bytes,
        free_bytes=gpu.free_bytes,
    )
