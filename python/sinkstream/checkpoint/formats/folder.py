"""Opens a Hugging Face folder: config.json and safetensors now, the text files later.

Nothing in the folder is imported or executed, pickled weights are never read, and fields that name
code to run are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from sinkstream.checkpoint.bounded_file import File, is_there, read_json, read_optional_json
from sinkstream.checkpoint.checkpoint import FolderText, TensorsOnly
from sinkstream.checkpoint.families import find_family
from sinkstream.checkpoint.families.weight_names import WeightNames
from sinkstream.checkpoint.formats.quantization_config import read_quantization
from sinkstream.checkpoint.formats.safetensors_header import read_safetensors_header
from sinkstream.checkpoint.formats.split_tensors import OF_ACTIVATIONS, find_split
from sinkstream.checkpoint.formats.text_config import DecoderConfig, decoder_config
from sinkstream.checkpoint.fused import split_fused
from sinkstream.checkpoint.match_tensors import UNQUANTIZED, match_tensors
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.sampling_defaults import generation_from_config
from sinkstream.checkpoint.spec import DecoderSpec
from sinkstream.checkpoint.tensors import FileSource, TensorEntry
from sinkstream.checkpoint.tied_head import resolve_tie
from sinkstream.errors import CheckpointError, warn_caller

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


def open_folder(folder: Path, headers_only: bool = False) -> TensorsOnly:
    """Open a folder: read its descriptions and headers.

    Tensors are compared only if the config ties the output head, but the folder also has one.

    Args:
        folder: The folder.
        headers_only: Whether to trust the config, without reading tensors.

    Raises:
        CheckpointError: Files are missing or damaged, or the model is not supported.
    """
    config = _read_config(folder)
    model_type = config.decoder.word("model_type")
    family = find_family(model_type, f"{_CONFIG} has {config.decoder.name('model_type')}")
    spec = family.spec_from_config(config.decoder)
    generation = read_optional_json(folder / _GENERATION, _MAX_CONFIG_BYTES)
    quantization = read_quantization(folder, config.whole)
    if quantization is not None and family.folder_names.fused:
        raise CheckpointError(
            f"load: {_CONFIG} must not have `quantization_config` if model_type is "
            f"{quoted(model_type)}, because tensors of this family hold several weights each. Load "
            "a GGUF file of the model."
        )
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
        entries = split_fused(spec, names, held, folder.name)
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
