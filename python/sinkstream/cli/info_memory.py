"""The memory that a model would take, from its description.

The arithmetic is that of the native core.

`tests/python/cli/test_info_memory.py` compares it with loaded models.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from sinkstream import _core
from sinkstream.checkpoint.checkpoint import TensorSource
from sinkstream.checkpoint.spec import (
    Attention,
    Block,
    DecoderSpec,
    Dense,
    share_per_token,
    weight_slots,
)
from sinkstream.host import ModelOptions
from sinkstream.loading.default_window import packed_bytes, page_bytes, pages, state_bytes

_SPLIT_ROWS, _MOST_SPLIT_PAGES = 16, 128  # csrc/kernels/attention.h, csrc/runtime/loaded_model.cc
_SCORED_ROWS, _SCORED_BYTES = 32, 8 << 20  # csrc/engine/engine.cc
_NGRAM_BYTES = 4 << 20  # csrc/engine/drafts.h
_SIZE, _WINDOW = 32, 64  # of the small model that `probe` loads


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

    A model of one small layer knows: kernels, types, bytes of a page, tokens of a step. It is
    loaded with the same options, from zeros, which takes milliseconds and hardly any memory.

    Raises:
        InvalidArgument: An option does not fit this machine.
    """
    small_mlp = Dense(_SIZE)
    experts = next((block.experts for block in spec.blocks if block.experts is not None), None)
    if experts is not None:  # their number decides how many tokens of a prompt make a step
        experts = replace(experts, expert=small_mlp, shared_size=0, shared_gate=False)
    attends = next(block for block in spec.blocks if isinstance(block.mixer, Attention))
    block = replace(attends, feed_forward=experts or small_mlp)
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
            bytes_per_token=native.bytes_per_token
            * sum(isinstance(mixer, Attention) for mixer in spec.mixers),
        )
    finally:
        native.close()


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes."""

    weights: int
    weights_per_token: int
    """The bytes of the weights that the forward pass of one token reads: of experts, the chosen."""
    sequence: int
    """The cache of one endless stream."""
    scratch: int


def sizes_of(
    spec: DecoderSpec, tensors: Sequence[TensorSource], options: ModelOptions, probed: Probed
) -> Sizes:
    """Return how much memory a model would take.

    Block formats whose panels are wider than the file's blocks take up to 4 % more than this says.
    """
    read = sum(
        packed_bytes(tensor) * share_per_token(spec, tensor.slot)
        for tensor in tensors
        if spec.tie_embeddings or tensor.slot.name != "embedding"
    )
    held = page_bytes(spec, options.sinks, options.window, probed.bytes_per_token)
    return Sizes(
        weights=sum(map(packed_bytes, tensors)),
        weights_per_token=int(read),
        sequence=held + state_bytes(spec),
        scratch=_scratch(spec, tensors, options, probed),
    )


def largest_window(
    spec: DecoderSpec,
    tensors: Sequence[TensorSource],
    options: ModelOptions,
    probed: Probed,
    available: int,
) -> int:
    """Return the longest window within memory and the trained length; 0 if there is none."""
    weights = sum(map(packed_bytes, tensors))
    low, high = 0, max(0, spec.trained_length - options.sinks)
    while low < high:
        window = (low + high + 1) // 2
        held = page_bytes(spec, options.sinks, window, probed.bytes_per_token)
        cache = options.max_sequences * (held + state_bytes(spec))
        scratch = _scratch(spec, tensors, options.with_window(window), probed)
        if weights + cache + scratch <= available:
            low = window
        else:
            high = window - 1
    return low


def _angles(spec: DecoderSpec) -> int:
    """Return the cosines and sines for a row: its index, a kept row's index, and its rank."""
    pairs = [rope.rotary_dim // 2 for rope in spec.ropes]
    views = dict.fromkeys((attention.window, attention.rope) for attention in spec.attentions)
    by_rank = sum(rope.rotary_dim // 2 for _, rope in views)
    return 2 * (sum(pairs) + max(pairs) + by_rank)


def _has_branch(block: Block) -> bool:
    """Return whether the output of a part of the block is changed before it is added."""
    return block.attention_post_norm or block.mlp_post_norm or block.residual_scale != 1


def _feed_forward(spec: DecoderSpec, block: Block) -> int:
    """Return the numbers that a row has in a feed-forward."""
    experts = block.experts
    if experts is None:
        return 2 * block.mlp.intermediate_size
    inner = max(experts.chosen * experts.expert.intermediate_size, experts.shared_size)
    outputs = (experts.chosen + 1) * spec.hidden_size
    return 2 * inner + outputs + experts.experts + 2 * experts.chosen + 1


def _scratch(
    spec: DecoderSpec,
    tensors: Sequence[TensorSource],
    options: ModelOptions,
    probed: Probed,
) -> int:
    """Return the workspace of one step: activations, split attention, logits, sampling, drafts."""
    rows = probed.prefill_chunk + options.max_sequences
    attentions = spec.attentions
    query = max(each.heads * each.head_dim for each in attentions)
    kv = max(each.kv_heads * each.head_dim for each in attentions)
    # The mixer and the feed-forward of a block use the same memory.
    feed_forward = max(_feed_forward(spec, block) for block in spec.blocks)
    convolution = 4 * spec.hidden_size if state_bytes(spec) else 0
    numbers = 2 * spec.hidden_size + max(4 * query + 2 * kv, convolution, feed_forward)
    numbers += _angles(spec)
    if any(_has_branch(block) for block in spec.blocks):
        numbers += spec.hidden_size
    if any(each.temperature for each in attentions):
        numbers += 1
    widest = max(tensor.slot.cols for tensor in tensors)
    if any(tensor.split is not None and tensor.split.order for tensor in tensors):
        numbers += widest  # inputs in the order of columns
    linear = max(rows + 16, probed.threads) * -(-widest // 64) * 64 * 12
    split = _SPLIT_ROWS * min(pages(options.sinks + options.window), _MOST_SPLIT_PAGES) * 4
    attention = max(
        split * each.heads * (each.head_dim + 16) + probed.threads * 256 * (each.head_dim * 4 + 192)
        for each in attentions
    )
    scored = min(_SCORED_ROWS, max(1, _SCORED_BYTES // (4 * spec.vocab_size)))
    logits = 4 * (options.max_sequences + scored) * spec.vocab_size
    drafts = _NGRAM_BYTES if probed.device == "cpu" else 0
    fixed = 16 * spec.vocab_size + 65536 + 8192
    return 4 * rows * numbers + linear + attention + logits + drafts + fixed
