"""A reply that is being generated, until its turn is committed."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sinkstream.conversations.claim import Claim, SessionMoved
from sinkstream.conversations.node import NewNode, Node
from sinkstream.conversations.reading import Drops
from sinkstream.conversations.recorder import Recorder
from sinkstream.conversations.residency import Residency, Resident
from sinkstream.conversations.store import Store
from sinkstream.conversations.turns import TurnEnd, TurnFacts, note_of_calls
from sinkstream.streams.events import FinishReason
from sinkstream.streams.served_stream import ServedStream


@dataclass(frozen=True, slots=True)
class Begun:
    """What a turn began with."""

    new: NewNode
    claim: Claim
    """With which it is written, if it is stored."""
    resident: Resident
    ids: array[int]
    """What it was to read."""
    starts_at: Node | None
    """The turn at whose end its session was exactly, if it was at one."""
    tokens_before: int
    """Of the session."""
    may_be_settled: bool = True
    """Whether the turn is its own settled form if its reply has no thought."""
    drops: Drops = "never"
    """When the conversation loses the thoughts of replies."""


class RunningTurn:
    """Implements `Turn`. `end` may be called by any thread, and more than once."""

    def __init__(
        self,
        begun: Begun,
        stream: ServedStream,
        facts: TurnFacts,
        store: Store | None,
        residency: Residency,
        on_end: Callable[[RunningTurn], None],
    ) -> None:
        """Follow a stream before its first read; without a store, nothing is written."""
        self._begun = replace(begun, new=begun.new.without_contents())
        self._store = store
        self._residency = residency
        self._on_end = on_end
        self._lock = threading.Lock()
        self._end: TurnEnd | None = None
        self._failure: BaseException | None = None
        self._is_lost = False
        self._is_handed_over = False
        self._recorder = Recorder(begun.new, store, begun.claim)
        self.stream = stream
        self.facts = facts
        stream.record = self._recorder.add

    @property
    def conversation(self) -> str:
        """Return the id of the conversation."""
        return self._begun.new.conversation

    @property
    def is_stored(self) -> bool:
        """Return whether the turn is written."""
        return self._store is not None

    def lose(self, claim: Claim) -> None:
        """End the reply if it is being written with a lost claim: it cannot be kept."""
        if self.is_stored and self._begun.claim == claim:
            self._is_lost = True
            self.stream.cancel()

    def hand_over(self) -> None:
        """End the reply, so that another replica can take the conversation as it is."""
        self._is_handed_over = True
        self.stream.cancel()

    def end(self) -> TurnEnd:
        """Commit the turn, and make its session idle. Cancels a reply that is not complete.

        Raises:
            SessionMoved: Another replica owns the conversation. The turn is not kept, or is kept as
                incomplete.
            StoreError: It cannot be committed. The session is then closed.
            SessionBusy: A thread is still reading the stream.
        """
        with self._lock:
            if self._end is None:
                if self._failure is not None:
                    raise self._failure
                reason = self.stream.drain()
                try:
                    node_id = self._commit(reason)
                    if self._is_handed_over and reason == "cancelled":
                        raise SessionMoved(self.conversation)
                except BaseException as error:
                    self._failure = error
                    raise
                finally:
                    self.stream.record = None
                    self._on_end(self)
                stream = self.stream
                self._end = TurnEnd(node_id, reason, stream.stats, stream.thought_tokens)
            return self._end

    def _commit(self, reason: FinishReason) -> str:
        begun, resident = self._begun, self._begun.resident
        try:
            if self._is_lost:
                raise SessionMoved(self.conversation)
            tokens = self._tokens_now()
            node = self._node(reason, tokens)
            if node is None:
                self._take_back()
                return ""
            if self._store is not None:
                recorder = self._recorder
                part = (recorder.part, recorder.ids, recorder.text)
                calls = self._calls()
                note = note_of_calls(calls) if calls else ""
                self._store.finish(self._begun.claim, node, *part, note).result()
        except BaseException:
            self._residency.discard(resident)
            raise
        resident.undo = begun.starts_at
        resident.node = node
        resident.cancelled_ids = array("i")
        resident.is_stored = self._store is not None
        has_calls = bool(self.stream.tool_calls)
        is_lost = begun.drops == "always" or (begun.drops == "before_user" and not has_calls)
        resident.is_passing = is_lost and not node.is_settled
        if reason == "error":
            self._residency.discard(resident)  # the ids are known, the cache may be damaged
        else:
            self._residency.release(resident)
        return node.id

    def _calls(self) -> list[dict[str, Any]]:
        return [call.as_message() for call in self.stream.tool_calls]

    def _tokens_now(self) -> int:
        """Return the tokens in the session's sequence, once the engine has let go of it."""
        session = self._begun.resident.session
        session.conclude_last_turn()
        return session.stats.tokens

    def _node(self, reason: FinishReason, tokens: int) -> Node | None:
        """Return the completed turn; None if it generated nothing without being asked to."""
        new, recorder = self._begun.new, self._recorder
        if recorder.count == 0 and reason not in ("stop", "stop_string", "length"):
            return None
        return Node(
            new.id,
            new.parent,
            new.conversation,
            new.tenant,
            recorder.digest(self._calls()),
            new.tokens + recorder.count,
            recorder.last_id,
            new.session_key,
            reason,
            new.is_after_settled,
            self._begun.may_be_settled and self.stream.thought_tokens == 0,
        )

    def _take_back(self) -> None:
        """Forget the turn; return the session to its earlier state, or note how far it has read."""
        begun = self._begun
        if self._store is not None:
            self._store.forget(begun.claim, begun.new.id)
        self._residency.take_back(begun.resident, begun.ids, begun.tokens_before)
