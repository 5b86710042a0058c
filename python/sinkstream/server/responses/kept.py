"""Responses in the store: the object, its input and its conversation, from the turn's text."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import orjson

from sinkstream.server.responses.state import Outcome, ResponseState
from sinkstream.server.turns import NotFound, Turns, TurnText

_KILLED = {"code": "server_error", "message": "The server ended before the reply was complete."}
_STATUSES = {"stop": "completed", "stop_string": "completed", "cancelled": "cancelled"}


def note_of(state: ResponseState, outcome: Outcome) -> str:
    """Return what is kept with a turn once its response has ended."""
    return orjson.dumps({"outcome": asdict(outcome), "sizes": state.sizes}).decode()


def stored_state(turns: Turns, tenant: str, name: str) -> ResponseState:
    """Return a stored response. Blocks.

    Raises:
        NotFound: The tenant has none of that name.
    """
    turn = turns.text_of(tenant, name)
    state = ResponseState(_record(turn, name)["echo"], tenant, is_begun=True)
    if turn.note:
        note = orjson.loads(turn.note)
        state.outcome = Outcome(**note["outcome"])
        text, begin = turn.text.encode(), 0
        for size in note["sizes"]:
            state.add(text[begin : begin + size].decode(), [])
            begin += size
    else:  # the server was killed
        state.outcome = _outcome(turn)
        state.add(turn.text, [])
    return state


def _outcome(turn: TurnText) -> Outcome:
    own = {"finish_reason": turn.finish_reason}
    if turn.finish_reason in ("length", "timeout"):
        return Outcome("incomplete", incomplete="max_output_tokens", own=own)
    status = _STATUSES.get(turn.finish_reason, "failed")
    return Outcome(status, error=_KILLED if status == "failed" else None, own=own)


def is_numbered(turns: Turns, tenant: str, name: str) -> bool:
    """Return whether it is known which event of a stored response had which text. Blocks.

    Raises:
        NotFound: The tenant has none of that name.
    """
    return bool(turns.text_of(tenant, name).note)


def input_of(turns: Turns, tenant: str, name: str) -> list[dict[str, Any]]:
    """Return the messages of a stored response's input. Blocks.

    Raises:
        NotFound: The tenant has none of that name.
    """
    turn = turns.text_of(tenant, name)
    count: int = _record(turn, name)["messages"]
    found = _conversation(turns, tenant, turn, count)
    return found[len(found) - count :]


def instructions_of(turns: Turns, tenant: str, name: str) -> str | None:
    """Return the instructions of a stored turn. Blocks.

    Raises:
        NotFound: The tenant has none of that name.
    """
    record = turns.text_of(tenant, name).record
    instructions: str | None = orjson.loads(record)["echo"]["instructions"] if record else None
    return instructions


def history_of(turns: Turns, tenant: str, name: str) -> list[dict[str, Any]]:
    """Return the messages of a conversation up to a stored turn's reply, without instructions.

    Blocks.

    Raises:
        NotFound: The tenant has no such turn.
    """
    turn = turns.text_of(tenant, name)
    messages = [*_conversation(turns, tenant, turn), _reply(turn)]
    has_instructions = instructions_of(turns, tenant, name) is not None
    return messages[1:] if has_instructions else messages


def _conversation(
    turns: Turns, tenant: str, turn: TurnText, least: int | None = None
) -> list[dict[str, Any]]:
    """Return the messages up to a turn's reply; of a long conversation, at least the last ones."""
    parts = [_read(turn)]
    while turn.previous is not None and (least is None or sum(map(len, parts)) < least):
        turn = turns.text_of(tenant, turn.previous)
        parts += [[_reply(turn)], _read(turn)]
    return [message for part in reversed(parts) for message in part]


def _read(turn: TurnText) -> list[dict[str, Any]]:
    return turn.messages[:-1] if turn.given else turn.messages


def _reply(turn: TurnText) -> dict[str, Any]:
    return {"role": "assistant", "content": turn.given + turn.text}


def _record(turn: TurnText, name: str) -> dict[str, Any]:
    if not turn.record:
        raise NotFound(f"responses: {name} is a turn of another API.")
    record: dict[str, Any] = orjson.loads(turn.record)
    return record
