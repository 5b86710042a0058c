"""The window of a model that is loaded without one: as long as it was trained for, within memory.

The arithmetic of pages is that of the native core; `tests/python/cli/test_info_memory.py` compares
it with loaded models.
"""

from __future__ import annotations

from collections.abc import Sequence

from sinkstream import devices
from sinkstream.checkpoint.checkpoint import TensorSource
from sinkstream.checkpoint.spec import Attention, DecoderSpec
from sinkstream.errors import InvalidArgument, warn_caller
from sinkstream.host import ModelOptions
from sinkstream.sessions.record import KV_DTYPE_BYTES

PAGE_ROWS = 64  # csrc/kernels/page.h
_PANEL_ROWS = 16  # csrc/kernels/packed_matrix.h
_ALIGNMENT = 64  # csrc/model/weights.cc
_SCALE_BYTES = 4  # of int8, for each token and head
_LANES = 3  # of a state on a CPU; csrc/cache/state_pool.h
LEAST = 4096
"""What a default capacity is never halved below: memory for it is demanded, or the load fails."""
_SHARE = 4  # the caches take at most a quarter of the memory that is free


def choose_window(
    options: ModelOptions, spec: DecoderSpec, tensors: Sequence[TensorSource]
) -> ModelOptions:
    """Choose W if none is given; warn if sinks + window exceed the trained length.

    Raises:
        InvalidArgument: The sinks leave no default window.
    """
    sinks, trained = options.sinks, spec.trained_length
    if options.window == 0:
        capacity = default_capacity(options, spec, tensors, _free_bytes(options))
        if sinks >= capacity:
            raise InvalidArgument(
                f"load: `sinks` must be less than {capacity} if no `window` is given, but is "
                f"{sinks}. Pass `window` as well.",
                param="sinks",
            )
        return options.with_window(capacity - sinks)
    if sinks + options.window > trained:
        warn_caller(
            f"load: sinks + window should not exceed the model's trained length of {trained} "
            f"tokens, but is {sinks + options.window}. Text will degrade once the cache fills."
        )
    return options


def default_capacity(
    options: ModelOptions, spec: DecoderSpec, tensors: Sequence[TensorSource], free: int
) -> int:
    """Return S + W where no window is given.

    It is the trained length if the caches of all sequences then take at most a quarter of the
    memory that the weights leave free. If not, it is half of it, a quarter, and so on, but at least
    4,096 tokens. So it depends on the memory only where that is short, and then in large steps: a
    stored conversation belongs to its capacity.

    Args:
        options: How the model is loaded.
        spec: The model.
        tensors: Its weights as they will be kept.
        free: The device's free memory, in bytes.
    """
    room = (free - sum(map(packed_bytes, tensors))) // _SHARE
    capacity = spec.trained_length
    while capacity // 2 >= LEAST:
        if _cache_bytes(options.with_window(max(1, capacity - options.sinks)), spec) <= room:
            break
        capacity //= 2
    return capacity


def fits(options: ModelOptions, spec: DecoderSpec, tensors: Sequence[TensorSource]) -> bool:
    """Return whether the weights, and the caches of all sequences, fit into the free memory."""
    taken = sum(map(packed_bytes, tensors)) + _cache_bytes(options, spec)
    return taken <= _free_bytes(options)


def _cache_bytes(options: ModelOptions, spec: DecoderSpec) -> int:
    """Return the bytes of the caches of all sequences."""
    per_token = bytes_per_token(spec, options.kv_dtype)
    held = page_bytes(spec, options.sinks, options.window, per_token)
    return options.max_sequences * (held + state_bytes(spec))


def _free_bytes(options: ModelOptions) -> int:
    """Return the free memory of the device that is asked for; 0 if there is no such device."""
    if options.device != "cuda":
        return devices.available_bytes()
    gpu = devices.find_gpu()
    return gpu.free_bytes if isinstance(gpu, devices.Gpu) else 0


def bytes_per_token(spec: DecoderSpec, kv_dtype: str) -> int:
    """Return the bytes of the keys and values of a token in all layers."""
    size = KV_DTYPE_BYTES["float16" if kv_dtype == "auto" else kv_dtype]
    scale = _SCALE_BYTES if kv_dtype == "int8" else 0
    attentions = (mixer for mixer in spec.mixers if isinstance(mixer, Attention))
    return sum(2 * each.kv_heads * (each.head_dim * size + scale) for each in attentions)


def state_bytes(spec: DecoderSpec) -> int:
    """Return the bytes of a sequence's states, all lanes included."""
    sizes = (
        4 * (mixer.conv_size - 1) * spec.hidden_size
        for mixer in spec.mixers
        if not isinstance(mixer, Attention)
    )
    return _LANES * sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)


def pages(capacity: int) -> int:
    """Return the most pages that a sequence holds, as csrc/cache/window.h does."""
    return 2 if capacity < 2 else (capacity - 2) // PAGE_ROWS + 3


def sequence_pages(spec: DecoderSpec, sinks: int, window: int) -> int:
    """Return the pages of all layers of a sequence, as csrc/cache/cache_layers.h does."""
    groups = spec.groups(sinks, window)
    largest = max(group.capacity for group in groups)
    return sum(
        group.layers
        * (pages(largest) if group.capacity == largest else -(-group.window // PAGE_ROWS) + 1)
        for group in groups
    )


def page_bytes(spec: DecoderSpec, sinks: int, window: int, per_token: int) -> int:
    """Return the bytes of these pages, given those of a token in all layers."""
    layers = sum(group.layers for group in spec.groups(sinks, window))
    return sequence_pages(spec, sinks, window) * PAGE_ROWS * per_token // layers


def packed_bytes(tensor: TensorSource) -> int:
    """Return the bytes of a weight in memory."""
    slot = tensor.slot
    if slot.cols == 1:
        size = 4 * slot.rows
    else:
        panels = -(-slot.rows // _PANEL_ROWS)
        size = panels * _PANEL_ROWS * tensor.row_bytes
    return -(-size // _ALIGNMENT) * _ALIGNMENT
