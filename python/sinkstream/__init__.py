"""Stream text from a language model indefinitely, in a fixed amount of memory, without stalling.

import sinkstream

model = sinkstream.load()
for text in model.stream("Once upon a time"):
    print(text, end="", flush=True)
"""

from __future__ import annotations

from sinkstream import _build
from sinkstream.cache import Cache, Capacity
from sinkstream.checkpoint.spec import DecoderSpec, RopeSpec
from sinkstream.errors import (
    CapacityError,
    CheckpointError,
    DeviceError,
    EngineDead,
    ForkError,
    InvalidArgument,
    NonFiniteLogits,
    SessionBusy,
    SinkstreamError,
)
from sinkstream.loading import load
from sinkstream.model import Model
from sinkstream.observe.metrics import prometheus_text
from sinkstream.observe.tracing import trace
from sinkstream.sessions.session import Session, SessionStats
from sinkstream.streams.stream import (
    Evicted,
    Finished,
    Prefill,
    Result,
    Started,
    Stats,
    Stream,
    Token,
)

__version__ = _build.version()

__all__ = [
    "Cache",
    "Capacity",
    "CapacityError",
    "CheckpointError",
    "DecoderSpec",
    "DeviceError",
    "EngineDead",
    "Evicted",
    "Finished",
    "ForkError",
    "InvalidArgument",
    "Model",
    "NonFiniteLogits",
    "Prefill",
    "Result",
    "RopeSpec",
    "Session",
    "SessionBusy",
    "SessionStats",
    "SinkstreamError",
    "Started",
    "Stats",
    "Stream",
    "Token",
    "load",
    "prometheus_text",
    "trace",
]
