"""Stops a thread in the middle of its work, and goes on when a test says so."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Literal
from weakref import WeakKeyDictionary

from sinkstream.conversations.conversation_writer import ConversationWriter
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.store import Store

WAIT_S = 60

Point = Literal["loaded", "begin", "part", "commit", "snapshot", "note", "delete"]
"""After a turn's state has been loaded; or before its beginning, a part of its reply, its end, a
snapshot, a note or a deletion is written."""

_METHODS: dict[str, Point] = {
    "begin": "begin", "try_add_part": "part", "finish": "commit", "add_snapshot": "snapshot",
    "note": "note", "delete_tree": "delete", "delete_all": "delete",
}  # fmt: skip
_STALLS: WeakKeyDictionary[Store, Stall] = WeakKeyDictionary()


class Stall:
    """Stops the thread of a process that reaches a point, once."""

    def __init__(self, conversations: Conversations, point: Point) -> None:
        self.point = point
        self.reached, self.goes_on = threading.Event(), threading.Event()
        _STALLS[conversations._store] = self
        conversations._starter._found = self.after(conversations._starter._found)  # type: ignore[method-assign]

    def after(self, load: Callable[..., Any]) -> Callable[..., Any]:
        """Return what loads a turn's state, and may be stopped then."""

        def run(*given: Any) -> Any:
            found = load(*given)
            self.at("loaded")
            return found

        return run

    def at(self, point: str) -> None:
        if point == self.point and not self.reached.is_set():
            self.reached.set()
            assert self.goes_on.wait(WAIT_S)


def _watch(name: str, point: Point) -> None:
    """Let a stall stop a method of the writers of its store."""
    method = getattr(ConversationWriter, name)

    @functools.wraps(method)
    def watched(self: ConversationWriter, *given: Any, **named: Any) -> Any:
        if (stall := _STALLS.get(self.store)) is not None:
            stall.at(point)
        return method(self, *given, **named)

    setattr(ConversationWriter, name, watched)


for _name, _point in _METHODS.items():
    _watch(_name, _point)


class Late:
    """Work in a thread of its own, and how it ended."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.error: Exception | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self.error = error

    def wait(self, most_s: float) -> None:
        self._thread.join(most_s)

    def join(self) -> Exception | None:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()
        return self.error
