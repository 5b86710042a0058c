"""A Hugging Face folder as a `GgufModel`, with llama.cpp's names and order of rows.

What would be written is read back before: a model that GGUF would describe as another one is
refused.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial
from typing import Any

from sinkstream.checkpoint.checkpoint import FolderText, TensorsOnly, TensorSource
from sinkstream.checkpoint.families import FAMILIES, GgufDescription
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.formats.gguf import DIVISORS
from sinkstream.checkpoint.match_tensors import UNQUANTIZED
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.sampling_defaults import sampling_metadata
from sinkstream.checkpoint.spec import DecoderSpec
from sinkstream.checkpoint.storage import as_float32
from sinkstream.errors import CheckpointError
from sinkstream.export.gguf_model import GgufModel, GgufTensor, encoded, quantized_already
from sinkstream.export.rope_metadata import rope_metadata
from sinkstream.export.row_order import Read, interleaved_rows, stacked_rows
from sinkstream.open_checkpoint import with_text
from sinkstream.text.tokenizers.to_gguf import tokenizer_metadata

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
}
"""For each family that can be written: the architecture that llama.cpp reads it as."""
_PERMUTED = ("llama",)  # architectures whose files rotate adjacent rows of q and k
_CONVERTER = "Convert the folder with llama.cpp's convert_hf_to_gguf.py."


def model_from_folder(opened: TensorsOnly) -> GgufModel:
    """Return what to write for an open folder.

    Raises:
        CheckpointError: It is quantized, or llama.cpp has no way to describe its decoder or its
            tokenizer.
    """
    assert isinstance(opened.text, FolderText)
    where, spec = opened.text.folder.name, opened.spec
    _check_matrices(opened, where)
    architecture = _architecture(spec, where)
    rope, divisors = rope_metadata(opened.text.config, spec.ropes[0])
    if divisors is not None and architecture != "llama":
        raise CheckpointError(
            f"quantize: {where} must have a rotary scheme that llama.cpp reads in this family, "
            'which are default, linear and yarn, but has "llama3".'
        )
    decoder = {f"{architecture}.{name}": value for name, value in _decoder(spec).items()}
    decoder |= {f"{architecture}.{name}": value for name, value in rope.items()}
    tensors = _tensors(opened, architecture)
    names = {tensor.name for tensor in tensors}
    if divisors is not None:
        tensors.insert(1, _vector(DIVISORS, struct.pack(f"<{len(divisors)}f", *divisors)))
    _check_description(spec, architecture, decoder, names, divisors, where)
    metadata = {
        "general.architecture": architecture,
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


def _architecture(spec: DecoderSpec, where: str) -> str:
    architecture = ARCHITECTURES.get(spec.family)
    if architecture is None:
        raise CheckpointError(
            f"quantize: the folder {where} must be of a family that is written as GGUF, which are "
            f"{', '.join(sorted(ARCHITECTURES))}, but is {quoted(spec.family)}. {_CONVERTER}"
        )
    if any(spec.own_windows) and architecture != "phi3":
        raise CheckpointError(
            f"quantize: {where} must have no windows of single layers, which llama.cpp would not "
            "apply in this family, but has them. Load the folder itself, with `quantize`."
        )
    attention = spec.blocks[0].attention
    if architecture == "qwen3" and (attention.qkv_bias or attention.output_bias):
        raise CheckpointError(
            f"quantize: {where} must have no attention biases, which llama.cpp does not read in "
            "this family, but has them."
        )
    return architecture


def _decoder(spec: DecoderSpec) -> dict[str, Any]:
    found: dict[str, Any] = {
        "vocab_size": spec.vocab_size,
        "block_count": spec.layers,
        "context_length": spec.trained_length,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": spec.intermediate_size,
        "attention.head_count": spec.heads,
        "attention.head_count_kv": spec.kv_heads,
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        "attention.layer_norm_rms_epsilon": spec.final_norm.eps,
        "rope.dimension_count": spec.head_dim,
    }
    if spec.family == "phi3":
        found["attention.sliding_window"] = max(spec.own_windows, default=0)
    return found


def _check_description(
    spec: DecoderSpec,
    architecture: str,
    metadata: Mapping[str, Any],
    tensors: set[str],
    divisors: tuple[float, ...] | None,
    where: str,
) -> None:
    """Check that the decoder comes out as it is when the file is read."""
    read = FAMILIES[architecture].spec_from_gguf(
        GgufDescription(
            metadata=Fields(metadata, "the new file", f"{architecture}."),
            tensors=frozenset(tensors),
            tokens=spec.vocab_size,
            rope_divisors=divisors,
        )
    )
    lost = _difference(spec.as_dict(), read.as_dict())
    if lost is not None:
        raise CheckpointError(
            f"quantize: {where} must be a decoder that GGUF's {quoted(architecture)} describes, "
            f"but `{lost}` would be lost. {_CONVERTER}"
        )


_OF_FILES = ("family", "pairing")  # rows are permuted to fit


def _difference(ours: Any, theirs: Any, path: str = "") -> str | None:
    """Return the path of the first value that differs by more than float32 rounds; None if none."""
    if isinstance(ours, dict):
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


def _tensors(opened: TensorsOnly, architecture: str) -> list[GgufTensor]:
    """Return the tensors under GGUF's names; weights that GGUF fuses become one."""
    names = FAMILIES[architecture].gguf_names
    parts: dict[str, list[TensorSource]] = {}
    for tensor in opened.tensors:
        parts.setdefault(names.tensor(tensor.slot.name).partition("[")[0], []).append(tensor)
    is_permuted = architecture in _PERMUTED
    return [_tensor(opened, name, sources, is_permuted) for name, sources in parts.items()]


def _tensor(
    opened: TensorsOnly, name: str, sources: list[TensorSource], is_permuted: bool
) -> GgufTensor:
    spec, first = opened.spec, sources[0]
    kind = first.slot.name.rpartition(".")[2].partition("_")[0]
    reads: list[Read] = [partial(opened.source.read_rows, tensor) for tensor in sources]
    read = stacked_rows(reads, [tensor.slot.rows for tensor in sources])
    if is_permuted and kind in ("q", "k") and not first.slot.name.endswith("norm"):
        read = interleaved_rows(read, spec.head_dim)
    if first.slot.cols == 1:
        return _vector(name, as_float32(read(0, first.slot.rows), first.storage).tobytes())
    rows = sum(tensor.slot.rows for tensor in sources)
    return GgufTensor(name, (rows, first.slot.cols), first.storage, read)


def _vector(name: str, content: bytes) -> GgufTensor:
    """Return a vector of float32, as llama.cpp stores all of them."""
    count = len(content) // 4
    return GgufTensor(name, (count,), "F32", lambda begin, end: content[4 * begin : 4 * end])
