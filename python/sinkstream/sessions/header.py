"""The header of a saved session: a safetensors header with the session's numbers as strings.

Does not handle tensor data; docs/reference/session_file.md describes the format byte by byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sinkstream import _build
from sinkstream.checkpoint.bounded_file import parse_json
from sinkstream.checkpoint.formats.safetensors_header import MAX_HEADER_BYTES, SafetensorsHeader
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError, InvalidArgument
from sinkstream.sessions.record import (
    KV_DTYPE_BYTES,
    SessionModel,
    SessionRecord,
    SessionState,
    snapshot_dims,
)

FORMAT = "sinkstream session"
VERSION = "1"
LAYER_WINDOWS_VERSION = "2"
"""The version for models that have layers with their own windows, which version 1 lacks."""
LAYER_SHAPES_VERSION = "3"
"""The version for models whose layers differ in the size of their keys, or have states."""
CONVERSATION_VERSION = "4"
"""The version with a conversation, for any model."""

_KEYS_OF_VERSIONS = {
    VERSION: frozenset[str](),
    LAYER_WINDOWS_VERSION: frozenset({"layer_windows"}),
    LAYER_SHAPES_VERSION: frozenset({"layer_windows", "layer_shapes"}),
    CONVERSATION_VERSION: frozenset({"layer_windows", "layer_shapes"}),
}

# The name of each cache type in safetensors.
_KINDS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8"}

_MODEL_TEXTS = ("fingerprint", "family", "rope", "kv_dtype")
# The minimum of each number; the maximum is that of an endless sequence.
_MODEL_NUMBERS = {
    "vocab_size": 1, "layers": 1, "kv_heads": 1, "head_dim": 1, "sinks": 0, "window": 1,
}  # fmt: skip
_STATE_NUMBERS = {"length": 0, "begin": 0, "turns": 0, "system_tokens": 0}
_MAX_NUMBER = 1 << 59
_KEYS = frozenset(
    {"format", "format_version", "checksum", "created_by", "fields"}
    | {*_MODEL_TEXTS, *_MODEL_NUMBERS, *_STATE_NUMBERS}
)

CHECKSUM_DIGITS = 64
_NO_CHECKSUM = "0" * CHECKSUM_DIGITS
# Precedes the checksum. Occurs once: quotes inside JSON strings are escaped.
_CHECKSUM_MARK = b'"checksum":"'


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """A tensor that a session file must contain."""

    kind: str
    shape: tuple[int, ...]
    item_bytes: int

    @property
    def nbytes(self) -> int:
        """Return the tensor's size in bytes."""
        count = self.item_bytes
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True, slots=True)
class SessionHeader:
    """The contents of a session file's header."""

    model: SessionModel
    state: SessionState
    fields: dict[str, str | int]
    created_by: str
    checksum: str
    plan: dict[str, TensorPlan]


def plan_tensors(
    model: SessionModel,
    state: SessionState,
    pending: int,
    conversation: tuple[int, int] | None = None,
) -> dict[str, TensorPlan]:
    """List the tensors of a session file in writing order.

    Args:
        model: The model's properties.
        state: The session's numbers.
        pending: The number of pending ids.
        conversation: The number of earlier ids, and the bytes of the conversation; None without.
    """
    kind, item_bytes = _KINDS[model.kv_dtype], KV_DTYPE_BYTES[model.kv_dtype]
    plan: dict[str, TensorPlan] = {}
    groups = snapshot_dims(model, state)
    for group, dims in enumerate(groups):
        plan[group_tensor(model, "keys_values", group)] = TensorPlan(kind, dims, item_bytes)
    for group, dims in enumerate(groups if model.kv_dtype == "int8" else []):
        plan[group_tensor(model, "scales", group)] = TensorPlan("F32", dims[:-1], 4)
    if model.state_bytes:
        plan["states"] = TensorPlan("U8", (model.state_bytes,), 1)
    plan["token_ids"] = TensorPlan("I32", (state.live(model.sinks, model.window),), 4)
    plan["pending_ids"] = TensorPlan("I32", (pending,), 4)
    if conversation is not None:
        plan["earlier_ids"] = TensorPlan("I32", (conversation[0],), 4)
        plan["conversation"] = TensorPlan("U8", (conversation[1],), 1)
    return plan


def group_tensor(model: SessionModel, name: str, group: int) -> str:
    """Return the name of a group's keys and values, or of its scales, in the file."""
    return f"{name}.{group}" if model.layer_windows or model.layer_shapes else name


def _version_of(record: SessionRecord) -> str:
    if record.conversation:
        return CONVERSATION_VERSION
    if record.model.layer_shapes:
        return LAYER_SHAPES_VERSION
    return LAYER_WINDOWS_VERSION if record.model.layer_windows else VERSION


