"""A Hugging Face folder as a `GgufModel`, with llama.cpp's names and order of rows.

What would be written is first read back: a model that GGUF would describe as a different model is
refused.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from sinkstream.checkpoint.checkpoint import (
    FolderText,
    Storage,
    TensorsOnly,
    TensorSource,
    as_float32,
)
from sinkstream.checkpoint.families import ARCHITECTURES as READERS
from sinkstream.checkpoint.families import FAMILIES, GgufDescription
from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.formats.gguf import DIVISORS, LONG_DIVISORS, SHORT_DIVISORS
from sinkstream.checkpoint.match_tensors import UNQUANTIZED, shape_of
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.sampling_defaults import sampling_metadata
from sinkstream.checkpoint.spec import DecoderSpec
from sinkstream.errors import CheckpointError
from sinkstream.export.gguf_model import GgufModel, GgufTensor, encoded, quantized_already
from sinkstream.export.llama_cpp_form import (
    LOAD_THE_FOLDER,
    Divisors,
    Read,
    check_form,
    interleaved_rows,
    rope_metadata,
    stacked_rows,
)
from sinkstream.export.quantized_mixes import is_quantized
from sinkstream.export.tokenizer_metadata import tokenizer_metadata
from sinkstream.loading.open_checkpoint import with_text


def model_from_folder(opened: TensorsOnly) -> GgufModel:
    """Return what to write for an open folder.

    Raises:
        CheckpointError: It is quantized, or llama.cpp has no way to describe its decoder or its
            tokenizer.
    """
    assert isinstance(opened.text, FolderText)
    where, spec, config = opened.text.folder.name, opened.spec, opened.text.config
    form = FAMILIES[spec.family].written
    _check_matrices(opened, where)
    check_form(form, opened, config, where)
    rope, divisors = rope_metadata(config, spec, has_log_multiplier=form.has_log_multiplier)
    found = {**_decoder(spec), **{name: value(spec) for name, value in form.fields.items()}}
    found = {**{name: value for name, value in found.items() if value is not None}, **rope}
    decoder = {f"{form.name}.{name}": value for name, value in found.items()}
    decoder |= {name: value(spec) for name, value in form.bare_fields.items()}
    tensors = _tensors(opened, form)
    names = {tensor.name for tensor in tensors}
    _check_description(spec, form, decoder, names, divisors, where)
    tensors[1:1] = [
        _vector(name, struct.pack(f"<{len(numbers)}f", *numbers))
        for name, numbers in divisors.items()
    ]
    metadata = {
        "general.architecture": form.name,
        "general.type": "model",
        "general.name": where,
        **sampling_metadata(opened.generation),
        **decoder,
        **tokenizer_metadata(with_text(opened).text, spec.vocab_size),
    }
    return GgufModel(
        name=where,
        metadata={name: encoded(value) for name, value in metadata.items()},
        tensors=tuple(tensors),
    )


def _check_matrices(opened: TensorsOnly, where: str) -> None:
    for tensor in opened.tensors:
        if tensor.split is not None or tensor.storage not in UNQUANTIZED:
            raise quantized_already(where, "folder", tensor.tensor, tensor.storage)


def _decoder(spec: DecoderSpec) -> dict[str, Any]:
    """Return the fields that all decoders have."""
    norm = spec.final_norm
    epsilon = "layer_norm_rms_epsilon" if norm.kind == "rms" else "layer_norm_epsilon"
    return {
        "vocab_size": spec.vocab_size,
        "block_count": spec.layers,
        "context_length": spec.trained_length,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": spec.intermediate_size,
        "attention.head_count": spec.heads,
        "attention.head_count_kv": spec.kv_heads,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        f"attention.{epsilon}": norm.eps,
    }


def _check_description(
    spec: DecoderSpec,
    form: Architecture,
    metadata: Mapping[str, Any],
    tensors: set[str],
    divisors: Divisors,
    where: str,
) -> None:
    """Check that reading the file would give the same decoder."""
    read = READERS[form.name].spec_from_gguf(
        GgufDescription(
            metadata=Fields(metadata, "the new file", f"{form.name}."),
            tensors=frozenset(tensors),
            tokens=spec.vocab_size,
            rope_divisors=divisors.get(DIVISORS) or divisors.get(SHORT_DIVISORS),
            long_divisors=divisors.get(LONG_DIVISORS),
        )
    )
    lost = _difference(asdict(spec), asdict(read))
    if lost is not None:
        raise CheckpointError(
            f"quantize: {where} must be a decoder that GGUF's architecture {quoted(form.name)} can "
            f"describe, but `{lost}` would be lost. {LOAD_THE_FOLDER}"
        )


_OF_FILES = ("family", "pairing")  # rows are permuted to fit


def _difference(ours: Any, theirs: Any, path: str = "") -> str | None:
    """Return the path of the first value that differs beyond float32 rounding, or None."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        pairs = [(f"{path}.{name}".lstrip("."), ours[name], theirs[name]) for name in ours]
        pairs = [pair for pair in pairs if pair[0].rpartition(".")[2] not in _OF_FILES]
    elif isinstance(ours, list | tuple) and len(ours) == len(theirs):
        pairs = [(path, *pair) for pair in zip(ours, theirs, strict=True)]
    else:
        both = (type(ours), type(theirs)) == (float, float)
        is_same = abs(ours - theirs) <= 1e-6 * abs(ours) if both else ours == theirs
        return None if is_same else path
    found = (_difference(mine, other, name) for name, mine, other in pairs)
    return next((name for name in found if name is not None), None)


