"""Opens a Hugging Face folder: config.json and safetensors now, the text files later.

Nothing in the folder is imported or executed, pickled weights are never read, and fields that name
code to run are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sinkstream.checkpoint.bounded_file import File, is_there, read_json, read_optional_json
from sinkstream.checkpoint.checkpoint import (
    STORAGE_BLOCKS,
    FileSource,
    FolderText,
    TensorEntry,
    TensorsOnly,
    as_float32,
)
from sinkstream.checkpoint.families import Family, find_family
from sinkstream.checkpoint.families.sizes import with_xielu
from sinkstream.checkpoint.families.weight_names import WeightNames
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.formats.quantization_config import FolderQuantization, read_quantization
from sinkstream.checkpoint.formats.safetensors_header import read_safetensors_header
from sinkstream.checkpoint.formats.split_tensors import OF_ACTIVATIONS, find_split
from sinkstream.checkpoint.fused_tensors import split_fused
from sinkstream.checkpoint.match_tensors import UNQUANTIZED, match_tensors
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.sampling_defaults import generation_from_config
from sinkstream.checkpoint.spec import DecoderSpec
from sinkstream.errors import CheckpointError, warn_caller

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_CONFIG = "config.json"
_ADAPTER = "adapter_config.json"
_GENERATION = "generation_config.json"
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_MAX_CONFIG_BYTES = 1 << 20
_MAX_INDEX_BYTES = 16 << 20
_MAX_SHARDS = 1024
_SHARD_NAME = re.compile(r"[^/\\\0]+\.safetensors")
_CODE_FIELDS = ("auto_map", "custom_", "_attn_implementation")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_TEXT, _TIE = "text_config", "tie_word_embeddings"
_PIECE = 1 << 20  # numbers of two tensors compared at a time


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The parts of a config.json that describe the decoder and its text."""

    whole: Fields
    """All of it."""
    decoder: Fields
    """The decoder's fields."""
    merged: Mapping[str, Any]
    """The fields of the file and, where it does not give them, the decoder's."""
    states_tie: bool
    """Whether it says that the logits use the embedding, or that they do not."""


def open_folder(folder: Path, headers_only: bool = False) -> TensorsOnly:
    """Open a folder: read its descriptions and headers.

    Tensors are compared only if the config ties the output head, but the folder also has one; never
    if `headers_only`.

    Raises:
        CheckpointError: Files are missing or damaged, or the model is not supported.
    """
    config = _read_config(folder)
    model_type = config.decoder.word("model_type")
    family = find_family(model_type, f"{_CONFIG} has {config.decoder.name('model_type')}")
    spec = family.spec_from_config(config.decoder)
    generation = read_optional_json(folder / _GENERATION, _MAX_CONFIG_BYTES)
    quantization = read_quantization(folder, config.whole)
    _check_quantization(family, quantization)
    weight_map, held = _open_weights(folder)
    try:
        names = family.folder_names.of(spec).in_checkpoint(held)
        spec, held = resolve_tie(
            spec,
            names,
            held,
            folder.name,
            is_stated=config.states_tie,
            compares=not headers_only,
        )
        spec = _with_activations(spec, family, names, held, folder.name)
        block = None if quantization is None else quantization.block
        entries = split_fused(spec, names, held, folder.name, block)
        tensors = match_tensors(
            spec,
            names,
            entries,
            UNQUANTIZED,
            _unused(spec, names, entries),
            folder.name,
            find_split=lambda tensor, slot: find_split(quantization, tensor, slot, entries),
        )
        _check_index(weight_map, held)
        return TensorsOnly(
            path=str(folder),
            spec=spec,
            tensors=tensors,
            source=FileSource(held, entries),
            generation=generation_from_config(generation, _GENERATION),
            text=FolderText(folder, config.merged, generation),
        )
    except BaseException:
        FileSource(held).close()
        raise


