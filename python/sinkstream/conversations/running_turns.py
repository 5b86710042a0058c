"""The replies that are being generated, each recorded until its turn is committed."""

from __future__ import annotations

import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sinkstream.conversations.canonical import ReplyHash
from sinkstream.conversations.conversation_writer import ConversationWriter
from sinkstream.conversations.errors import SessionMoved
from sinkstream.conversations.node import NewNode, Node
from sinkstream.conversations.read_messages import Drops
from sinkstream.conversations.residency import Residency, Resident
from sinkstream.conversations.turns import TurnEnd, TurnFacts, note_of_calls
from sinkstream.streams.events import FinishReason
from sinkstream.streams.served_stream import ServedStream

if TYPE_CHECKING:
    from sinkstream.streams.batch import Batch


# What the end of the process may cost at most.
_PART_TOKENS = 256
_PART_S = 2.0


class Recorder:
    """For one thread at a time: the reader's, then the one that ends the turn.

    Attributes:
        count: Tokens generated so far.
        last_id: The id of the last one; None before the first.
        part: The number of the next part.
        ids: The ids that have not been committed yet; stays empty without a writer.
    """

    def __init__(self, new: NewNode, writer: ConversationWriter | None) -> None:
        self._node_id = new.id
        self._writer = writer
        self._hash = ReplyHash(new.before)
        self._hash.add(new.given)
        self._committed_at = time.monotonic()
        self._text: list[str] = []
        self.count = 0
        self.last_id: int | None = None
        self.part = 0
        self.ids: array[int] = array("i")

    def add(self, batch: Batch) -> None:
        """Note what has been received."""
        self._hash.add(batch.text)
        if batch.ids:
            self.count += len(batch.ids)
            self.last_id = int(batch.ids[-1])
        if self._writer is None:
            return
        self.ids.extend(batch.ids)
        self._text.append(batch.text)
        now = time.monotonic()
        is_due = len(self.ids) >= _PART_TOKENS or now - self._committed_at >= _PART_S
        if self.ids and is_due:
            part = (self._node_id, self.part, self.ids, self.text)
            if self._writer.try_add_part(*part):
                self.part += 1
                self.ids = array("i")
                self._text = []
            self._committed_at = now

    @property
    def text(self) -> str:
        """Return the text that has not been committed yet."""
        return "".join(self._text)

    def digest(self, calls: Sequence[Mapping[str, Any]] = ()) -> bytes:
        """Return the hash of the conversation up to here, with the reply's `tool_calls`."""
        return self._hash.digest(calls)