def _tensors(opened: TensorsOnly, form: Architecture) -> list[GgufTensor]:
    """Return the tensors under GGUF's names; weights that GGUF fuses become one tensor."""
    names = READERS[form.name].gguf_names.of(opened.spec)
    parts: dict[str, list[TensorSource]] = {}
    for tensor in opened.tensors:
        parts.setdefault(names.stored(tensor.slot.name), []).append(tensor)
    return [_tensor(opened, name, sources, form) for name, sources in parts.items()]


def _tensor(
    opened: TensorsOnly, name: str, sources: list[TensorSource], form: Architecture
) -> GgufTensor:
    spec, first = opened.spec, sources[0]
    kind = first.slot.name.rpartition(".")[2]
    reads: list[Read] = [partial(opened.source.read_rows, tensor) for tensor in sources]
    rows = sum(tensor.slot.rows for tensor in sources)
    read = stacked_rows(reads, [tensor.slot.rows for tensor in sources])
    if form.pairs_adjoin and kind in ("q", "k", "q_bias", "k_bias"):
        read = interleaved_rows(read, spec.head_dim)
    experts = _experts(sources)
    if first.slot.cols == 1:
        numbers = as_float32(read(0, rows), first.storage)
        content = (numbers + first.added if first.added else numbers).tobytes()
        return _vector(name, content, experts or shape_of(spec, first.slot)[:-1])
    if kind == "shared_gate":  # a vector to llama.cpp
        return _vector(name, as_float32(read(0, rows), first.storage).tobytes())
    shape = (*experts, rows // math.prod(experts), first.slot.cols)
    if not is_quantized(name, shape):
        return GgufTensor(name, shape, "F32", _float32_rows(read, first.storage))
    return GgufTensor(name, shape, first.storage, read)


def _float32_rows(read: Read, storage: Storage) -> Read:
    return lambda begin, end: as_float32(read(begin, end), storage).tobytes()


def _experts(sources: list[TensorSource]) -> tuple[int, ...]:
    """Return the dimension that a tensor of experts has before its rows; others have none."""
    parts = [tensor.slot.name.split(".") for tensor in sources]
    numbers = {part[3] for part in parts if part[2:3] == ["experts"]}
    return (len(numbers),) if numbers else ()


def _vector(name: str, content: bytes, experts: tuple[int, ...] = ()) -> GgufTensor:
    """Return a float32 vector, as llama.cpp stores all vectors; `experts`: one for each."""
    count = len(content) // 4
    shape = (*experts, count // math.prod(experts))
    row = len(content) // math.prod(shape[:-1] or shape)
    return GgufTensor(name, shape, "F32", lambda begin, end: content[row * begin : row * end])
