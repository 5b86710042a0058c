"""Session records with random contents, and files assembled by hand."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import numpy as np

from sinkstream.sessions.header import plan_tensors
from sinkstream.sessions.record import SessionModel, SessionRecord, SessionState

MODEL = SessionModel(
    fingerprint="0123456789abcdef0123456789abcdef",
    family="llama",
    vocab_size=300,
    layers=3,
    kv_heads=2,
    head_dim=6,
    rope="fedcba9876543210",
    kv_dtype="float16",
    sinks=4,
    window=20,
)
STATE = SessionState(length=1000, begin=0, turns=7, system_tokens=3)
FIELDS: dict[str, str | int] = {"transcript": 'Grüße "x" \\ \n \ud800 🚰', "seed": -(2**62), "": ""}


def make_record(
    kv_dtype: str = "float16",
    state: SessionState = STATE,
    *,
    pending: int = 1,
    conversation: bytes = b"",
    seed: int = 1,
    **model: Any,
) -> SessionRecord:
    """Return a record with random bytes, including NaN."""
    random = np.random.default_rng(seed)
    chosen = replace(MODEL, kv_dtype=kv_dtype, **model)
    plan = plan_tensors(chosen, state, pending)

    def noise(name: str) -> np.ndarray:
        nbytes = sum(plan[part].nbytes for part in plan if part.partition(".")[0] == name)
        return random.integers(0, 256, nbytes, np.uint8)

    def ids(count: int) -> np.ndarray:
        return random.integers(0, chosen.vocab_size, count, np.int32)

    return SessionRecord(
        model=chosen,
        state=state,
        keys_values=noise("keys_values"),
        scales=noise("scales").view(np.float32) if kv_dtype == "int8" else None,
        states=noise("states") if chosen.state_bytes else None,
        token_ids=ids(plan["token_ids"].shape[0]),
        pending_ids=ids(pending),
        conversation=conversation,
        earlier_ids=ids(7) if conversation else None,
        fields=FIELDS,
    )


def assert_same(one: SessionRecord, other: SessionRecord) -> None:
    assert (one.model, one.state, one.fields) == (other.model, other.state, other.fields)
    assert (one.scales is None) == (other.scales is None)
    assert (one.states is None) == (other.states is None)
    assert one.conversation == other.conversation
    for name in ("keys_values", "scales", "states", "token_ids", "pending_ids", "earlier_ids"):
        if getattr(one, name) is not None:
            assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name


def split(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header of a file's content as JSON, and the bytes of its tensors."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def join(header: dict[str, Any], tensors: bytes, *, checksum: bool = True) -> bytes:
    """Assemble a file, by default with the right checksum.

    Written from docs/reference/session_file.md alone: an independent check of the writer.
    """
    metadata = header["__metadata__"]
    if checksum:
        metadata["checksum"] = "0" * 64
    text = json.dumps(header, separators=(",", ":")).encode()
    content = len(text).to_bytes(8, "little") + text + tensors
    if checksum:
        digits = hashlib.sha256(content).hexdigest().encode()
        content = content.replace(b'"checksum":"' + b"0" * 64, b'"checksum":"' + digits, 1)
    return content
