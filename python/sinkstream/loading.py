"""`load()`: from a checkpoint to a model that is ready to stream."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Literal, NoReturn

from sinkstream import _core, devices
from sinkstream.checkpoint.checkpoint import Checkpoint, TensorsOnly, row_bytes
from sinkstream.checkpoint.open import open_tensors
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError, InvalidArgument, warn_caller
from sinkstream.model import Model, ModelOptions
from sinkstream.observe import logs
from sinkstream.opening import with_text
from sinkstream.request.checks import as_choice, as_int
from sinkstream.text.tokenizers.token_bytes import TokenBytes, token_bytes

DType = Literal["auto", "float32", "bfloat16", "int16"]
KvDType = Literal["auto", "float32", "float16", "bfloat16", "int8"]

# Between two looks at the reading of weights: often enough for Ctrl-C and for whoever watches.
_LOOK_S = 0.05

# The window that is taken where none is given: as long as most uses need, and small enough that
# the cache stays a fraction of the weights.
_DEFAULT_CAPACITY = 4096


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    device: str = "auto",
    dtype: DType = "auto",
    kv_dtype: KvDType = "auto",
    sinks: int = 4,
    window: int | None = None,
    max_sequences: int = 2,
    prefill_chunk: int | None = None,
    threads: int | None = None,
    revision: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Model:
    """Load a model and start its generation thread. All memory it will ever use is taken here.

    Args:
        path: A GGUF file, a Hugging Face folder, or a name (`"smollm2"`, `"org/name"`). None means
            the environment variable SINKSTREAM_MODEL, and without it `"smollm2"`.
        device: `"cpu"`, `"cuda"` (the first GPU that is visible), or `"auto"`, which is the
            processor.
        dtype: What activations are rounded to before they are multiplied with weights:
            `"float32"` (not at all), `"bfloat16"`, `"int16"` (beside weights of 8 and 4 bits: 16
            bits, with one scale for 32 numbers), or `"auto"`, which takes what this processor
            multiplies fastest. A GPU multiplies bfloat16. Sums are always float32.
        kv_dtype: The type of cached keys and values: `"float32"`, `"float16"`, `"bfloat16"`,
            `"int8"` (about half of float16's bytes, with a scale for each token and head, and
            about twice bfloat16's error), or `"auto"`, which is float16.
        sinks: S, the first tokens of a text, which stay in the cache for ever; 0: a plain window.
        window: W, the last tokens, the current one included. None means the trained length or
            4,096, whichever is smaller, less the sinks.
        max_sequences: Streams that run at the same time; each has its own fixed cache.
        prefill_chunk: Tokens of a prompt that are read in one step. It changes no result.
        threads: Threads that compute, the generation thread included. None takes what the
            affinity mask and the CPU quota allow; with more, a warning.
        revision: The revision of a checkpoint that is named `"org/name"`.
        progress: Called with (bytes read, bytes in all) while weights are read.

    Returns:
        The model. Close it, or use it as a context manager, to give its memory back early.

    Raises:
        CheckpointError: The checkpoint is missing, damaged, or of an unknown kind.
        InvalidArgument: An argument is out of range.
        CapacityError: The system does not give the memory.
    """
    device = as_choice("load", "device", device, ("auto", "cpu", "cuda"))
    dtype = as_choice("load", "dtype", dtype, ("auto", "bfloat16", "float32", "int16"))
    kv_dtype = as_choice(
        "load", "kv_dtype", kv_dtype, ("auto", "bfloat16", "float16", "float32", "int8")
    )
    sinks = as_int("load", "sinks", sinks, 0, 1 << 20)
    if window is not None:
        window = as_int("load", "window", window, 1, 1 << 24)
    options = ModelOptions(
        dtype=dtype,
        kv_dtype=kv_dtype,
        sinks=sinks,
        window=0,
        max_sequences=as_int("load", "max_sequences", max_sequences, 1, 1 << 16),
        prefill_chunk=0
        if prefill_chunk is None
        else as_int("load", "prefill_chunk", prefill_chunk, 1, 1 << 16),
        threads=0 if threads is None else _choose_threads(threads),
        kernels=os.environ.get("SINKSTREAM_KERNELS", ""),
        device=device,
        cuda_library=devices.cuda_library_path(),
    )
    opened = open_tensors(path, revision=revision)
    with ExitStack() as at_the_end:
        at_the_end.callback(opened.source.close)
        options = options.with_window(_choose_window(opened.spec.trained_length, sinks, window))
        builder = _core.ModelBuilder(opened.spec.as_dict())
        at_the_end.callback(builder.stop_reading)  # before its files are closed
        _begin_to_read(builder, opened, options.threads or _core.usable_threads())
        # The tokenizer is built meanwhile.
        checkpoint = with_text(opened)
        del opened  # and the header's lists with it
        tokens = _token_table(checkpoint)
        checkpoint = replace(checkpoint, text=replace(checkpoint.text, vocabulary={}))
        _finish_reading(builder, checkpoint, progress)
        model = Model(builder, checkpoint, options, tokens)
        _log_loaded(model)
        return model


def _log_loaded(model: Model) -> None:
    """Log what a model takes and runs on."""
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


def _choose_window(trained: int, sinks: int, window: int | None) -> int:
    """Return W, and warn where sinks and window exceed what the model was trained on."""
    if window is None:
        window = min(trained, _DEFAULT_CAPACITY) - sinks
        if window < 1:
            raise InvalidArgument(
                f"load: `sinks` must leave room for a window in {min(trained, _DEFAULT_CAPACITY)} "
                f"tokens, but is {sinks}. Give `window` as well.",
                param="sinks",
            )
    elif sinks + window > trained:
        warn_caller(
            f"load: sinks + window should not exceed the {trained} tokens that the model was "
            f"trained on, but is {sinks + window}. Text will degrade once the cache fills."
        )
    return window


def _choose_threads(threads: int) -> int:
    """Return the number that was asked for, and warn where there are fewer cores."""
    threads, cores = as_int("load", "threads", threads, 1, 1024), _core.usable_threads()
    if threads > cores:
        warn_caller(
            f"load: `threads` should not exceed the {cores} that this process has cores for, but "
            f"is {threads}. They will take turns and wait for each other."
        )
    return threads


def _token_table(checkpoint: Checkpoint) -> TokenBytes | None:
    text = checkpoint.text
    if text.tokenizer is None:
        return None
    return token_bytes(text.tokenizer, checkpoint.spec.vocab_size, text.vocabulary)


def _begin_to_read(builder: _core.ModelBuilder, opened: TensorsOnly, threads: int) -> None:
    """Have every tensor read once, natively and in the background, into packed weights."""
    extents = []
    for tensor in opened.tensors:
        slot, extent = tensor.slot, opened.source.extent(tensor)
        builder.declare(slot.name, tensor.storage, slot.rows, slot.cols)
        extents.append((slot.name, extent.descriptor, extent.offset))
    builder.read(extents, threads)


def _finish_reading(
    builder: _core.ModelBuilder,
    checkpoint: Checkpoint,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Wait until all weights are read, and say meanwhile how many of their bytes are."""
    total = sum(
        tensor.slot.rows * row_bytes(tensor.storage, tensor.slot.cols)
        for tensor in checkpoint.tensors
    )
    has_ended = False
    while not has_ended:
        has_ended = builder.wait(_LOOK_S)
        if progress is not None:
            progress(builder.bytes_read, total)
    if builder.unread is not None:
        _raise_unread(checkpoint, *builder.unread)


def _raise_unread(checkpoint: Checkpoint, slot: str, begin: int, end: int) -> NoReturn:
    """Say what is wrong with rows that a file did not give: reading them again tells."""
    tensor = next(tensor for tensor in checkpoint.tensors if tensor.slot.name == slot)
    checkpoint.source.read_rows(tensor, begin, end)
    raise CheckpointError(
        f"load: rows [{begin}, {end}) of tensor {quoted(tensor.tensor)} could not be read, and "
        "then could. The file has changed meanwhile. Load it again."
    )
