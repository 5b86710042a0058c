"""What a response reads: its input, after the response that it continues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sinkstream.conversations.turns import NotFound, Turn, TurnRequest
from sinkstream.server.errors import ApiError, invalid
from sinkstream.server.responses.kept import history_of, opening_of
from sinkstream.server.responses.opening import opening_with
from sinkstream.server.service import Service

NAMES = {
    "prompt": "input",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "previous": "previous_response_id",
    "thinking": "reasoning",
}
"""The request's fields by the arguments of `Model.stream`, for errors."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, with only its own messages."""

    service: Service
    turn: TurnRequest
    """Its `messages` are the input's."""
    instructions: str | None
    refuses_eviction: bool = False
    """Whether a prompt that is longer than the window is an error."""


def beginning(asked: Asked) -> Callable[[], Turn]:
    """Return a function that begins the turn; calling it blocks.

    What is returned raises:
        ApiError: There is no such previous response, or the prompt is too long.
    """
    return lambda: _begin(asked)


def _begin(asked: Asked) -> Turn:
    turns = asked.service.turns
    try:
        turn = turns.begin(turn_request(asked))
    except NotFound:
        raise not_found(asked.turn.previous) from None
    capacity = asked.service.model.capacity.tokens
    if asked.refuses_eviction and turn.facts.prompt_tokens > capacity:
        turn.stream.close()
        turn.end()
        raise invalid(
            'body: with `truncation` "disabled", `input` and the conversation before it must have '
            f"at most {capacity} tokens together, but have {turn.facts.prompt_tokens}. "
            '"auto" lets older tokens leave the window.',
            "input",
            "context_length_exceeded",
        )
    return turn


def count(asked: Asked) -> int:
    """Return the tokens that a request would read, including earlier ones. Blocks.

    Raises:
        ApiError: There is no such previous response.
    """
    try:
        return asked.service.turns.prompt_tokens(turn_request(asked))
    except NotFound:
        raise not_found(asked.turn.previous) from None


def turn_request(asked: Asked) -> TurnRequest:
    """Return the turn to begin. Blocks.

    Instructions and tools are not carried over: if they differ from the previous ones, the
    conversation is read again with the new ones at its beginning.

    Raises:
        ApiError: The previous response is not stored, and has different instructions or tools.
        NotFound: There is no such previous response.
    """
    turn, previous = asked.turn, asked.turn.previous
    opening = _opening(asked.instructions)
    if previous is None:
        return replace(turn, messages=opening + turn.messages)
    live, turns = asked.service.live, asked.service.turns
    is_unstored = live.is_unstored(turn.tenant, previous)
    before = (
        live.opening_of(turn.tenant, previous)
        if is_unstored
        else opening_of(turns, turn.tenant, previous)
    )
    if before == opening_with(asked.instructions, turn.tools):
        return turn
    if is_unstored:
        name = "tools" if before.instructions == asked.instructions else "instructions"
        raise invalid(
            f"body: `{name}` must be the same as in the previous response, because that response "
            "was not stored.",
            name,
        )
    history = history_of(turns, turn.tenant, previous)
    return replace(turn, previous=None, messages=opening + history + turn.messages)


def _opening(instructions: str | None) -> list[dict[str, Any]]:
    return [] if instructions is None else [{"role": "system", "content": instructions}]


def not_found(previous: str | None) -> ApiError:
    """Return the error for a previous response that does not exist."""
    return invalid(
        "body: `previous_response_id` must name a response that is stored, or is in memory and has "
        f"not been continued, but is {(previous or '')[:80]!r}.",
        "previous_response_id",
        "previous_response_not_found",
    )
