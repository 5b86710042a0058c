"""`load()` turns a checkpoint into a model that is ready to stream."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal, NoReturn

from sinkstream import _core, devices
from sinkstream.checkpoint.checkpoint import Checkpoint, TensorsOnly, TensorSource
from sinkstream.checkpoint.open_tensors import open_tensors
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError, InvalidArgument, warn_caller
from sinkstream.host import ModelOptions
from sinkstream.loading.default_window import choose_window
from sinkstream.loading.open_checkpoint import Quantize, as_quantization, rounded, with_text
from sinkstream.model import Model
from sinkstream.observe import logs
from sinkstream.request.checks import as_bool, as_choice, as_int
from sinkstream.request.signature import suggests_keywords
from sinkstream.streams.live import Progress, progress_function
from sinkstream.text.tokenizers.token_bytes import TokenBytes, token_bytes

DType = Literal["auto", "float32", "bfloat16", "int16", "int8"]
KvDType = Literal["auto", "float32", "float16", "bfloat16", "int8"]

# How often to poll while weights are read: often enough for Ctrl-C and for a progress bar.
_POLL_S = 0.05
_MOST_THREADS = 16  # for each logical CPU

DEFAULT_SEQUENCES = 2


@suggests_keywords
def load(
    path: str | os.PathLike[str] | None = None,
    *,
    device: str = "auto",
    dtype: DType = "auto",
    kv_dtype: KvDType = "auto",
    quantize: Quantize | None = None,
    sinks: int = 4,
    window: int | None = None,
    max_sequences: int = DEFAULT_SEQUENCES,
    prefill_chunk: int | None = None,
    speculation: int | None = None,
    threads: int | None = None,
    revision: str | None = None,
    download: bool = False,
    progress: Progress | bool | None = None,
) -> Model:
    """Load a model and start its generation thread.

    The memory for all streams and sessions is allocated here. `new_cache` allocates its own.

    Args:
        path: A GGUF file (if split, any of its parts), a Hugging Face folder, or a name:
            `"smollm2"`, `"ollama:llama3.2"`, `"lmstudio:publisher/repository"`, or `"org/name"` in
            the Hugging Face cache; `list_models()` lists those on this machine. A folder named
            `org/name` takes precedence. If None, the environment variable SINKSTREAM_MODEL, or else
            `"smollm2"`.
        device: `"cpu"`, `"cuda"` (the first visible GPU), or `"auto"`, which is the CPU.
        dtype: The type of activations in matrix products. `"float32"` does not round them;
            `"bfloat16"` does. `"int16"` and `"int8"` round them to integers with one scale for
            every 32 values if the weights are integers of at most 8 bits; with other weights
            `"int16"` is the same as float32, and `"int8"` the same as bfloat16. `"auto"` never
            rounds more than bfloat16 does. A GPU supports only bfloat16. Sums are always float32.
        kv_dtype: The type of cached keys and values: `"float32"` (not on a GPU), `"float16"`,
            `"bfloat16"`, `"int8"` (about half the bytes of float16, with a scale for each token and
            head, and about twice the error of bfloat16), or `"auto"`, which is float16.
        quantize: The block format to which 16-bit and 32-bit matrices are quantized while they are
            read, so that memory never holds the originals: `"int8"` (Q8_0, about half the bytes
            of float16), `"int4"` (Q4_0, about a quarter), or a GGUF block format such as
            `"q4_k"`, `"q6_k"` or `"q8_0"`. The embedding and the output matrix get Q8_0. K types
            have blocks of 256 columns; a matrix whose number of columns is not a multiple of 256
            gets a type with blocks of 32. These stay as they are: vectors, matrices whose number of
            columns is not a multiple of 32, and matrices that are already quantized in the file.
        sinks: S, the number of tokens at the start of the text that always stay in the cache. 0
            gives a plain sliding window.
        window: W: how many of the most recent tokens stay in the cache, including the current one.
            If None, the trained length minus the sinks, if the caches of all sequences then take at
            most a quarter of the memory that the weights leave free. If not, half of that length, a
            quarter, and so on, but not below 4,096 tokens.
        max_sequences: Number of streams that can run at the same time. Each has a fixed cache of
            its own; an open session holds one between turns as well.
        prefill_chunk: Prompt tokens processed in one step. If None, 256, up to 1,024 for a model
            with experts, of which each token uses only a few, and 1,024 on a GPU. It does not
            change any result.
        speculation: How many guessed tokens a step verifies for each stream. If None, as many as
            make it faster; 0 for none; another number, all that are guessed up to it. Guesses come
            from what was said before, and change no token of a reply. A step has at most 32 rows
            with logits, fewer for a large vocabulary. With recurrent layers nothing is guessed, and
            on a GPU nothing if this is None.
        threads: Compute threads, including the generation thread. If None, as many as the
            affinity mask and the CPU quota allow; a larger number causes a warning.
        revision: The branch, tag or commit of a checkpoint named `"org/name"`.
        download: Whether to fetch `"org/name"` from the Hugging Face hub with the package
            huggingface_hub. Only missing or changed files are fetched. Nothing else uses the
            network.
        progress: Called with (bytes read, total bytes) while weights are read. True shows a bar in
            a notebook, and a line on a terminal.

    Returns:
        The model. Close it, or use it as a context manager, to free its memory early.

    Raises:
        CheckpointError: The checkpoint is missing, damaged, or unsupported.
        InvalidArgument: An argument is out of range.
        TypeError: An argument has the wrong type.
        CapacityError: The system cannot provide the memory.
        DeviceError: The GPU or its driver has failed.
    """
    options = check_options(
        device=device,
        dtype=dtype,
        kv_dtype=kv_dtype,
        quantize=quantize,
        sinks=sinks,
        window=window,
        max_sequences=max_sequences,
        prefill_chunk=prefill_chunk,
        speculation=speculation,
        threads=threads,
    )
    download = as_bool("load", "download", download)
    report = progress_function("load", progress, "Loading", in_percent=True)
    opened = open_tensors(path, revision=revision, download=download)
    with ExitStack() as at_the_end:
        at_the_end.callback(opened.source.close)
        opened = rounded(opened, options.quantize)
        options = choose_window(options, opened.spec, opened.tensors)
        spec = opened.spec.at_capacity(options.sinks, options.window)
        opened = replace(opened, spec=spec)
        if options.device == "cuda":
            _log_compilation()
        builder = _core.ModelBuilder(opened.spec.as_dict())
        at_the_end.callback(builder.stop_reading)  # before its files are closed
        _begin_to_read(builder, opened, options.threads or _core.usable_threads())
        # Build the tokenizer while the weights are read.
        checkpoint = with_text(opened)
        del opened  # frees the lists of the header
        tokens = _token_table(checkpoint)
        checkpoint = replace(checkpoint, text=replace(checkpoint.text, vocabulary={}))
        _finish_reading(builder, checkpoint, report)
        model = Model(builder, checkpoint, options, tokens)
        _log_loaded(model)
        return model


def check_options(
    *,
    device: str = "auto",
    dtype: str = "auto",
    kv_dtype: str = "auto",
    quantize: str | None = None,
    sinks: int = 4,
    window: int | None = None,
    max_sequences: int = DEFAULT_SEQUENCES,
    prefill_chunk: int | None = None,
    speculation: int | None = None,
    threads: int | None = None,
) -> ModelOptions:
    """Check the arguments of `load`, and return them. If no window is given, it is 0.

    Raises:
        InvalidArgument: One is out of range.
    """
    return ModelOptions(
        device=as_choice("load", "device", device, ("auto", "cpu", "cuda")),
        dtype=as_choice("load", "dtype", dtype, ("auto", "bfloat16", "float32", "int16", "int8")),
        kv_dtype=as_choice(
            "load", "kv_dtype", kv_dtype, ("auto", "bfloat16", "float16", "float32", "int8")
        ),
        quantize=as_quantization(quantize),
        sinks=as_int("load", "sinks", sinks, 0, 1 << 20),
        window=0 if window is None else as_int("load", "window", window, 1, 1 << 24),
        max_sequences=as_int("load", "max_sequences", max_sequences, 1, 1 << 16),
        prefill_chunk=0
        if prefill_chunk is None
        else as_int("load", "prefill_chunk", prefill_chunk, 1, 1 << 16),
        speculation=None
        if speculation is None
        else as_int("load", "speculation", speculation, 0, 63),
        threads=0 if threads is None else _choose_threads(threads),
        kernels=os.environ.get("SINKSTREAM_KERNELS", ""),
        cuda_library=devices.cuda_library_path(),
    )


def _log_compilation() -> None:
    """Log that the driver has to compile the kernels first, if it has to."""
    if not logs.logger.isEnabledFor(logging.INFO):
        return
    gpu = devices.find_gpu()
    if isinstance(gpu, devices.Gpu) and gpu.driver_compiles:
        major, minor = gpu.capability
        logs.logger.info(
            "load: this build has no machine code for %s (compute capability %d.%d): the driver "
            "compiles the kernels now, which may take a minute, and keeps them for the next load",
            gpu.name,
            major,
            minor,
        )


def _log_loaded(model: Model) -> None:
    """Log the memory of a model and the kernels that serve it."""
    if not logs.logger.isEnabledFor(logging.INFO):
        return
    capacity, runtime = model.capacity, model.runtime
    logs.logger.info(
        "load: %s (%s): %d bytes of weights, %d of cache, %d of scratch; %d sequences of "
        "%d sinks + %d window; %s kernels, %d threads",
        Path(model.path).name,
        model.spec.family,
        capacity.weight_bytes,
        capacity.cache_bytes,
        capacity.scratch_bytes,
        capacity.max_sequences,
        capacity.sinks,
        capacity.window,
        runtime["kernels"],
        runtime["threads"],
    )


def _choose_threads(threads: int) -> int:
    """Return the requested number; warn if there are fewer logical CPUs, and refuse far more."""
    threads, usable = as_int("load", "threads", threads, 1, 1024), _core.usable_threads()
    if threads > (most := _MOST_THREADS * usable):
        raise InvalidArgument(
            f"load: `threads` must be at most {most}, {_MOST_THREADS} for each of the {usable} "
            f"logical CPUs that this process may use, but is {threads}. They would wait for each "
            "other most of the time.",
            param="threads",
        )
    if threads > usable:
        warn_caller(
            f"load: `threads` should not exceed the {usable} logical CPUs that this process may "
            f"use, but is {threads}. The threads will compete for them."
        )
    return threads


def _token_table(checkpoint: Checkpoint) -> TokenBytes | None:
    text = checkpoint.text
    if text.tokenizer is None:
        return None
    return token_bytes(text.tokenizer, checkpoint.spec.vocab_size, text.vocabulary)


def _begin_to_read(builder: _core.ModelBuilder, opened: TensorsOnly, threads: int) -> None:
    """Start reading every tensor once into packed weights, in a native background thread."""
    extents = []
    for tensor in opened.tensors:
        _declare(builder, tensor)
        tensor_extents = [
            (extent.descriptor, extent.offset, extent.run_bytes, extent.stride_bytes)
            for extent in opened.source.extents(tensor)
        ]
        extents.append((tensor.slot.name, tensor_extents))
    builder.read(extents, threads)


def _declare(builder: _core.ModelBuilder, tensor: TensorSource) -> None:
    slot, split = tensor.slot, tensor.split
    if split is None:
        builder.declare(
            slot.name,
            tensor.storage,
            tensor.kept,
            slot.rows,
            slot.cols,
            tensor.added,
            tensor.is_transposed,
        )
        return
    builder.declare_split(
        slot.name,
        layout=split.layout,
        storage=tensor.storage,
        scale_type=split.scale_type,
        group=split.group,
        scale_rows=split.scale_rows,
        has_zero_points=len(split.tensors) == 3,
        zero_point=split.zero_point,
        rows=slot.rows,
        cols=slot.cols,
        order=split.order,
    )


def _finish_reading(
    builder: _core.ModelBuilder,
    checkpoint: Checkpoint | TensorsOnly,
    progress: Progress | None,
) -> None:
    """Wait until all weights are read, and report progress meanwhile."""
    total = sum(tensor.file_bytes for tensor in checkpoint.tensors)
    has_ended = False
    while not has_ended:
        has_ended = builder.wait(_POLL_S)
        if progress is not None:
            progress(builder.bytes_read, total)
    if builder.unread is not None:
        _raise_unread(checkpoint, *builder.unread)


def _raise_unread(
    checkpoint: Checkpoint | TensorsOnly, slot: str, begin: int, end: int
) -> NoReturn:
    """Raise the error for rows that could not be read, by reading them again."""
    tensor = next(tensor for tensor in checkpoint.tensors if tensor.slot.name == slot)
    checkpoint.source.read_rows(tensor, begin, end)
    raise CheckpointError(
        f"load: rows [{begin}, {end}) of tensor {quoted(tensor.tensor)} could not be read at "
        "first, but could be read later. The file is changing. Load it again."
    )