def _with_activations(
    spec: DecoderSpec,
    family: Family,
    names: WeightNames,
    entries: Mapping[str, TensorEntry],
    where: str,
) -> DecoderSpec:
    """Read the numbers of each layer's activation, the only tensors that a spec depends on."""
    if not family.xielu:
        return spec
    numbers = []
    for layer in range(spec.layers):
        of_layer = []
        for part in family.xielu:
            name = names.layer_prefix.format(layer) + part
            entry = entries.get(name)
            if entry is None or entry.kind not in UNQUANTIZED or entry.shape not in ((), (1,)):
                found = "is missing" if entry is None else f"has shape {list(entry.shape)} and type"
                kind = "" if entry is None else f" {entry.kind}"
                raise CheckpointError(
                    f"load: {where}: tensor {quoted(name)} must be one number of type "
                    f"{', '.join(UNQUANTIZED)}, but {found}{kind}."
                )
            of_layer.append(float(_numbers(entry, 0, 1)[0]))
        numbers.append(of_layer)
    return with_xielu(spec, numbers)


def _check_quantization(family: Family, quantization: FolderQuantization | None) -> None:
    names, kind = family.folder_names, None if quantization is None else quantization.kind
    if kind in (None, "mxfp4" if names.has_mxfp4 else None) or not names.is_fused:
        return
    rule = 'have the `quant_method` "mxfp4" in' if names.has_mxfp4 else "not have"
    raise CheckpointError(
        f"load: {_CONFIG} must {rule} `quantization_config` if model_type is "
        f"{quoted(family.name)}, because tensors of this family hold several weights each. "
        "Load a GGUF file of the model."
    )


def _read_config(folder: Path) -> DecoderConfig:
    if not is_there(folder / _CONFIG):
        is_adapter = is_there(folder / _ADAPTER)
        hint = " It holds a LoRA adapter: merge that into its model first." if is_adapter else ""
        raise CheckpointError(
            f"load: folder {quoted(folder.name)} must hold {_CONFIG} or a GGUF file, but does not."
            f"{hint}"
        )
    config = read_json(folder / _CONFIG, _MAX_CONFIG_BYTES)
    found = decoder_config(config, _CONFIG)
    for name, value in found.merged.items():
        if name.startswith(_CODE_FIELDS) and not isinstance(value, bool):
            raise CheckpointError(
                f"load: {_CONFIG} must not name code to run, but has the field {quoted(name)}. "
                "Remove it if the model does not need its own code."
            )
    return found


def decoder_config(config: Mapping[str, Any], where: str) -> DecoderConfig:
    """Return the fields that describe the decoder.

    In a larger model, its own `tie_word_embeddings` decides, as in transformers, rather than the
    one in `text_config`. If it is absent, transformers has a default for each model, all of which
    agree with the tensors.

    Raises:
        CheckpointError: The larger model's fields are of the wrong type, or it is not a decoder.
    """
    whole = Fields(config, where)
    states_tie = whole.has(_TIE)
    text = whole.group(_TEXT)
    if text is None:
        return DecoderConfig(whole, whole, config, states_tie)
    whole.must_be("is_encoder_decoder", False)
    if whole.value("model_type") == "paligemma":  # whose config.json does not say it
        reason = "Tokens of a prompt attend to later ones in this model."
        raise whole.error("model_type", "be that of a causal model", remedy=reason)
    nested = {**config[_TEXT], _TIE: whole.flag(_TIE, True)}
    decoder = Fields(
        {f"{_TEXT}.{name}": value for name, value in nested.items()}, where, f"{_TEXT}."
    )
    return DecoderConfig(whole, decoder, {**nested, **config}, states_tie)


def _unused(spec: DecoderSpec, names: WeightNames, entries: Mapping[str, TensorEntry]) -> set[str]:
    """Return the names of redundant tensors: a tied head, and scales of activations."""
    unused = {name for name in entries if name.endswith(OF_ACTIVATIONS)}
    if spec.tie_embeddings:
        unused.add(names.tensor("output"))
    return unused


def _open_weights(folder: Path) -> tuple[dict[str, str], Mapping[str, TensorEntry]]:
    """Open the file or the shards, and merge their headers.

    Returns:
        The content of the index, if there is one, and the tensors by name.
    """
    weight_map: dict[str, str] = {}
    if is_there(folder / _SINGLE):
        shards = [_SINGLE]
    elif is_there(folder / _INDEX):
        weight_map = _read_index(folder)
        shards = sorted(set(weight_map.values()))
    else:
        is_pickled = any(any(folder.glob(pattern)) for pattern in _PICKLED)
        hint = " Pickled weights are never read: convert them to safetensors." if is_pickled else ""
        raise CheckpointError(
            f"load: folder {quoted(folder.name)} must hold {_SINGLE} or {_INDEX}, but does not."
            f"{hint}"
        )
    files: list[File] = []
    entries: dict[str, TensorEntry] = {}
    try:
        for shard in shards:
            files.append(File(folder / shard))
            for name, entry in read_safetensors_header(files[-1]).items():
                if name in entries:
                    raise CheckpointError(
                        f"load: tensor {quoted(name)} is both in {entries[name].file.name} and in "
                        f"{shard}."
                    )
                entries[name] = entry
    except BaseException:
        for file in files:
            file.close()
        raise
    return weight_map, entries


