"""The contents of a saved session: its model, its state, its live keys and values, and states."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING

from sinkstream.checkpoint.quoting import quoted
from sinkstream.checkpoint.spec import CacheGroup, DecoderSpec, RopeSpec, cache_groups
from sinkstream.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

KV_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
"""Bytes per number of the cache, by `kv_dtype`."""


@dataclass(frozen=True, slots=True)
class SessionModel:
    """The properties that a model must share with the one that a session was saved with."""

    fingerprint: str
    """`_core.Model.fingerprint`, a digest of the weights and the spec."""
    family: str
    vocab_size: int
    layers: int
    kv_heads: int
    head_dim: int
    rope: str
    """`ropes_digest` of the rotary settings: the cache holds rotated keys."""
    kv_dtype: str
    sinks: int
    """S of the session's sequence."""
    window: int
    """W of the session's sequence."""
    layer_windows: str = ""
    """`DecoderSpec.own_windows` with commas between."""
    layer_shapes: str = ""
    """If not all layers have the same: of each layer its key heads x head_dim, or the bytes of its
    state, with commas between."""

    @property
    def capacity(self) -> int:
        """Return S + W."""
        return self.sinks + self.window

    def groups(self) -> list[tuple[CacheGroup, int, int]]:
        """Return the layers that keep the same tokens of one size, with key heads and head_dim."""
        own_windows = [int(own) for own in self.layer_windows.split(",") if own]
        shapes = [shape for shape in self.layer_shapes.split(",") if shape]
        layers = zip(
            own_windows or [0] * len(shapes), shapes or [""] * len(own_windows), strict=True
        )
        counts = Counter(layers) or {(0, ""): self.layers}
        groups = []
        for (own, shape), count in counts.items():
            heads, of_keys, head_dim = shape.partition("x")
            if shape and not of_keys:
                continue  # a state
            [group] = cache_groups([own], self.sinks, self.window)
            group = replace(group, layers=count)
            groups.append((group, int(heads or self.kv_heads), int(head_dim or self.head_dim)))
        return groups

    @property
    def state_bytes(self) -> int:
        """Return the size of the states of all layers that have one."""
        return sum(int(shape) for shape in self.layer_shapes.split(",") if shape.isdecimal())

    @classmethod
    def of(
        cls,
        spec: DecoderSpec,
        *,
        fingerprint: str,
        kv_dtype: str,
        sinks: int,
        window: int,
        layer_memory: Sequence[tuple[int, int, int]] = (),
    ) -> SessionModel:
        """Return the properties of `spec` with the given settings.

        Args:
            spec: The model.
            fingerprint: As in `_core.Model`, like `kv_dtype` and `layer_memory`.
            kv_dtype: Of its cache.
            sinks: S of the sequence.
            window: W of the sequence.
            layer_memory: The key heads, head_dim and bytes of the state of each layer.
        """
        is_uniform = len(set(layer_memory)) <= 1
        return cls(
            fingerprint=fingerprint,
            family=spec.family,
            vocab_size=spec.vocab_size,
            layers=spec.layers,
            kv_heads=spec.kv_heads,
            head_dim=spec.head_dim,
            rope=ropes_digest(spec.ropes),
            kv_dtype=kv_dtype,
            sinks=sinks,
            window=window,
            layer_windows=",".join(map(str, spec.own_windows)),
            layer_shapes=",".join(
                str(state) if state else f"{heads}x{head_dim}"
                for heads, head_dim, state in ([] if is_uniform else layer_memory)
            ),
        )


@dataclass(frozen=True, slots=True)
class SessionState:
    """The state of a session, in numbers."""

    length: int
    """Tokens that its sequence has processed: the index of the next one."""
    begin: int = 0
    """Window tokens before this index were evicted early; in [0, length]."""
    turns: int = 0
    system_tokens: int = 0
    """Tokens of the system prompt, at the start of the text."""

    def live(self, sinks: int, window: int) -> int:
        """Return the number of tokens in the cache, as `csrc/cache/window.h` counts them."""
        last = self.length - 1
        if last < sinks:
            return self.length
        return sinks + last - max(sinks, self.begin, last - window + 1) + 1


