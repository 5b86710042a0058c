"""The events of a response, each made from the response's state and the event's number.

    created [queued] in_progress item.added part.added
    delta …
    text.done part.done item.done end

A response that ends before its reply begins has no item: the end follows what was there.
"""

from __future__ import annotations

from typing import Any

import orjson

from sinkstream.server.responses.resource import Resources, message_id

_OPENING = ("response.in_progress", "response.output_item.added", "response.content_part.added")
_CLOSING = (
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
)
# A stream has no event of its own for a cancelled response; its status says so.
_ENDS = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}


class Events:
    """All events of one response, numbered from 0."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._state = resources.state
        self._before = ["response.created"]
        if self._state.is_background:
            self._before.append("response.queued")
        self._first_delta = len(self._before) + len(_OPENING)

    @property
    def count(self) -> int:
        """Return how many events there are so far."""
        state, count = self._state, len(self._before)
        if state.is_begun:
            count += len(_OPENING) + len(state.ends)
        if state.outcome is not None:
            count += (len(_CLOSING) if state.is_begun else 0) + 1
        return count

    def event(self, number: int) -> dict[str, Any]:
        """Return an event; `number` is below `count`."""
        place = number - self._first_delta
        if self._state.is_begun and 0 <= place < len(self._state.ends):
            return self._delta(number, place)
        kind = self._kind(number)
        return {"type": kind, "sequence_number": number, **self._fields(kind)}

    def _kind(self, number: int) -> str:
        state = self._state
        if number < len(self._before):
            return self._before[number]
        if state.is_begun:
            if number < self._first_delta:
                return _OPENING[number - len(self._before)]
            place = number - self._first_delta - len(state.ends)
            if place < len(_CLOSING):
                return _CLOSING[place]
        return _ENDS[state.status]

    def _fields(self, kind: str) -> dict[str, Any]:
        resources, state = self._resources, self._state
        if kind == "response.created":
            status = "queued" if state.is_background else "in_progress"
            return {"response": resources.unfinished(status)}
        if kind in ("response.queued", "response.in_progress"):
            return {"response": resources.unfinished(kind.removeprefix("response."))}
        if kind.startswith("response.output_item"):
            item = resources.message(is_empty=kind.endswith("added"))
            return {"output_index": 0, "item": item}
        if kind.startswith("response.content_part"):
            return {**self._place(), "part": resources.part(is_empty=kind.endswith("added"))}
        if kind == "response.output_text.done":
            return {**self._place(), "text": state.text.decode(), "logprobs": resources.logprobs()}
        return {"response": resources.response()}

    def _delta(self, number: int, place: int) -> dict[str, Any]:
        return {
            "type": "response.output_text.delta",
            "sequence_number": number,
            **self._place(),
            "delta": self._state.delta(place),
            "logprobs": self._resources.logprobs(place),
        }

    def _place(self) -> dict[str, Any]:
        return {"item_id": message_id(self._state.id), "output_index": 0, "content_index": 0}


def as_sse(event: dict[str, Any]) -> bytes:
    """Return an event as a server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))
