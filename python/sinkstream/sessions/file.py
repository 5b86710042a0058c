"""Writes and reads a saved session: writing is atomic, and reading checks everything.

docs/reference/session_file.md describes the format byte by byte.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, BinaryIO

from sinkstream.checkpoint.bounded_file import File
from sinkstream.checkpoint.formats.safetensors_header import SafetensorsHeader, read_whole_header
from sinkstream.checkpoint.quoting import quoted
from sinkstream.errors import CheckpointError, InvalidArgument
from sinkstream.files import expanded, home_hint, replace_whole
from sinkstream.sessions.header import (
    SessionHeader,
    TensorPlan,
    checksum_offset,
    decode_header,
    encode_header,
    group_tensor,
    plan_tensors,
    without_checksum,
)
from sinkstream.sessions.record import SessionModel, SessionRecord
from sinkstream.streams.worker import Check, wanted

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    _Bytes = npt.NDArray[np.uint8]

# Bytes hashed and written, or read, at a time: the memory used in addition to the cache.
_PIECE = 8 << 20


def write_session_file(
    path: str | os.PathLike[str],
    record: SessionRecord,
    check: Check = wanted,
    *,
    flush: bool = True,
) -> None:
    """Replace a file with a session. Only its owner may read it.

    The session is written next to the target, flushed to disk and then renamed: the path always
    holds either the complete old file or the complete new one.

    Args:
        path: The file. Its folder must exist. A leading `~` is expanded; a link is kept, and its
            target is replaced.
        record: The session.
        check: Called between pieces, and before the file gets its name; if it raises, the old file
            stays.
        flush: Whether to wait until the file is on disk. If not, a power cut may leave a damaged
            file, which `read_session_file` refuses.

    Raises:
        InvalidArgument: The record's buffers do not match its numbers, or its fields are too
            long.
        TypeError: A field is neither a string nor an integer.
        OSError: The disk is full, or the file cannot be written there; the message names it.
    """
    earlier = 0 if record.earlier_ids is None else len(record.earlier_ids)
    conversation = (earlier, len(record.conversation)) if record.conversation else None
    plan = plan_tensors(record.model, record.state, len(record.pending_ids), conversation)
    tensors = _tensors_of(record, plan)
    header = encode_header(record, plan)
    try:
        with replace_whole(path, is_private=True, flush=flush) as file:
            _write(file, header, tensors, check)
            check()
    except OSError as error:
        raise OSError(
            error.errno,
            f"save: the session cannot be written to {quoted(os.fspath(path))}: "
            f"{error.strerror or error}.{home_hint(path)}",
        ) from error


def read_session_file(path: str | os.PathLike[str], check: Check = wanted) -> SessionRecord:
    """Read a session and check it completely; call `check` between pieces.

    Raises:
        CheckpointError: The file is missing, damaged, truncated, or of a different kind or version;
            the message names the file and the fault.
    """
    file = File(expanded(path), "load_session")
    try:
        found = _read_header(file)
        header = decode_header(file.name, found)
        tensors, checksum = _read_tensors(file, found, header.plan, check)
    finally:
        file.close()
    if checksum != header.checksum:
        raise CheckpointError(
            f"load_session: {file.name} must have the checksum {header.checksum} that it was saved "
            f"with, but has {checksum}. It was damaged or edited."
        )
    ids = {
        name: tensors[name].view("<i4")
        for name in ("token_ids", "pending_ids", "earlier_ids")
        if name in tensors
    }
    for name, values in ids.items():
        if len(values) > 0 and not 0 <= values.min() <= values.max() < header.model.vocab_size:
            raise CheckpointError(
                f"load_session: {file.name}: `{name}` must be in [0, {header.model.vocab_size - 1}]"
                f", but are in [{values.min()}, {values.max()}]."
            )
    scales = _joined(header, tensors, "scales") if header.model.kv_dtype == "int8" else None
    return SessionRecord(
        model=header.model,
        state=header.state,
        keys_values=_joined(header, tensors, "keys_values"),
        token_ids=ids["token_ids"],
        scales=None if scales is None else scales.view("<f4"),
        states=tensors.get("states"),
        pending_ids=ids["pending_ids"],
        earlier_ids=ids.get("earlier_ids"),
        conversation=tensors["conversation"].tobytes() if "conversation" in tensors else b"",
        fields=header.fields,
        created_by=header.created_by,
    )


def read_session_model(path: str | os.PathLike[str]) -> SessionModel:
    """Read what a saved session needs from a model, without its tensors.

    Raises:
        CheckpointError: The file is missing, or its header is damaged.
    """
    file = File(expanded(path), "load_session")
    try:
        return decode_header(file.name, _read_header(file)).model
    finally:
        file.close()


def _read_header(file: File) -> SafetensorsHeader:
    """Read the header; if the file has no such header, say what it should be."""
    begins = file.read(0, 8, "its header") if file.size >= 8 else b""
    if int.from_bytes(begins, "little") > file.size - 8:
        raise CheckpointError(
            f"load_session: {file.name} must be a saved session, but is incomplete or another kind "
            "of file."
        )
    return read_whole_header(file)


def _tensors_of(record: SessionRecord, plan: Mapping[str, TensorPlan]) -> dict[str, _Bytes]:
    """Return the bytes of every tensor, in the plan's order."""
    import numpy as np

    tensors: dict[str, _Bytes] = {}
    if record.scales is not None and record.model.kv_dtype != "int8":
        raise InvalidArgument(
            f"save: `scales` must be None for a cache of {record.model.kv_dtype}, but is an array.",
            param="scales",
        )
    dtypes = {
        "keys_values": "u1", "scales": "<f4", "states": "u1", "token_ids": "<i4",
        "pending_ids": "<i4", "earlier_ids": "<i4", "conversation": "u1",
    }  # fmt: skip
    for name, dtype in dtypes.items():
        parts = [part for part in plan if part.partition(".")[0] == name]
        if not parts:
            continue
        nbytes = sum(plan[part].nbytes for part in parts)
        array = getattr(record, name)
        if isinstance(array, bytes):
            array = np.frombuffer(array, np.uint8)
        if array is None or array.dtype != dtype or array.nbytes != nbytes:
            held = "None" if array is None else f"{array.nbytes} of {array.dtype}"
            raise InvalidArgument(
                f"save: `{name}` must have {nbytes} bytes of {np.dtype(dtype)} to match the "
                f"session's state, but has {held}.",
                param=name,
            )
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for part in parts:
            tensors[part], content = np.split(content, [plan[part].nbytes])
    return {name: tensors[name] for name in plan}


