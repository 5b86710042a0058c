"""The events of a response, each made from the response's state and the event's number.

    created [queued] in_progress
    item.added part.added delta … text.done part.done item.done          the message
    item.added arguments.delta … arguments.done item.done                each call of a tool
    end

A response that ends before its reply begins has no item: the end follows what was there. A reply
that may call tools has a message only with text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from sinkstream.server.responses.resource import Resources, call_item_id, message_id

_TEXT = "response.output_text"
_CALL = "response.function_call_arguments"
# A stream has no event of its own for a cancelled response; its status says so.
_ENDS = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}
_MESSAGE = -1
"""The item that is the message, among the numbers of calls."""


@dataclass(frozen=True, slots=True)
class _Events:
    """Events of one item, or of none, that follow each other."""

    kinds: tuple[str, ...]
    item: int | None = None
    deltas: int | None = None
    """If they are deltas, all of the first kind: how many."""

    @property
    def count(self) -> int:
        return len(self.kinds) if self.deltas is None else self.deltas


class Events:
    """All events of one response, numbered from 0."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._state = resources.state
        queued = ("response.queued",) if self._state.is_background else ()
        self._before = _Events(("response.created", *queued))

    @property
    def count(self) -> int:
        """Return how many events there are so far."""
        return sum(events.count for events in self._all())

    def event(self, number: int) -> dict[str, Any]:
        """Return an event; `number` is below `count`."""
        place = number
        for events in self._all():
            if place < events.count:
                break
            place -= events.count
        kind = events.kinds[0 if events.deltas is not None else place]
        if events.item is None:
            fields = self._of_response(kind)
        elif events.item == _MESSAGE:
            fields = self._of_message(kind, place)
        else:
            fields = self._of_call(events.item, kind, place)
        return {"type": kind, "sequence_number": number, **fields}

    def _all(self) -> Iterator[_Events]:
        state = self._state
        is_over = state.outcome is not None
        yield self._before
        if state.is_begun:
            yield _Events(("response.in_progress",))
            if state.has_message:
                yield _Events(
                    ("response.output_item.added", "response.content_part.added"), _MESSAGE
                )
                yield _Events((f"{_TEXT}.delta",), _MESSAGE, len(state.ends))
                if is_over or state.calls:
                    done = "response.content_part.done", "response.output_item.done"
                    yield _Events((f"{_TEXT}.done", *done), _MESSAGE)
            for i, call in enumerate(state.calls):
                yield _Events(("response.output_item.added",), i)
                yield _Events((f"{_CALL}.delta",), i, len(call.deltas))
                if is_over or i < len(state.calls) - 1:
                    yield _Events((f"{_CALL}.done", "response.output_item.done"), i)
        if is_over:
            yield _Events((_ENDS[state.status],))

    def _of_response(self, kind: str) -> dict[str, Any]:
        resources, state = self._resources, self._state
        if kind == "response.created":
            status = "queued" if state.is_background else "in_progress"
            return {"response": resources.unfinished(status)}
        if kind in ("response.queued", "response.in_progress"):
            return {"response": resources.unfinished(kind.removeprefix("response."))}
        return {"response": resources.response()}

    def _of_message(self, kind: str, place: int) -> dict[str, Any]:
        resources, state = self._resources, self._state
        if kind.startswith("response.output_item"):
            item = resources.message(is_empty=kind.endswith("added"))
            return {"output_index": 0, "item": item}
        where = {"item_id": message_id(state.id), "output_index": 0, "content_index": 0}
        if kind.startswith("response.content_part"):
            return {**where, "part": resources.part(is_empty=kind.endswith("added"))}
        if kind == f"{_TEXT}.done":
            return {**where, "text": state.text.decode(), "logprobs": resources.logprobs()}
        return {**where, "delta": state.delta(place), "logprobs": resources.logprobs(place)}

    def _of_call(self, index: int, kind: str, place: int) -> dict[str, Any]:
        resources, state = self._resources, self._state
        output_index = index + int(state.has_message)
        if kind.startswith("response.output_item"):
            item = resources.call(index, is_empty=kind.endswith("added"))
            return {"output_index": output_index, "item": item}
        one = state.calls[index]
        where = {"item_id": call_item_id(state.id, index), "output_index": output_index}
        if kind == f"{_CALL}.done":
            return {**where, "name": one.call.name, "arguments": one.call.arguments}
        return {**where, "delta": one.deltas[place]}


def as_sse(event: dict[str, Any]) -> bytes:
    """Return an event as a server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))
