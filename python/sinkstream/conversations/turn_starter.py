"""Begins a turn: brings the state that it follows into a session, and notes what it reads."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sinkstream.conversations.canonical import (
    encode_all,
    hash_after,
    without_reasoning,
)
from sinkstream.conversations.earlier_turns import Given, split_off
from sinkstream.conversations.lookup import Match, TurnStart, TurnStarts
from sinkstream.conversations.node import NewNode, new_id
from sinkstream.conversations.overflow import Prompt, check_fits, warning_of
from sinkstream.conversations.read_messages import read_messages
from sinkstream.conversations.restore import Found, StateRestorer, found_at
from sinkstream.conversations.running_turns import Begun, RunningTurn, RunningTurns
from sinkstream.conversations.session_at import Deadline, SessionAt, deadline_of
from sinkstream.conversations.thoughts_dropped import End, ThoughtsDropped
from sinkstream.conversations.turns import TurnFacts, TurnRequest
from sinkstream.errors import ContextExceeded
from sinkstream.host import Host, ReplyOptions
from sinkstream.observe.activities import ACTIVITIES
from sinkstream.request.stream_request import StreamRequest, called_at
from sinkstream.streams.served_stream import ServedStream
from sinkstream.text.messages import Message

_TITLE = 80  # characters


class TurnStarter:
    """Begins the turns of `Conversations`. Any thread may call it; both methods block."""

    def __init__(
        self,
        host: Host,
        starts: TurnStarts,
        dropped: ThoughtsDropped,
        restorer: StateRestorer,
        session_at: SessionAt,
        running: RunningTurns,
        capacity: int,
    ) -> None:
        """Use what finds a turn's start, what restores the state there, and S + W."""
        self._host = host
        self._starts = starts
        self._dropped = dropped
        self._restorer = restorer
        self._session_at = session_at
        self._running = running
        self._capacity = capacity

    def begin(self, request: TurnRequest) -> RunningTurn:
        """Begin a turn after the one that the request names; see `Conversations.begin`."""
        asked = ReplyOptions(
            request.options,
            thinking=request.thinking,
            tools=request.tools,
            given=request.given,
            called_at=called_at(),
        )
        complete = self._host.complete(asked)
        deadline = deadline_of(complete.options["timeout_s"], asked.called_at)
        with ACTIVITIES.during("store"):
            start = self._starts.of(request)
        try:
            return self._begun(request, complete, start, deadline)
        finally:
            if request.store:
                self._running.started(start.conversation)

    def _begun(
        self,
        request: TurnRequest,
        complete: StreamRequest,
        start: TurnStart,
        deadline: Deadline | None,
    ) -> RunningTurn:
        """Bring a turn's state into a session, and begin the next turn there."""
        match = start.match
        try:
            end = self._end(request, match)
            with ACTIVITIES.during("encoding"):
                following = self._following(request, match, end)
            if request.refuses_overflow:
                check_fits(Prompt(end.tokens, len(following)), self._capacity, "messages")
        except BaseException:
            if match.resident is not None:
                self._restorer.residency.release(match.resident)
            raise
        found = self._found(request, start, end, following, deadline)
        if end.node is not None and end.node.is_form:
            end = End(found.resident.node)  # another request may have stored another form of it
        try:
            session, ids = found.resident.session, found.ids.tolist()
            stream = session.reply_to(ServedStream, ids, complete)
        except BaseException:  # such as an option out of range: the session is as it was
            self._restorer.residency.give_back(found.resident)
            raise
        try:
            return self._follow(request, start, end, found, following, stream)
        except BaseException:
            stream.close()
            self._restorer.residency.discard(found.resident)
            raise

    def _end(self, request: TurnRequest, match: Match) -> End:
        """Return the state that the messages which have not been read yet follow."""
        if match.base is None or match.resident is not None:
            return End(match.base)
        return self._dropped.end_of(match.base, request.thinking, request.tools, match.unread)

    def _following(self, request: TurnRequest, match: Match, end: End) -> array[int]:
        """Return the ids of the messages that have not been read yet."""
        self._host.check_texts(match.unread)
        ids = read_messages(
            self._host.formats.turns(request.thinking, request.tools),
            match.unread,
            end.start,
            continue_final=request.continue_final,
            has_thoughts=self._host.formats.tags(request.thinking) is not None,
            drops=self._dropped.drops(request.thinking),
            calls=self._calls_before(match),
        )
        return array("i", ids)

    def _calls_before(self, match: Match) -> list[dict[str, Any]]:
        """Return the calls of the last stored reply, if the messages have their results."""
        if match.base is None or match.unread[0]["role"] != "tool":
            return []
        return self._dropped.calls_of(match.base.tenant, match.base.id)

    def prompt_tokens(self, request: TurnRequest) -> int:
        """Return the tokens of a conversation before its reply; see `Turns.prompt_tokens`."""
        try:
            match = self._starts.match(request)
        except ContextExceeded:  # too much is pinned: no turn has begun with it
            match = self._starts.match(replace(request, sinks=0))
        try:
            end = self._end(request, match)
            following = self._following(request, match, end)
        finally:
            if match.resident is not None:
                self._restorer.residency.release(match.resident)
        return len(following) + end.tokens

    def _found(
        self,
        request: TurnRequest,
        start: TurnStart,
        end: End,
        following: array[int],
        deadline: Deadline | None,
    ) -> Found:
        match = start.match
        if match.resident is not None:
            resident = match.resident
            if request.forks:
                resident = self._restorer.fork_of(resident) or resident
            return found_at(resident, "resident", following)
        if end.node is None:
            return self._restorer.new(following, request.engine_salt, match.sinks)
        if end.node.is_form:
            return self._session_at.settled(
                end,
                following,
                request.engine_salt,
                writer=start.writer,
                deadline=deadline,
            )
        moves = request.store and not request.has_siblings
        return self._restorer.after(
            end.node,
            following,
            request.engine_salt,
            moves=moves,
            evicts=request.has_siblings,
        )

    def _follow(
        self,
        request: TurnRequest,
        start: TurnStart,
        end: End,
        found: Found,
        following: array[int],
        stream: ServedStream,
    ) -> RunningTurn:
        match = start.match
        base, resident = match.base, found.resident
        read = match.unread[:-1] if request.continue_final else match.unread
        prompt = Prompt(end.tokens, len(following))
        native = resident.session.native
        dropped = prompt.dropped(native.sinks, native.window)
        given = request.given or ""
        thinking = request.thinking
        new = NewNode(
            id=request.node or new_id("resp"),
            parent=None if base is None else base.id,
            conversation=start.conversation,
            tenant=request.tenant,
            session_key=request.session_key,
            read_ids=following,
            messages=encode_all(map(without_reasoning, match.unread if given else read)),
            before=hash_after(match.before, read),
            given=given,
            tokens=prompt.tokens,
            record=request.record,
            sinks=match.sinks,
            title=_title(match.unread) if base is None else "",
            is_after_settled=end.node is not None and end.node.is_form,
        )
        earlier: list[Given] = []
        if start.writer is not None and not request.record:  # whose writer counts messages
            earlier, new = split_off(
                self._host.formats.turns(thinking, request.tools),
                match.unread,
                end.start,
                new,
                match.before,
                is_settled=end.node is None or end.node.is_settled,
                has_thoughts=self._host.formats.tags(thinking) is not None,
                drops=self._dropped.drops(thinking),
            )
        is_exact = len(found.ids) == len(following) and not resident.cancelled_ids
        begun = Begun(
            new=new,
            writer=start.writer,
            resident=resident,
            ids=found.ids,
            starts_at=end.node if is_exact and not found.is_fork else None,
            tokens_before=found.tokens_before,
            may_be_settled=self._dropped.may_be_settled(thinking, end.node, match.unread, given),
            drops=self._dropped.drops(thinking),
        )
        facts = TurnFacts(
            state=found.state,
            node=new.id,
            session=new.conversation,
            prompt_tokens=prompt.tokens,
            cached_tokens=prompt.tokens - len(found.ids) - found.read,
            replayed_tokens=found.replayed,
            read_tokens=found.read,
            read_s=found.read_s,
            pinned_tokens=min(native.sinks, prompt.tokens),
            dropped_tokens=dropped,
            warning=warning_of(prompt, dropped, self._capacity),
        )
        turn = RunningTurn(begun, stream, facts, self._restorer.residency, self._running.discard)
        self._running.add(turn)
        try:
            if start.writer is not None:
                for turn_before in earlier:
                    turn_before.write(start.writer)
                start.writer.begin(new)
        except BaseException:
            self._running.discard(turn)
            stream.record = None
            raise
        return turn


def _title(messages: Sequence[Message]) -> str:
    """Return how a conversation begins, for lists of conversations."""
    first = next((one["content"] for one in messages if one["role"] == "user"), "")
    return str(first or "")[:_TITLE]
