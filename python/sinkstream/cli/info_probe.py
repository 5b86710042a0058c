"""What only a loaded model knows, from a model of one small layer: kernels, types, bytes of a page.

It is loaded with the same options, from zeros, which takes milliseconds and hardly any memory.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace

from sinkstream import _core
from sinkstream.checkpoint.spec import DecoderSpec, weight_slots
from sinkstream.host import ModelOptions

_SIZE = 32
_WINDOW = 64


@dataclass(frozen=True, slots=True)
class Probed:
    """How a model would run here."""

    device: str
    kernels: str
    served_by: dict[str, str]
    dtype: str
    kv_dtype: str
    threads: int
    prefill_chunk: int
    bytes_per_token: int
    """Keys and values of one live token in all layers."""


def probe(spec: DecoderSpec, options: ModelOptions) -> Probed:
    """Return how a model of this description would run with these options.

    Raises:
        InvalidArgument: An option does not fit this machine.
    """
    block = spec.blocks[0]
    block = replace(block, feed_forward=replace(block.dense, intermediate_size=_SIZE))
    small = replace(spec, vocab_size=_SIZE, hidden_size=_SIZE, blocks=(block,), block_of_layer=(0,))
    builder = _core.ModelBuilder(small.as_dict())
    zeros = os.open("/dev/zero", os.O_RDONLY | os.O_CLOEXEC)
    try:
        slots = weight_slots(small)
        for slot in slots:
            builder.declare(slot.name, "F32", "F32", slot.rows, slot.cols)
        builder.read([(slot.name, [(zeros, 0, 0, 0)]) for slot in slots], 1)
        while not builder.wait(1.0):
            pass
    finally:
        builder.stop_reading()
        os.close(zeros)
    chosen = replace(options, sinks=0, window=_WINDOW, max_sequences=1)
    native = _core.Model(builder, asdict(chosen), None, [])
    try:
        return Probed(
            device="cuda" if native.is_on_gpu else "cpu",
            kernels=native.kernels,
            served_by=dict(native.served_by),
            dtype=native.dtype,
            kv_dtype=native.kv_dtype,
            threads=native.threads,
            prefill_chunk=native.prefill_chunk,
            bytes_per_token=native.bytes_per_token * spec.layers,
        )
    finally:
        native.close()
