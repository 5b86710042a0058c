"""Stream text from a language model for ever, in a fixed amount of memory, without stalling.

import sinkstream

model = sinkstream.load()
for text in model.stream("Once upon a time"):
    print(text, end="", flush=True)
"""

from __future__ import annotations

# torch first: the core links against its libraries and finds them already loaded.
import torch as _torch  # noqa: F401

from sinkstream import _build

_build.check_torch_version()

from sinkstream.checkpoint.spec import DecoderSpec, RopeSpec  # noqa: E402
from sinkstream.errors import (  # noqa: E402
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
from sinkstream.loading import load  # noqa: E402
from sinkstream.model import Cache, Capacity, Model  # noqa: E402
from sinkstream.observe.metrics import prometheus_text  # noqa: E402
from sinkstream.observe.tracing import trace  # noqa: E402
from sinkstream.sessions.session import Session, SessionStats  # noqa: E402
from sinkstream.streams.stream import (  # noqa: E402
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
