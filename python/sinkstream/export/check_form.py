"""Refuses decoders that llama.cpp would not load, or would compute differently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sinkstream.checkpoint.checkpoint import TensorsOnly
from sinkstream.checkpoint.families import ARCHITECTURES as READERS
from sinkstream.checkpoint.families.architecture import Architecture
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.spec import DecoderSpec
from sinkstream.errors import CheckpointError
from sinkstream.export.rope_metadata import scheme_of

_SCHEMES = ("default", "linear", "yarn")
_BIASED = ("o", "gate", "up", "down")
LOAD_THE_FOLDER = "Load the folder itself, with `quantize`."
"""The remedy for everything that is refused."""


def check_form(
    form: Architecture, opened: TensorsOnly, config: Mapping[str, Any], where: str
) -> None:
    """Check an open folder against what llama.cpp reads for its family.

    Args:
        form: The form of its family.
        opened: The folder.
        config: The content of its config.json.
        where: Its name, for errors.

    Raises:
        CheckpointError: It has something that llama.cpp does not read for this family, or lacks
            something that llama.cpp requires.
    """
    _check_rotation(form, opened.spec, config, where)
    _check_layers(form, opened.spec, where)
    _check_tensors(form, opened, where)


def _check_rotation(
    form: Architecture, spec: DecoderSpec, config: Mapping[str, Any], where: str
) -> None:
    schemes = sorted({*_SCHEMES, *form.schemes})
    scheme = scheme_of(config)[0]
    if any(rope.rotary_dim for rope in spec.ropes) and scheme not in schemes:
        raise CheckpointError(
            f"quantize: {where} must have one of the rotary schemes that llama.cpp supports in "
            f"this family ({', '.join(schemes)}), but has {quoted(scheme)}. {LOAD_THE_FOLDER}"
        )


def _check_layers(form: Architecture, spec: DecoderSpec, where: str) -> None:
    if any(spec.own_windows) and not _has_windows(form, spec):
        layers = "" if form.windows_at is None else f" unless they have {form.windows_at} layers"
        raise CheckpointError(
            f"quantize: {where} must have no sliding-window layers, but has some. llama.cpp "
            f"ignores the windows of models of this family{layers}. {LOAD_THE_FOLDER}"
        )
    if form.heads_fill and spec.heads * spec.head_dim != spec.hidden_size:
        raise CheckpointError(
            f"quantize: the heads of {where} must together be as wide as the hidden size "
            f"{spec.hidden_size}, as llama.cpp assumes for this family, but there are {spec.heads} "
            f"heads of width {spec.head_dim}. {LOAD_THE_FOLDER}"
        )


def _has_windows(form: Architecture, spec: DecoderSpec) -> bool:
    return form.has_windows and form.windows_at in (None, spec.layers)


def _check_tensors(form: Architecture, opened: TensorsOnly, where: str) -> None:
    names = READERS[form.name].gguf_names.of(opened.spec)
    held = [tensor.slot.name for tensor in opened.tensors]
    for slot in held:
        part, _, kind = slot.rpartition(".")[2].partition("_")
        has_bias = kind == "bias" and part in _BIASED and part not in form.biases
        if has_bias or slot in form.ignores:
            raise CheckpointError(
                f"quantize: {where} must not have the tensor {quoted(names.stored(slot))}, but "
                f"does; llama.cpp does not read it for this family. {LOAD_THE_FOLDER}"
            )
    for slot in form.needs:
        if slot not in held:
            raise CheckpointError(
                f"quantize: {where} must have the tensor {quoted(names.stored(slot))}, but "
                f"does not; llama.cpp requires it for this family. {LOAD_THE_FOLDER}"
            )
