"""The events of a response, each made from the response's state and the event's number.

    created [queued] in_progress [thought] [message] [call …] end

`item_events.py` has the events of each item. A response that ends before its reply begins has no
item: the end follows what was there.
"""

from __future__ import annotations

from typing import Any

import orjson

from sinkstream.server.responses.item_events import items_of
from sinkstream.server.responses.resource import Resources

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

    @property
    def count(self) -> int:
        """Return how many events there are so far."""
        state = self._state
        items = sum(item.count for item in items_of(self._resources))
        return len(self._before) + state.is_begun + items + (state.outcome is not None)

    def event(self, number: int) -> dict[str, Any]:
        """Return an event; `number` is below `count`."""
        kind, fields = self._event(number)
        return {"type": kind, "sequence_number": number, **fields}

    def _event(self, number: int) -> tuple[str, dict[str, Any]]:
        resources, state = self._resources, self._state
        if number == 0:
            status = "queued" if state.is_background else "in_progress"
            return self._before[0], {"response": resources.unfinished(status)}
        if number < len(self._before):
            return self._before[number], {"response": resources.unfinished("queued")}
        index = number - len(self._before)
        if state.is_begun:
            if index == 0:
                response = resources.unfinished("in_progress")
                return "response.in_progress", {"response": response}
            index -= 1
        for item in items_of(self._resources):
            if index < item.count:
                return item.event(index)
            index -= item.count
        return _ENDS[state.status], {"response": resources.response()}


def as_sse(event: dict[str, Any]) -> bytes:
    """Return an event as a server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))
