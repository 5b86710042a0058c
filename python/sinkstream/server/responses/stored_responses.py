"""Responses in the store: the object, its input and its conversation, built from stored text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import orjson

from sinkstream.conversations.promises import BROKEN, Promise
from sinkstream.conversations.turns import NotFound, Turns, TurnText, calls_of, note_of_calls
from sinkstream.errors import SessionBusy
from sinkstream.request.tools import Tools
from sinkstream.server.body_options import as_chat_tools, tools_of
from sinkstream.server.responses.response_state import CallState, Deltas, Outcome, ResponseState
from sinkstream.sessions.pinned import Sinks
from sinkstream.text.messages import ToolCall

_KILLED = {"code": "server_error", "message": "The server ended before the reply was complete."}
_STATUSES = {"stop": "completed", "stop_string": "completed", "cancelled": "cancelled"}


class Opening(NamedTuple):
    """Two responses whose openings are equal can share a conversation."""

    instructions: str | None
    tools: str
    """The tools as text with sorted keys; "" without tools."""
    sinks: Sinks = None
    """What its request pins; None if that does not say."""

    def differs_in(self, before: Opening) -> str | None:
        """Return what keeps a request from going on from a response with another opening."""
        if self.instructions != before.instructions:
            return "instructions"
        if self.tools != before.tools:
            return "tools"
        return None if self.sinks in (None, before.sinks) else "sinks"


def opening_with(instructions: str | None, tools: Tools | None, sinks: Sinks = None) -> Opening:
    """Return the opening of a request."""
    # A response repeats its tools with their keys in another order.
    text = "" if tools is None else json.dumps(tools.definitions, sort_keys=True)
    return Opening(instructions, text, sinks)


def opening_of_fields(fields: dict[str, Any]) -> Opening:
    """Return the opening of a response, from the fields that repeat its request."""
    tools = tools_of(as_chat_tools(fields["tools"]), None, None, "native")
    return opening_with(fields["instructions"], tools, fields.get("sinks"))


def note_of(state: ResponseState, outcome: Outcome) -> str:
    """Return what is kept with a turn once its response has ended."""
    note: dict[str, Any] = {"outcome": asdict(outcome), **_deltas(state.text, state)}
    if state.has_thought:
        note["thought"] = {"text": state.thought.text, **_deltas(state.thought, state)}
        note["encodes_thought"] = state.encodes_thought
    if state.tells_usage:
        note["input_tokens"] = state.input_tokens
    return note_of_calls(
        [one.call.as_message() for one in state.calls],
        call_sizes=[list(map(len, one.deltas)) for one in state.calls],
        **note,
    )


def _deltas(deltas: Deltas, state: ResponseState) -> dict[str, Any]:
    counts = {"generated": list(deltas.generated)} if state.tells_usage else {}
    return {"sizes": deltas.sizes, **counts}


def as_text(outcome: Outcome) -> str:
    """Return how a response ended as its promise keeps it."""
    return orjson.dumps(asdict(outcome)).decode()


def stored_state(turns: Turns, tenant: str, name: str) -> ResponseState:
    """Return a stored response, or one that was promised and has not left a turn. Blocks.

    Raises:
        NotFound: The tenant has no response with that name.
        SessionBusy: Another process is generating it, and has not promised it.
    """
    promise = promise_of(turns, tenant, name)
    try:
        turn = turns.text_of(tenant, name)
    except (NotFound, SessionBusy):
        if promise is None:
            raise
        return _promised_state(promise)
    state = ResponseState(_record(turn, name)["echo"], tenant, len(turn.record), is_begun=True)
    note = orjson.loads(turn.note or "{}")
    calls = calls_of(turn)
    if "outcome" in note:
        state.outcome = Outcome(**note["outcome"])
        state.text.add_all(turn.text, note["sizes"], note.get("generated", ()))
        for call, sizes in zip(calls, note.get("call_sizes", ()), strict=True):
            state.calls.append(_call(call, sizes))
        if (thought := note.get("thought")) is not None:
            state.thought.add_all(thought["text"], thought["sizes"], thought.get("generated", ()))
            state.encodes_thought = note["encodes_thought"]
        state.tells_usage = "input_tokens" in note
        state.input_tokens = note.get("input_tokens", 0)
    else:  # the server was killed
        state.outcome = _outcome(turn)
        if turn.text or not calls:
            state.text.add(turn.text)
        state.calls += [_call(call, [len(call["function"]["arguments"])]) for call in calls]
    return state


def promise_of(turns: Turns, tenant: str, name: str) -> Promise | None:
    """Return the promise of a tenant's response; None if there is none, or its turn is kept."""
    return None if turns.promises is None else turns.promises.find(tenant, name)


