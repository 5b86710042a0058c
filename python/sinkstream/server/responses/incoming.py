"""What a client sends over a socket: each message is parsed once."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sinkstream.server.errors import ApiError, invalid
from sinkstream.server.parsing import SMALL_BYTES, as_kind, object_of
from sinkstream.server.pool import Pool
from sinkstream.server.responses.requests import ResponseRequest

LANE = re.compile(r"[A-Za-z0-9_.\-]{1,256}")
"""The name of a lane."""


class Create(ResponseRequest):
    """`response.create`."""

    stream_id: str | None = None
    generate: bool | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """`response.cancel`."""

    response: Any
    """The id of the response; None for the one that is running on a lane."""
    lane: Any


Content = Create | Cancel | ApiError
"""What a message asks for, or why it is refused."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message of a client."""

    lane: str | None
    """The lane that it names, if it names one that may exist."""
    content: Content


async def read(data: str | bytes, pool: Pool) -> Incoming:
    """Parse a message; a long one on the pool."""
    if len(data) <= SMALL_BYTES:
        return _read(data)
    return await pool.run(partial(_read, data))


def _read(data: str | bytes) -> Incoming:
    lane = None
    try:
        event = object_of(data)
        lane = _lane_of(event)
        return Incoming(lane, _content_of(event))
    except ApiError as error:
        return Incoming(lane, replace(error))  # the one that was raised refers to the message


def _content_of(event: dict[str, Any]) -> Create | Cancel:
    kind = event.get("type")
    if kind == "response.create":
        return as_kind(event, Create)
    if kind == "response.cancel":
        return Cancel(event.get("response_id"), event.get("stream_id"))
    raise invalid(
        'body: `type` must be "response.create" or "response.cancel".', "type", "unknown_event_type"
    )


def _lane_of(event: dict[str, Any]) -> str | None:
    name = event.get("stream_id")
    return name if isinstance(name, str) and LANE.fullmatch(name) else None
