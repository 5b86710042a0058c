"""Converts between native sessions and the records that `sessions/file.py` reads and writes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from sinkstream import _core
from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.spec import DecoderSpec
from sinkstream.errors import CheckpointError
from sinkstream.host import Host
from sinkstream.sessions.file import read_session_file
from sinkstream.sessions.record import (
    SessionModel,
    SessionRecord,
    SessionState,
    check_same_model,
)
from sinkstream.streams.worker import Check, wanted


def record_of(
    native: _core.Model,
    session: _core.Session,
    spec: DecoderSpec,
    system_tokens: int,
    fields: Mapping[str, str | int],
) -> SessionRecord:
    """Copy a session into a record, together with `fields`."""
    import numpy as np

    contents = native.contents_of(session)
    pending = contents["pending"]
    scales = contents["scales"]
    state = SessionState(
        length=contents["length"],
        begin=max(contents["begins"]),
        turns=contents["turns"],
        system_tokens=system_tokens,
    )
    kept = np.array(contents["ids"], np.int32)
    earlier = len(kept) - state.live(session.sinks, session.window)
    of_sinks, others = kept[: session.sinks], kept[session.sinks :]
    return SessionRecord(
        model=_model_of(native, spec, session.sinks, session.window),
        state=state,
        keys_values=contents["keys_values"],
        scales=scales if native.kv_dtype == "int8" else None,
        states=contents["states"] if contents["states"].size else None,
        token_ids=np.concatenate([of_sinks, others[earlier:]]),
        earlier_ids=others[:earlier],
        pending_ids=np.array([] if pending is None else [pending], np.int32),
        fields=fields,
    )


def load(
    path: str | os.PathLike[str],
    host: Host,
    check: Check = wanted,
    cache_salt: str = "",
) -> tuple[_core.Session, SessionRecord]:
    """Open a session from a file; return it and the record of the file.

    Args:
        path: The file.
        host: The model.
        check: Called between long steps.
        cache_salt: Only requests with this salt share the session's beginning.

    Raises:
        Abandoned: Raised by `check`.
        CheckpointError: The file is damaged, or belongs to a different model or settings.
    """
    import numpy as np

    record = read_session_file(path, check)
    check()
    check_same_model(record, _model_of(host.native, host.spec, *host.window), os.fspath(path))
    if record.state.begin != 0 or record.pending_ids.size > 1:
        raise CheckpointError(
            f"load_session: {quoted(os.fspath(path))} must be a saved session without cuts and "
            f"with at most 1 pending token, but has a cut at {record.state.begin} and "
            f"{record.pending_ids.size} pending tokens."
        )
    sinks, live = record.model.sinks, record.token_ids
    earlier = [] if record.earlier_ids is None else [record.earlier_ids]
    contents: dict[str, Any] = {
        "length": record.state.length,
        "begins": [record.state.begin] * len(record.model.groups()),
        "turns": record.state.turns,
        "ids": np.concatenate([live[:sinks], *earlier, live[sinks:]]).tolist(),
        "pending": int(record.pending_ids[-1]) if record.pending_ids.size else None,
        "keys_values": record.keys_values,
        "scales": np.empty(0, np.float32) if record.scales is None else record.scales,
        "states": np.empty(0, np.uint8) if record.states is None else record.states,
    }
    return host.native.restore_session(record.model.sinks, contents, cache_salt), record


def _model_of(native: _core.Model, spec: DecoderSpec, sinks: int, window: int) -> SessionModel:
    sinks, window = spec.kept(sinks, window)
    return SessionModel.of(
        spec,
        fingerprint=native.fingerprint(),
        kv_dtype=native.kv_dtype,
        sinks=sinks,
        window=window,
        layer_memory=native.layer_memory,
    )