def _promised_state(promise: Promise) -> ResponseState:
    echo = orjson.loads(promise.record)["echo"]
    state = ResponseState(echo, promise.tenant, len(promise.record), is_begun=promise.is_running)
    if promise.outcome == BROKEN:
        state.outcome = Outcome("failed", error=_KILLED)
    elif promise.outcome:
        state.outcome = Outcome(**orjson.loads(promise.outcome))
    return state


def delete(turns: Turns, tenant: str, name: str) -> bool:
    """Delete a response, and all that continue it; return whether it has ended. Blocks.

    Raises:
        NotFound: The tenant has no response with that name.
    """
    if stored_state(turns, tenant, name).outcome is None:
        return False
    if promise_of(turns, tenant, name) is None:
        turns.delete(tenant, name)
    elif turns.promises is not None:
        turns.promises.remove(name)
    return True


def _call(call: dict[str, Any], sizes: Sequence[int]) -> CallState:
    function = call["function"]
    state, begin = CallState(ToolCall(call["id"], function["name"])), 0
    for size in sizes:
        state.add(function["arguments"][begin : begin + size])
        begin += size
    return state


def _outcome(turn: TurnText) -> Outcome:
    own = {"finish_reason": turn.finish_reason}
    if turn.finish_reason in ("length", "timeout"):
        return Outcome("incomplete", incomplete="max_output_tokens", own=own)
    status = _STATUSES.get(turn.finish_reason, "failed")
    return Outcome(status, error=_KILLED if status == "failed" else None, own=own)


def is_numbered(turns: Turns, tenant: str, name: str) -> bool:
    """Return whether the store knows which event of a response had which text. Blocks.

    Raises:
        NotFound: The tenant has no response with that name.
    """
    if promise_of(turns, tenant, name) is not None:
        return True  # it has no text
    return "outcome" in orjson.loads(turns.text_of(tenant, name).note or "{}")


def input_of(turns: Turns, tenant: str, name: str) -> list[dict[str, Any]]:
    """Return the messages of a stored response's input; the response may be running. Blocks.

    Raises:
        NotFound: The tenant has no response with that name.
    """
    promise = promise_of(turns, tenant, name)
    if promise is not None:
        messages: list[dict[str, Any]] = orjson.loads(promise.messages)
        return messages
    turn = turns.text_of(tenant, name, may_run=True)
    count: int = _record(turn, name)["messages"]
    found = _conversation(turns, tenant, turn, count)
    if turn.given:
        found = [*found, turn.messages[-1]]
    return found[len(found) - count :]


def opening_of(turns: Turns, tenant: str, name: str) -> Opening:
    """Return what a stored turn's conversation begins with. Blocks.

    Raises:
        NotFound: The tenant has no response with that name.
    """
    return _opening_in(turns.text_of(tenant, name))


def _opening_in(turn: TurnText) -> Opening:
    record = turn.record
    return opening_of_fields(orjson.loads(record)["echo"]) if record else Opening(None, "")


def history_of(turns: Turns, tenant: str, name: str) -> list[dict[str, Any]]:
    """Return the messages of a conversation up to a stored turn's reply, without instructions.

    Blocks.

    Raises:
        NotFound: The tenant has no such turn.
    """
    turn = turns.text_of(tenant, name)
    messages = [*_conversation(turns, tenant, turn), _reply(turn)]
    return messages if _opening_in(turn).instructions is None else messages[1:]


def _conversation(
    turns: Turns, tenant: str, turn: TurnText, least: int | None = None
) -> list[dict[str, Any]]:
    """Return the messages up to a turn's reply; of a long conversation, at least the last ones."""
    parts = [_read(turn)]
    count = len(parts[0])
    while turn.previous is not None and (least is None or count < least):
        turn = turns.text_of(tenant, turn.previous)
        parts += [[_reply(turn)], _read(turn)]
        count += 1 + len(parts[-1])
    return [message for part in reversed(parts) for message in part]


def _read(turn: TurnText) -> list[dict[str, Any]]:
    return turn.messages[:-1] if turn.given else turn.messages


def _reply(turn: TurnText) -> dict[str, Any]:
    reply = {"role": "assistant", "content": turn.given + turn.text}
    calls = calls_of(turn)
    return {**reply, "tool_calls": calls} if calls else reply


def _record(turn: TurnText, name: str) -> dict[str, Any]:
    if not turn.record:
        raise NotFound(f"responses: {name} must be a response, but is a turn from a different API.")
    record: dict[str, Any] = orjson.loads(turn.record)
    return record