def encode_header(record: SessionRecord, plan: Mapping[str, TensorPlan]) -> bytes:
    """Return the file's bytes up to the tensors, with zeros for the digits of the checksum.

    Raises:
        InvalidArgument: The record's fields are too long for a header.
        TypeError: A field is neither a string nor an integer.
    """
    for name, value in record.fields.items():
        if not isinstance(name, str) or type(value) not in (str, int):
            raise TypeError(
                f"save: `fields` must map strings to strings or integers, but {name!r} is of type "
                f"{type(value).__name__}."
            )
    version = _version_of(record)
    model = {
        name: str(value)
        for name, value in asdict(record.model).items()
        if not name.startswith("layer_") or name in _KEYS_OF_VERSIONS[version]
    }
    metadata = {
        "format": FORMAT,
        "format_version": version,
        "checksum": _NO_CHECKSUM,
        "created_by": f"sinkstream {_build.version()}",
        **model,
        **{name: str(value) for name, value in asdict(record.state).items()},
        "fields": json.dumps(dict(record.fields), separators=(",", ":")),
    }
    declared: dict[str, Any] = {"__metadata__": metadata}
    begin = 0
    for name, tensor in plan.items():
        end = begin + tensor.nbytes
        declared[name] = {
            "dtype": tensor.kind, "shape": list(tensor.shape), "data_offsets": [begin, end],
        }  # fmt: skip
        begin = end
    text = json.dumps(declared, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the tensors
    if len(text) > MAX_HEADER_BYTES:
        raise InvalidArgument(
            f"save: `fields` must fit into a header of {MAX_HEADER_BYTES} bytes with the session's "
            f"other metadata, but the header needs {len(text)}.",
            param="fields",
        )
    return len(text).to_bytes(8, "little") + text


def checksum_offset(header: bytes) -> int:
    """Return the offset of the checksum's digits in the bytes of a header, or -1."""
    found = header.find(_CHECKSUM_MARK)
    return found if found < 0 else found + len(_CHECKSUM_MARK)


def without_checksum(header: bytes) -> bytes:
    """Return the bytes of a header with zeros for the digits of its checksum."""
    begin = checksum_offset(header)
    return header[:begin] + _NO_CHECKSUM.encode() + header[begin + CHECKSUM_DIGITS :]


def decode_header(name: str, header: SafetensorsHeader) -> SessionHeader:
    """Check a header, and that its tensors match its numbers.

    Args:
        name: The file's name, for errors.
        header: The header as read.

    Raises:
        CheckpointError: The format or version is wrong, or the header is inconsistent.
    """
    metadata = _check_metadata(name, header.metadata)
    values: dict[str, Any] = {key: metadata[key] for key in _MODEL_TEXTS}
    for key, low in _MODEL_NUMBERS.items():
        values[key] = _number(name, metadata, key, low)
    values["layer_windows"] = _layer_windows(name, metadata, values["layers"])
    values["layer_shapes"] = _layer_shapes(name, metadata, values["layers"])
    model = SessionModel(**values)
    state = SessionState(
        **{key: _number(name, metadata, key, low) for key, low in _STATE_NUMBERS.items()}
    )
    if model.kv_dtype not in KV_DTYPE_BYTES:
        raise CheckpointError(
            f"load_session: {name}: `kv_dtype` must be one of {', '.join(sorted(KV_DTYPE_BYTES))}, "
            f"but is {quoted(model.kv_dtype)}."
        )
    if state.begin > state.length:
        raise CheckpointError(
            f"load_session: {name}: `begin` must be at most `length`, {state.length}, but is "
            f"{state.begin}."
        )
    checksum = metadata["checksum"]
    begin = checksum_offset(header.content)
    if (
        not re.fullmatch(f"[0-9a-f]{{{CHECKSUM_DIGITS}}}", checksum)
        or header.content[begin : begin + CHECKSUM_DIGITS] != checksum.encode()
    ):
        raise CheckpointError(
            f"load_session: {name}: `checksum` must be {CHECKSUM_DIGITS} lowercase hexadecimal "
            f"digits, but is {quoted(checksum)}."
        )
    return SessionHeader(
        model=model,
        state=state,
        fields=_read_fields(name, metadata["fields"]),
        created_by=metadata["created_by"],
        checksum=checksum,
        plan=_check_tensors(
            name, header, model, state, metadata["format_version"] == CONVERSATION_VERSION
        ),
    )


def _check_metadata(name: str, metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        found = metadata.get("format") if isinstance(metadata, dict) else None
        raise CheckpointError(
            f"load_session: {name} must be a saved session, of format {quoted(FORMAT)}, but its "
            f"format is {quoted(found)}."
        )
    version = metadata.get("format_version")
    if version not in list(_KEYS_OF_VERSIONS):
        raise CheckpointError(
            f"load_session: {name} must have format version {VERSION}, {LAYER_WINDOWS_VERSION}, "
            f"{LAYER_SHAPES_VERSION} or {CONVERSATION_VERSION}, which sinkstream "
            f"{_build.version()} reads, but has {quoted(version)}, written by "
            f"{quoted(metadata.get('created_by'))}."
        )
    keys = _KEYS | _KEYS_OF_VERSIONS[version]
    if set(metadata) != keys or not all(isinstance(value, str) for value in metadata.values()):
        wrong = sorted(
            keys.symmetric_difference(metadata)
            or {key for key, value in metadata.items() if not isinstance(value, str)}
        )
        raise CheckpointError(
            f"load_session: the metadata of {name} must have the keys of version {version}, each "
            f"with a string value, but differs in {quoted(wrong)}."
        )
    return metadata


def _layer_windows(name: str, metadata: Mapping[str, str], layers: int) -> str:
    """Return the layers' own windows, checked; empty in version 1, and where no layer has one."""
    text = metadata.get("layer_windows", "")
    if not text and metadata["format_version"] != LAYER_WINDOWS_VERSION:
        return ""
    windows = text.split(",") if len(text) <= 11 * layers else []
    is_number = [re.fullmatch("0|[1-9][0-9]{0,9}", window) is not None for window in windows]
    if len(windows) != layers or not all(is_number) or set(windows) == {"0"}:
        raise CheckpointError(
            f"load_session: {name}: `layer_windows` must be {layers} integers from 0 to "
            f"{10**10 - 1}, not all 0, separated by commas, but is {quoted(text)}."
        )
    return text


def _layer_shapes(name: str, metadata: Mapping[str, str], layers: int) -> str:
    """Return the sizes of the layers' keys and states, checked; empty before version 3."""
    text = metadata.get("layer_shapes", "")
    if not text and metadata["format_version"] != LAYER_SHAPES_VERSION:
        return ""
    shapes = text.split(",") if len(text) <= 22 * layers else []
    number = "[1-9][0-9]{0,9}"
    is_shape = [re.fullmatch(f"{number}(x{number})?", shape) is not None for shape in shapes]
    if len(shapes) != layers or not all(is_shape) or len(set(shapes)) == 1 or "x" not in text:
        raise CheckpointError(
            f"load_session: {name}: `layer_shapes` must be {layers} sizes, not all the same, each "
            f"of keys, such as 2x64, or of a state in bytes, separated by commas, but is "
            f"{quoted(text)}."
        )
    return text


def _number(name: str, metadata: Mapping[str, str], key: str, low: int) -> int:
    text = metadata[key]
    if re.fullmatch("0|[1-9][0-9]{0,18}", text) and low <= int(text) <= _MAX_NUMBER:
        return int(text)
    raise CheckpointError(
        f"load_session: {name}: `{key}` must be an integer in [{low}, {_MAX_NUMBER}], but is "
        f"{quoted(text)}."
    )


def _read_fields(name: str, text: str) -> dict[str, str | int]:
    fields = parse_json(text.encode(errors="surrogatepass"), f"`fields` of {name}", "load_session")
    for key, value in fields.items():
        if type(value) not in (str, int):
            raise CheckpointError(
                f"load_session: {name}: `fields` must hold strings and integers, but "
                f"{quoted(key)} is {quoted(value)}."
            )
    return fields


def _check_tensors(
    name: str,
    header: SafetensorsHeader,
    model: SessionModel,
    state: SessionState,
    has_conversation: bool,
) -> dict[str, TensorPlan]:
    def length_of(key: str) -> int:
        found = header.tensors.get(key)
        return 0 if found is None else (*found.shape, 0)[0]

    conversation = length_of("earlier_ids"), length_of("conversation")
    plan = plan_tensors(
        model, state, length_of("pending_ids"), conversation if has_conversation else None
    )
    expected = {key: (tensor.kind, tensor.shape) for key, tensor in plan.items()}
    found = {key: (entry.kind, entry.shape) for key, entry in header.tensors.items()}
    for key in sorted(expected.keys() | found.keys()):
        wanted, held = expected.get(key), found.get(key)
        if wanted != held:
            raise CheckpointError(
                f"load_session: {name}: tensor {quoted(key)} must be {_described(wanted)} to match "
                f"the metadata, but is {_described(held)}."
            )
    return plan


def _described(tensor: tuple[str, tuple[int, ...]] | None) -> str:
    return "absent" if tensor is None else f"{tensor[0]} {list(tensor[1])}"
