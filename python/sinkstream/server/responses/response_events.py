"""The events of a response, each made from the response's state and the event's number.

    created [queued] in_progress [thought] [message] [call …] end

    item.added part.added delta … text.done part.done item.done      a thought or a message
    item.added delta … arguments.done item.done                      a tool call

A response that ends before its reply begins has no item: the end follows what was there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from sinkstream.server.responses.response_object import (
    Resources,
    call_item_id,
    message_id,
    reasoning_id,
)
from sinkstream.server.responses.response_state import Deltas

Event = tuple[str, dict[str, Any]]
"""A type, and the fields apart from the number."""
_CALL = "response.function_call_arguments"
# A stream has no event of its own for a cancelled response; its status says so.
_ENDS = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "cancelled": "response.incomplete",
    "failed": "response.failed",
}


class ItemEvents(Protocol):
    """The events of one item so far."""

    @property
    def count(self) -> int:
        """Return how many events there are so far."""
        ...

    def event(self, number: int) -> Event:
        """Return one of them, counted from 0."""
        ...


class Make(Protocol):
    """Makes an item or its part."""

    def __call__(self, *, is_empty: bool = False) -> dict[str, Any]:
        """Return it as it is now, or as it is before it has any text."""
        ...


@dataclass(frozen=True, slots=True)
class TextEvents:
    """The events of a thought or a message."""

    kind: str
    """"output_text" or "reasoning_text"."""
    name: str
    """The item's id."""
    index: int
    """Of the item in the output."""
    deltas: Deltas
    is_done: bool
    item: Make
    part: Make
    more: Callable[[int | None], dict[str, Any]]
    """Returns further fields of a delta, or of the end of the text."""

    @property
    def count(self) -> int:
        """Return how many events there are so far."""
        return 2 + len(self.deltas) + (3 if self.is_done else 0)

    def event(self, number: int) -> Event:
        """Return one of them, counted from 0."""
        if number == 0:
            return "response.output_item.added", self._item(is_empty=True)
        if number == 1:
            return "response.content_part.added", self._part(is_empty=True)
        number -= 2
        if number < len(self.deltas):
            delta = {"delta": self.deltas[number], **self.more(number)}
            return f"response.{self.kind}.delta", {**self._indices, **delta}
        number -= len(self.deltas)
        if number == 0:
            text = {"text": self.deltas.text, **self.more(None)}
            return f"response.{self.kind}.done", {**self._indices, **text}
        if number == 1:
            return "response.content_part.done", self._part()
        return "response.output_item.done", self._item()

    @property
    def _indices(self) -> dict[str, Any]:
        return {"item_id": self.name, "output_index": self.index, "content_index": 0}

    def _item(self, *, is_empty: bool = False) -> dict[str, Any]:
        return {"output_index": self.index, "item": self.item(is_empty=is_empty)}

    def _part(self, *, is_empty: bool = False) -> dict[str, Any]:
        return {**self._indices, "part": self.part(is_empty=is_empty)}


@dataclass(frozen=True, slots=True)
class CallEvents:
    """The events of a tool call."""

    resources: Resources
    index: int
    """Of the call."""
    output_index: int

    @property
    def count(self) -> int:
        """Return how many events there are so far."""
        state = self.resources.state
        is_done = state.outcome is not None or self.index < len(state.calls) - 1
        return 1 + len(state.calls[self.index].deltas) + (2 if is_done else 0)

    def event(self, number: int) -> Event:
        """Return one of them, counted from 0."""
        state = self.resources.state
        one, name = state.calls[self.index], call_item_id(state.id, self.index)
        where = {"item_id": name, "output_index": self.output_index}
        if number == 0:
            return "response.output_item.added", self._item(is_empty=True)
        number -= 1
        if number < len(one.deltas):
            return f"{_CALL}.delta", {**where, "delta": one.deltas[number]}
        if number == len(one.deltas):
            whole = {"name": one.call.name, "arguments": one.call.arguments}
            return f"{_CALL}.done", {**where, **whole}
        return "response.output_item.done", self._item()

    def _item(self, *, is_empty: bool = False) -> dict[str, Any]:
        item = self.resources.call(self.index, is_empty=is_empty)
        return {"output_index": self.output_index, "item": item}


def items_of(resources: Resources) -> Iterator[ItemEvents]:
    """Yield the events of each item that a response has so far."""
    state = resources.state
    if state.has_thought:
        yield _of_thought(resources)
    if state.has_message:
        yield _of_message(resources)
    before = int(state.has_thought) + int(state.has_message)
    for index in range(len(state.calls)):
        yield CallEvents(resources, index, before + index)


def _of_thought(resources: Resources) -> TextEvents:
    """Return the events of a response's thought."""
    state = resources.state
    return TextEvents(
        kind="reasoning_text",
        name=reasoning_id(state.id),
        index=0,
        deltas=state.thought,
        is_done=state.has_message or bool(state.calls) or state.outcome is not None,
        item=resources.reasoning,
        part=resources.reasoning_part,
        more=lambda index: resources.counts(state.thought, index),
    )


def _of_message(resources: Resources) -> TextEvents:
    """Return the events of a response's message."""
    state = resources.state

    def more(index: int | None) -> dict[str, Any]:
        return {"logprobs": resources.logprobs(index), **resources.counts(state.text, index)}

    return TextEvents(
        kind="output_text",
        name=message_id(state.id),
        index=int(state.has_thought),
        deltas=state.text,
        is_done=bool(state.calls) or state.outcome is not None,
        item=resources.message,
        part=resources.part,
        more=more,
    )


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