def _joined(header: SessionHeader, tensors: dict[str, _Bytes], name: str) -> _Bytes:
    """Return the bytes of all groups of layers, in order, and forget the parts."""
    import numpy as np

    groups = range(len(header.model.groups()))
    parts = [tensors.pop(group_tensor(header.model, name, group)) for group in groups]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _write(file: BinaryIO, header: bytes, tensors: Mapping[str, _Bytes], check: Check) -> None:
    """Write the header and the tensors, then the checksum into the header."""
    checksum = hashlib.sha256(header)
    file.write(header)
    for tensor in tensors.values():
        for begin in range(0, len(tensor), _PIECE):
            check()
            piece = tensor[begin : begin + _PIECE].data
            checksum.update(piece)
            file.write(piece)
    file.seek(checksum_offset(header))
    file.write(checksum.hexdigest().encode())


def _read_tensors(
    file: File, header: SafetensorsHeader, plan: Mapping[str, TensorPlan], check: Check
) -> tuple[dict[str, _Bytes], str]:
    """Return the bytes of every tensor, and the checksum of the header and the tensors."""
    import numpy as np

    checksum = hashlib.sha256(without_checksum(header.content))
    tensors: dict[str, _Bytes] = {}
    # The tensors cover the rest of the file, so this order reads all of it in sequence.
    for name in sorted(plan, key=lambda name: header.tensors[name].offset):
        tensor = np.empty(plan[name].nbytes, np.uint8)
        for begin in range(0, len(tensor), _PIECE):
            check()
            count = min(_PIECE, len(tensor) - begin)
            piece = file.read(header.tensors[name].offset + begin, count, f"tensor {quoted(name)}")
            checksum.update(piece)
            tensor[begin : begin + count] = np.frombuffer(piece, np.uint8)
        tensors[name] = tensor
    return tensors, checksum.hexdigest()