@dataclass(frozen=True, slots=True, eq=False)
class SessionRecord:
    """A session between memory and disk; `csrc/cache/snapshot.h` describes the buffers."""

    model: SessionModel
    state: SessionState
    keys_values: npt.NDArray[np.uint8]
    """For each group of layers, the bytes of [layers, 2 (keys, values), kv_heads, live, head_dim]
    numbers of `kv_dtype`."""
    token_ids: npt.NDArray[np.int32]
    """[live], in the order of their indices."""
    pending_ids: npt.NDArray[np.int32]
    """[any]: tokens of the text after those that the sequence has processed, such as the last one
    sampled."""
    scales: npt.NDArray[np.float32] | None = None
    """For each group, [layers, 2, kv_heads, live] for int8, otherwise None; flat when read from a
    file."""
    states: npt.NDArray[np.uint8] | None = None
    """The state of each layer that has one, in order; None if there are none."""
    fields: Mapping[str, str | int] = field(default_factory=dict)
    """Further values to keep with the session."""
    conversation: bytes = b""
    """What `History.encode` returns; empty if the session keeps none."""
    earlier_ids: npt.NDArray[np.int32] | None = None
    """[any]: the last evicted tokens, up to the oldest live one after the sinks. Saved only with a
    conversation, which may go back to where they were live."""
    created_by: str = ""
    """The program and version that wrote the file; set on reading."""

    @property
    def live(self) -> int:
        """Return the number of tokens whose keys and values are here."""
        return self.state.live(self.model.sinks, self.model.window)


def snapshot_dims(model: SessionModel, state: SessionState) -> list[tuple[int, int, int, int, int]]:
    """Return the shape of each group's keys and values; scales lack the last dimension."""
    return [
        (group.layers, 2, kv_heads, state.live(group.sinks, group.window), head_dim)
        for group, kv_heads, head_dim in model.groups()
    ]


def ropes_digest(ropes: Sequence[RopeSpec]) -> str:
    """Digest rotary settings, including every bit of every frequency: 16 hexadecimal digits."""
    import hashlib  # only sessions that are saved need it

    digest = hashlib.sha256()
    for rope in ropes:
        numbers = (*rope.inverse_frequencies, rope.attention_factor)
        digest.update(rope.pairing.encode() + b"\0" + struct.pack(f"<{len(numbers)}d", *numbers))
    return digest.hexdigest()[:16]


def check_same_model(record: SessionRecord, expected: SessionModel, name: str) -> None:
    """Check that a model can continue a session.

    Args:
        record: The session as read.
        expected: The model that is to continue it. Only the sum of its S and W has to match: a
            session may have its own number of sinks.
        name: The session's name in the error, such as the name of its file.

    Raises:
        CheckpointError: They differ; the message lists every difference with both values.
    """
    pairs = [
        (
            entry.name,
            quoted(getattr(record.model, entry.name)),
            quoted(getattr(expected, entry.name)),
        )
        for entry in fields(SessionModel)
        if entry.name not in ("sinks", "window")
    ]
    if record.model.capacity != expected.capacity:
        pairs.append(("sinks + window", _as_sum(record.model), _as_sum(expected)))
    differences = [
        f"{name} is {there} in the file and {here} in the model"
        for name, there, here in pairs
        if there != here
    ]
    if differences:
        raise CheckpointError(
            f"load_session: {quoted(name)} must be a session of this model and its settings, but "
            f"{'; '.join(differences)}. {_remedy(record.model, expected)}"
        )


def _remedy(saved: SessionModel, expected: SessionModel) -> str:
    """Return how to load a model that continues a session, with the values to pass."""
    sinks = expected.sinks if expected.sinks < saved.capacity else saved.sinks
    window = saved.capacity - sinks
    if expected != replace(
        saved, kv_dtype=expected.kv_dtype, sinks=expected.sinks, window=expected.window
    ):
        return "Load the model that it was saved with, with the same settings."
    settings = []
    if expected.capacity != saved.capacity:
        settings.append(f"sinks={sinks}, window={window}")
    if expected.kv_dtype != saved.kv_dtype:
        settings.append(f'kv_dtype="{saved.kv_dtype}"')
    return f"Load the model with `{', '.join(settings)}`."


def _as_sum(model: SessionModel) -> str:
    return f"{model.capacity} ({model.sinks} + {model.window})"
