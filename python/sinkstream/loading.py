"""`load()`: from a checkpoint to a model that is ready to stream."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Literal

from sinkstream import _core, logs
from sinkstream.checkpoint import open_checkpoint
from sinkstream.checkpoint.checkpoint import Checkpoint, row_bytes
from sinkstream.errors import CheckpointError, InvalidArgument
from sinkstream.model import Model, ModelOptions
from sinkstream.numbers import as_choice, as_int
from sinkstream.text.token_bytes import TokenBytes, token_bytes

DType = Literal["auto", "float32", "bfloat16", "int16"]
KvDType = Literal["auto", "float32", "float16", "bfloat16", "int8"]

# Bytes of a weight that are in memory beside its packed form while it is loaded: enough for fast
# reads, little beside any model.
_READ_BYTES = 4 << 20

# The window that is taken where none is given: as long as most uses need, and small enough that
# the cache stays a fraction of the weights.
_DEFAULT_CAPACITY = 4096


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    device: str = "auto",
    dtype: DType = "auto",
    quantize: None = None,
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
        device: `"cpu"`, or `"auto"`, which takes the best that this build supports.
        dtype: What activations are rounded to before they are multiplied with weights:
            `"float32"` (not at all), `"bfloat16"`, `"int16"` (beside weights of 8 and 4 bits: 16
            bits, with one scale for 32 numbers), or `"auto"`, which takes what this processor
            multiplies fastest. Sums are always float32.
        quantize: None: weights stay in the type of the file.
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
    if device == "cuda":
        raise InvalidArgument(
            'load: `device` must be one of "auto", "cpu", but is "cuda": this build has no CUDA '
            "kernels.",
            param="device",
        )
    as_choice("load", "device", device, ("auto", "cpu"))
    if quantize is not None:
        raise InvalidArgument(
            f"load: `quantize` must be None, but is {quantize!r}. Weights stay in the file's type.",
            param="quantize",
        )
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
    )
    checkpoint = open_checkpoint(path, revision=revision)
    try:
        options = options.with_window(_choose_window(checkpoint, sinks, window))
        tokens = _token_table(checkpoint)  # first: what it takes for a moment is free again below
        builder = _read_weights(checkpoint, progress)
        model = Model(builder, checkpoint, options, tokens)
        logs.model_loaded(model)
        return model
    finally:
        checkpoint.source.close()


def _choose_window(checkpoint: Checkpoint, sinks: int, window: int | None) -> int:
    """Return W, and warn where sinks and window exceed what the model was trained on."""
    trained = checkpoint.spec.trained_length
    if window is None:
        window = min(trained, _DEFAULT_CAPACITY) - sinks
        if window < 1:
            raise InvalidArgument(
                f"load: `sinks` must leave room for a window in {min(trained, _DEFAULT_CAPACITY)} "
                f"tokens, but is {sinks}. Give `window` as well.",
                param="sinks",
            )
    elif sinks + window > trained:
        warnings.warn(
            f"load: sinks + window should not exceed the {trained} tokens that the model was "
            f"trained on, but is {sinks + window}. Text will degrade once the cache fills.",
            stacklevel=3,
        )
    return window


def _choose_threads(threads: int) -> int:
    """Return the number that was asked for, and warn where there are fewer cores."""
    threads, cores = as_int("load", "threads", threads, 1, 1024), _core.usable_threads()
    if threads > cores:
        warnings.warn(
            f"load: `threads` should not exceed the {cores} that this process has cores for, but "
            f"is {threads}. They will take turns and wait for each other.",
            stacklevel=3,
        )
    return threads


def _token_table(checkpoint: Checkpoint) -> TokenBytes | None:
    tokenizer = checkpoint.text.tokenizer
    return None if tokenizer is None else token_bytes(tokenizer, checkpoint.spec.vocab_size)


def _read_weights(
    checkpoint: Checkpoint, progress: Callable[[int, int], None] | None
) -> _core.ModelBuilder:
    """Read every tensor once, piece by piece, into packed weights."""
    builder = _core.ModelBuilder(checkpoint.spec.as_dict())
    total = 0
    for tensor in checkpoint.tensors:
        slot = tensor.slot
        builder.declare(slot.name, tensor.storage, slot.rows, slot.cols)
        total += slot.rows * row_bytes(tensor.storage, slot.cols)
    builder.allocate()
    done = 0
    for tensor in checkpoint.tensors:
        slot = tensor.slot
        size = row_bytes(tensor.storage, slot.cols)
        # Whole panels of 16 rows, as the native side wants them.
        step = max(1, _READ_BYTES // (16 * size)) * 16
        for begin in range(0, slot.rows, step):
            end = min(begin + step, slot.rows)
            piece = checkpoint.source.read_rows(tensor, begin, end)
            if len(piece) != (end - begin) * size:
                raise CheckpointError(
                    f'load: weight "{tensor.tensor}" must have {(end - begin) * size} bytes at row '
                    f"{begin}, but the file gives {len(piece)}. It has changed since it was opened."
                )
            builder.write(slot.name, piece, end - begin)
            done += len(piece)
            if progress is not None:
                progress(done, total)
    return builder
