"""Stream text from a language model indefinitely, in a fixed amount of memory, without stalling.

import sinkstream

model = sinkstream.load()
for text in model.stream("Once upon a time"):
    print(text, end="", flush=True)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from sinkstream.cache import Cache, Capacity
    from sinkstream.checkpoint.spec import (
        Attention,
        Block,
        DecoderSpec,
        Dense,
        Experts,
        LongRope,
        Norm,
        Recurrent,
        RopeSpec,
    )
    from sinkstream.loading.inventory import ListedModel, list_models
    from sinkstream.loading.load import load
    from sinkstream.model import Model
    from sinkstream.observe.metrics import prometheus_text
    from sinkstream.observe.tracing import trace
    from sinkstream.request.options import Sampling, StreamOptions
    from sinkstream.sessions.session import Session
    from sinkstream.sessions.token_session import SessionStats
    from sinkstream.streams.replies import Replies
    from sinkstream.streams.stream import (
        Event,
        Evicted,
        Finished,
        FinishReason,
        Prefill,
        PromptToken,
        Result,
        Started,
        Stats,
        Stream,
        Token,
        ToolCall,
    )
    from sinkstream.text.messages import Message
    from sinkstream.text.prompt import Prompt

    __version__: str

# Imported on first use, so that commands like `sinkstream --version` load no tokenizer and no core.
_HOMES = {
    "Attention": "sinkstream.checkpoint.spec",
    "Block": "sinkstream.checkpoint.spec",
    "Cache": "sinkstream.cache",
    "Capacity": "sinkstream.cache",
    "DecoderSpec": "sinkstream.checkpoint.spec",
    "Dense": "sinkstream.checkpoint.spec",
    "Event": "sinkstream.streams.stream",
    "Evicted": "sinkstream.streams.stream",
    "Experts": "sinkstream.checkpoint.spec",
    "FinishReason": "sinkstream.streams.stream",
    "Finished": "sinkstream.streams.stream",
    "ListedModel": "sinkstream.loading.inventory",
    "LongRope": "sinkstream.checkpoint.spec",
    "Message": "sinkstream.text.prompt",
    "Model": "sinkstream.model",
    "Norm": "sinkstream.checkpoint.spec",
    "Prefill": "sinkstream.streams.stream",
    "Prompt": "sinkstream.text.prompt",
    "PromptToken": "sinkstream.streams.stream",
    "Recurrent": "sinkstream.checkpoint.spec",
    "Replies": "sinkstream.streams.replies",
    "Result": "sinkstream.streams.stream",
    "RopeSpec": "sinkstream.checkpoint.spec",
    "Sampling": "sinkstream.request.options",
    "Session": "sinkstream.sessions.session",
    "SessionStats": "sinkstream.sessions.token_session",
    "Started": "sinkstream.streams.stream",
    "Stats": "sinkstream.streams.stream",
    "Stream": "sinkstream.streams.stream",
    "StreamOptions": "sinkstream.request.options",
    "Token": "sinkstream.streams.stream",
    "ToolCall": "sinkstream.streams.stream",
    "list_models": "sinkstream.loading.inventory",
    "load": "sinkstream.loading.load",
    "prometheus_text": "sinkstream.observe.metrics",
    "trace": "sinkstream.observe.tracing",
}

__all__ = [
    "Attention",
    "Block",
    "Cache",
    "Capacity",
    "CapacityError",
    "CheckpointError",
    "DecoderSpec",
    "Dense",
    "DeviceError",
    "EngineDead",
    "Event",
    "Evicted",
    "Experts",
    "FinishReason",
    "Finished",
    "ForkError",
    "InvalidArgument",
    "ListedModel",
    "LongRope",
    "Message",
    "Model",
    "NonFiniteLogits",
    "Norm",
    "Prefill",
    "Prompt",
    "PromptToken",
    "Recurrent",
    "Replies",
    "Result",
    "RopeSpec",
    "Sampling",
    "Session",
    "SessionBusy",
    "SessionStats",
    "SinkstreamError",
    "Started",
    "Stats",
    "Stream",
    "StreamOptions",
    "Token",
    "ToolCall",
    "list_models",
    "load",
    "prometheus_text",
    "trace",
]


def __getattr__(name: str) -> Any:
    """Import a public name, or the version, on first use."""
    if name == "__version__":
        value: Any = import_module("sinkstream._build").version()
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'sinkstream' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, "__version__"})