def _read_index(folder: Path) -> dict[str, str]:
    """Return the file name of each tensor; each is a plain name inside the folder."""
    weight_map = read_json(folder / _INDEX, _MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"load: {_INDEX}: `weight_map` must name the file of each tensor, but is "
            f"{quoted(weight_map)}."
        )
    for shard in weight_map.values():
        if not isinstance(shard, str) or _SHARD_NAME.fullmatch(shard) is None:
            raise CheckpointError(
                f"load: {_INDEX}: a shard must be the plain name of a safetensors file in the "
                f"folder, but is {quoted(shard)}."
            )
    if len(set(weight_map.values())) > _MAX_SHARDS:
        raise CheckpointError(
            f"load: {_INDEX} must name at most {_MAX_SHARDS} shards, but names "
            f"{len(set(weight_map.values()))}."
        )
    return weight_map


def _check_index(weight_map: Mapping[str, str], entries: Mapping[str, TensorEntry]) -> None:
    """Check the index of a folder that has every tensor that the decoder needs."""
    for name, shard in weight_map.items():
        if name in entries and entries[name].file.name != shard:
            raise CheckpointError(
                f"load: {_INDEX} says that tensor {quoted(name)} is in {shard}, but it is not."
            )
    absent = [quoted(name) for name in weight_map if name not in entries]
    if absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        warn_caller(
            f"load: {_INDEX} should name only tensors that its files hold, but names {absent[0]}"
            f"{more}. The model does not need the missing tensors."
        )


def resolve_tie(
    spec: DecoderSpec,
    names: WeightNames,
    entries: Mapping[str, TensorEntry],
    where: str,
    *,
    is_stated: bool = True,
    compares: bool = True,
) -> tuple[DecoderSpec, Mapping[str, TensorEntry]]:
    """Return the description and tensors of the model that transformers would compute.

    A head that differs from the embedding is used even if `tie_word_embeddings` is true: merging
    adapters creates such a head and leaves the flag unchanged. In a tied pair, either tensor may be
    absent.

    If config.json states the tie, a head that differs is worth a warning. If `compares` is False,
    the tensors are not read: they count as equal if that is stated.
    """
    embedding, head = (names.tensor(slot) for slot in ("embedding", "output"))
    if not spec.tie_embeddings or head not in entries:
        return spec, entries
    if embedding not in entries:
        return spec, {**entries, embedding: entries[head]}
    if is_stated if not compares else _are_equal(entries[embedding], entries[head]):
        return spec, entries
    if is_stated:
        warn_caller(
            f"load: {where}: `tie_word_embeddings` should be false if tensor {head} exists and "
            f"differs from {embedding}, but is true. The model uses {head}."
        )
    return replace(spec, tie_embeddings=False), entries


def _are_equal(one: TensorEntry, other: TensorEntry) -> bool:
    """Compare two tensors, number by number, up to the first difference."""
    import numpy as np

    if one.shape != other.shape or not {one.kind, other.kind} <= set(UNQUANTIZED):
        return False
    count = int(np.prod(one.shape, dtype=np.int64))
    return all(
        np.array_equal(_numbers(one, begin, count), _numbers(other, begin, count))
        for begin in range(0, count, _PIECE)
    )


def _numbers(entry: TensorEntry, begin: int, count: int) -> npt.NDArray[np.float32]:
    """Read the next numbers of a tensor with `count` numbers."""
    size = STORAGE_BLOCKS[entry.kind][1]
    length = min(_PIECE, count - begin) * size
    content = entry.file.read(entry.offset + begin * size, length, f'tensor "{entry.name}"')
    return as_float32(content, entry.kind)