@dataclass(frozen=True, slots=True)
class Begun:
    """What a turn began with."""

    new: NewNode
    writer: ConversationWriter | None
    """None if it is not stored."""
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
        residency: Residency,
        on_end: Callable[[RunningTurn], None],
    ) -> None:
        """Follow a stream before its first read."""
        self._begun = replace(begun, new=begun.new.without_contents())
        self._residency = residency
        self._on_end = on_end
        self._lock = threading.Lock()
        self._end: TurnEnd | None = None
        self._failure: BaseException | None = None
        self._is_lost = False
        self._is_handed_over = False
        self._recorder = Recorder(begun.new, begun.writer)
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
        return self._begun.writer is not None

    def lose(self, writer: ConversationWriter) -> None:
        """End the reply if `writer`, which can no longer write, was to keep it."""
        if self._begun.writer == writer:
            self._is_lost = True
            self.stream.cancel()

    def hand_over(self) -> None:
        """End the reply, so that another process can take the conversation as it is."""
        self._is_handed_over = True
        self.stream.cancel()

    def end(self) -> TurnEnd:
        """Commit the turn, and make its session idle. Cancels a reply that is not complete.

        Raises:
            SessionMoved: Another process owns the conversation. The turn is not kept, or is kept as
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
                stream, has_calls = self.stream, bool(self.stream.tool_calls)
                self._end = TurnEnd(node_id, reason, stream.stats, stream.thought_tokens, has_calls)
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
            if begun.writer is not None:
                recorder = self._recorder
                part = (recorder.part, recorder.ids, recorder.text)
                calls = self._calls()
                note = note_of_calls(calls) if calls else ""
                begun.writer.finish(node, *part, note).result()
        except BaseException:
            self._residency.discard(resident)
            raise
        resident.undo = begun.starts_at
        resident.node = node
        resident.cancelled_ids = array("i")
        resident.is_stored = self.is_stored
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
        if begun.writer is not None:
            begun.writer.forget(begun.new.id)
        self._residency.take_back(begun.resident, begun.ids, begun.tokens_before)


class RunningTurns:
    """The turns that are running or about to begin. Any thread may call it."""

    def __init__(self, residency: Residency) -> None:
        """Know the sessions in memory, too: a conversation is given away with them."""
        self.residency = residency
        self._turns: set[RunningTurn] = set()
        self._starting: Counter[str] = Counter()  # turns of a conversation that are not running yet
        self._changed = threading.Condition()  # of both

    def start(self, conversation: str) -> None:
        """Count a turn of a conversation as running before it is."""
        with self._changed:
            self._starting[conversation] += 1

    def started(self, conversation: str) -> None:
        """Count a turn as running only if it really is."""
        with self._changed:
            self._starting[conversation] -= 1
            self._starting += Counter()  # without those that are 0
            self._changed.notify_all()

    def add(self, turn: RunningTurn) -> None:
        """Add a turn that runs."""
        with self._changed:
            self._turns.add(turn)

    def discard(self, turn: RunningTurn) -> None:
        """Remove a turn that has ended."""
        with self._changed:
            self._turns.discard(turn)
            self._changed.notify_all()

    def all(self) -> list[RunningTurn]:
        """Return the turns that are running."""
        with self._changed:
            return list(self._turns)

    def writes(self, conversation: str) -> bool:
        """Return whether a turn of a conversation is running or about to begin, and is stored."""
        with self._changed:
            return self._writes(conversation)

    def _writes(self, conversation: str) -> bool:
        writing = (turn for turn in self._turns if turn.is_stored)
        is_running = any(turn.conversation == conversation for turn in writing)
        return conversation in self._starting or is_running

    def has(self, conversation: str) -> bool:
        """Return whether a turn of a conversation is running, stored or not."""
        with self._changed:
            is_running = any(turn.conversation == conversation for turn in self._turns)
            return conversation in self._starting or is_running

    def close_sessions(self, conversation: str) -> bool:
        """Close a conversation's idle sessions; return whether none of its turns is running."""
        if self.has(conversation):
            return False
        belongs = _belongs_to(conversation)
        while (resident := self.residency.acquire(belongs, leaves=True)) is not None:
            self.residency.discard(resident)
        return not self.residency.find(belongs)

    def hand_over(self, conversation: str, within_s: float) -> bool:
        """End the stored turns of a conversation, and save and close its sessions. Blocks.

        A turn has the first half of the time to finish; after that it is ended, and committed as it
        is.

        Returns:
            Whether all have ended in time.
        """
        for ends in (False, True):
            with self._changed:
                stored = [turn for turn in self._turns if turn.is_stored]
            for turn in stored if ends else ():
                if turn.conversation == conversation:
                    turn.hand_over()
            with self._changed:
                if self._changed.wait_for(lambda: not self._writes(conversation), within_s / 2):
                    break
        else:
            return False
        belongs = _belongs_to(conversation)
        while (resident := self.residency.acquire(belongs, keeps=True, leaves=True)) is not None:
            self.residency.park(resident)
        return True

    def lose(self, writer: ConversationWriter) -> None:
        """End the turns that were to be kept by a writer which can no longer write."""
        for turn in self.all():
            turn.lose(writer)


def _belongs_to(conversation: str) -> Callable[[Resident], bool]:
    return lambda one: one.node is not None and one.node.conversation == conversation
