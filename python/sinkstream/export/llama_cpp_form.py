"""A folder's decoder as llama.cpp reads it: rotary schemes, order of rows, what it refuses."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sinkstream.checkpoint.checkpoint import TensorsOnly
from sinkstream.checkpoint.families import ARCHITECTURES as READERS
from sinkstream.checkpoint.families.architecture import Architecture, base_of, rotating_ropes
from sinkstream.checkpoint.fields import Fields
from sinkstream.checkpoint.formats.gguf import DIVISORS, LONG_DIVISORS, SHORT_DIVISORS
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.rope import default_frequencies, yarn_attention_factor
from sinkstream.checkpoint.spec import DecoderSpec, RopeSpec
from sinkstream.errors import CheckpointError

_SCHEMES = ("default", "linear", "yarn")
_BIASED = ("o", "gate", "up", "down")
LOAD_THE_FOLDER = "Load the folder itself, with `quantize`."
"""The remedy for everything that is refused."""
_ORIGINAL = "original_max_position_embeddings"
_LENGTH = "rope.scaling.original_context_length"

Divisors = dict[str, tuple[float, ...]]
"""Tensors of numbers by which frequencies are divided, by name."""

Read = Callable[[int, int], bytes]
"""Returns rows [begin, end)."""


def check_form(
    form: Architecture, opened: TensorsOnly, config: Mapping[str, Any], where: str
) -> None:
    """Check an open folder against what llama.cpp reads, and computes as we do, for its family.

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


def scheme_of(config: Mapping[str, Any]) -> tuple[str, Fields]:
    """Return the name of a config's rotary scheme, and its fields.

    If layers with windows have a scheme of their own, the scheme of the others is returned.
    """
    fields = Fields(config, "config.json")
    scaling = fields.group("rope_scaling") or fields.group("rope_parameters")
    if scaling is not None and scaling.has("full_attention"):
        scaling = scaling.group("full_attention")
    scaling = scaling or Fields({}, fields.where)
    name = scaling.value("rope_type") or scaling.value("type") or "default"
    return "longrope" if name == "su" else name, scaling


def rope_metadata(
    config: Mapping[str, Any], spec: DecoderSpec, *, has_log_multiplier: bool = False
) -> tuple[dict[str, Any], Divisors]:
    """Return the fields after the architecture's prefix, and the tensors of divisors.

    The scheme of config.json has already been checked. For some families, llama.cpp reads YaRN's
    second multiplier, the logarithmic one.
    """
    local, other = rotating_ropes(spec)
    rope = other or local
    if rope is None:
        return {}, {}
    fields = Fields(config, "config.json")
    scheme, scaling = scheme_of(config)
    factor = float(scaling.value("factor") or 1.0)
    base = _base(fields, scaling, rope, factor if scheme == "linear" else 1.0)
    found: dict[str, Any] = {"rope.freq_base": base, "rope.dimension_count": rope.rotary_dim}
    if fields.has(_ORIGINAL):
        found[_LENGTH] = fields.value(_ORIGINAL)
    if scheme == "linear":
        found |= {"rope.scaling.type": scheme, "rope.scaling.factor": factor}
    if scaling.has("alpha"):
        found |= {"rope.scaling.type": "none", "rope.scaling.factor": 1.0}
        found[_LENGTH] = spec.trained_length
    if scheme == "yarn":
        original = fields.value(_ORIGINAL) or scaling.value(_ORIGINAL) or spec.trained_length
        found |= {"rope.scaling.type": scheme, _LENGTH: original}
        factor = float(scaling.value("factor") or max(spec.trained_length / original, 1.0))
        found |= _yarn(scaling, rope, factor, has_log_multiplier)
    if scheme == "llama3":
        return found, {DIVISORS: _divisors(base, rope.inverse_frequencies)}
    if rope.long is not None:
        found |= {_LENGTH: rope.long.above, "rope.scaling.attn_factor": rope.attention_factor}
        return found, {
            LONG_DIVISORS: _divisors(base, rope.long.inverse_frequencies),
            SHORT_DIVISORS: _divisors(base, rope.inverse_frequencies),
        }
    return found, {}


def _base(fields: Fields, scaling: Fields, rope: RopeSpec, factor: float) -> float:
    """Return the base, which a config may give under another name or leave to its family."""
    stated = scaling.value("rope_theta") or fields.value("rope_theta")
    if scaling.has("alpha"):  # a larger base than the one that is stated
        stated = None
    unscaled = [frequency * factor for frequency in rope.inverse_frequencies]
    return float(stated or base_of(unscaled))


def _yarn(
    scaling: Fields, rope: RopeSpec, factor: float, has_log_multiplier: bool
) -> dict[str, Any]:
    found = {"rope.scaling.factor": factor}
    usual = yarn_attention_factor(factor)
    if has_log_multiplier and scaling.value("mscale_all_dim"):
        multiplier = float(scaling.value("mscale_all_dim"))
        found["rope.scaling.yarn_log_multiplier"] = multiplier
        usual /= yarn_attention_factor(factor, multiplier)
    found["rope.scaling.attn_factor"] = rope.attention_factor / usual
    for name in ("beta_fast", "beta_slow"):
        if scaling.has(name):
            found[f"rope.scaling.yarn_{name}"] = float(scaling.value(name))
    return found


def _divisors(base: float, frequencies: Sequence[float]) -> tuple[float, ...]:
    plain = default_frequencies(base, 2 * len(frequencies))
    return tuple(
        _float32(frequency / slowed) for frequency, slowed in zip(plain, frequencies, strict=True)
    )


def _float32(number: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", number))[0])


def interleaved_rows(read: Read, head_dim: int) -> Read:
    """Return a reader of queries or keys whose rotated pairs are adjacent.

    Row 2i of a head is its row i, row 2i + 1 its row i + head_dim/2.
    """

    def permuted(begin: int, end: int) -> bytes:
        first, last = begin // head_dim * head_dim, -(-end // head_dim) * head_dim  # whole heads
        content = read(first, last)
        row = len(content) // (last - first)
        found = bytearray()
        for to in range(begin, end):
            head, rest = divmod(to, head_dim)
            start = (head * head_dim + rest // 2 + rest % 2 * (head_dim // 2) - first) * row
            found += content[start : start + row]
        return bytes(found)

    return permuted


def stacked_rows(parts: Sequence[Read], counts: Sequence[int]) -> Read:
    """Return a reader of several matrices, one after another, and of the rows that each has."""

    def read(begin: int, end: int) -> bytes:
        found, first = bytearray(), 0
        for part, count in zip(parts, counts, strict=True):
            low, high = max(begin - first, 0), min(end - first, count)
            if low < high:
                found += part(low, high)
            first += count
        return bytes(found)

    return read
