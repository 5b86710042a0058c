"""The `response` object, and the thought, the message and the calls in it."""

from __future__ import annotations

from typing import Any

from sinkstream.server import logprobs
from sinkstream.server.logprobs import Vocabulary
from sinkstream.server.responses.items import encode_thought
from sinkstream.server.responses.response_state import Deltas, ResponseState


def message_id(response_id: str) -> str:
    """Return the id of a response's message, which a restart does not change."""
    return "msg_" + response_id.rpartition("_")[2]


def call_item_id(response_id: str, index: int) -> str:
    """Return the id of one of a response's calls, which a restart does not change."""
    return f"fc_{response_id.rpartition('_')[2]}_{index}"


def reasoning_id(response_id: str) -> str:
    """Return the id of a response's thought."""
    return "rs_" + response_id.rpartition("_")[2]


class Resources:
    """Makes the objects of one response."""

    def __init__(self, state: ResponseState, vocabulary: Vocabulary) -> None:
        """Describe `state`, with tokens of `vocabulary`."""
        self.state = state
        self._vocabulary = vocabulary

    def response(self) -> dict[str, Any]:
        """Return the response as it is now; it has output once it has ended."""
        outcome = self.state.outcome
        has_reply = outcome is not None and self.state.is_begun
        return self._with(
            self.state.status,
            completed_at=outcome and outcome.completed_at,
            error=outcome and outcome.error,
            incomplete_details=(
                {"reason": outcome.incomplete} if outcome and outcome.incomplete else None
            ),
            output=self._output() if has_reply else [],
            usage=outcome and outcome.usage,
            sinkstream=outcome and outcome.own,
        )

    def _output(self) -> list[dict[str, Any]]:
        state = self.state
        thoughts = [self.reasoning()] if state.has_thought else []
        messages = [self.message()] if state.has_message else []
        return thoughts + messages + [self.call(i) for i in range(len(state.calls))]

    def unfinished(self, status: str) -> dict[str, Any]:
        """Return the response as it was at its beginning."""
        return self._with(
            status,
            completed_at=None,
            error=None,
            incomplete_details=None,
            output=[],
            usage=None,
            sinkstream=None,
        )

    def _with(self, status: str, **fields: Any) -> dict[str, Any]:
        return {**self.state.request_fields, "status": status, **fields}

    def reasoning(self, *, is_empty: bool = False) -> dict[str, Any]:
        """Return the thought as in the output, or as it is before it has a part.

        It has no summary: the text itself is included.
        """
        state = self.state
        is_whole = len(state.text) > 0 or state.calls or state.status == "completed"
        status = "in_progress" if is_empty else "completed" if is_whole else "incomplete"
        encoded = state.encodes_thought and not is_empty
        return {
            "id": reasoning_id(state.id),
            "type": "reasoning",
            "status": status,
            "summary": [],
            "content": [] if is_empty else [self.reasoning_part()],
            "encrypted_content": encode_thought(state.thought.text) if encoded else None,
        }

    def reasoning_part(self, *, is_empty: bool = False) -> dict[str, Any]:
        """Return the thought as a part of its item."""
        return {"type": "reasoning_text", "text": "" if is_empty else self.state.thought.text}

    def message(self, *, is_empty: bool = False) -> dict[str, Any]:
        """Return the message as in the output, or as it is before it has a part."""
        outcome = self.state.outcome
        status = "incomplete"
        if is_empty:
            status = "in_progress"
        elif self.state.calls or (outcome is not None and outcome.status == "completed"):
            status = "completed"
        return {
            "id": message_id(self.state.id),
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [] if is_empty else [self.part()],
        }

    def call(self, index: int, *, is_empty: bool = False) -> dict[str, Any]:
        """Return a call as in the output, or as it is before it has arguments."""
        state, call = self.state, self.state.calls[index].call
        is_last = index == len(state.calls) - 1
        status = "completed"
        if is_empty:
            status = "in_progress"
        elif is_last and state.outcome is not None and state.outcome.status != "completed":
            status = "incomplete"
        return {
            "id": call_item_id(state.id, index),
            "type": "function_call",
            "status": status,
            "call_id": call.id,
            "name": call.name,
            "arguments": "" if is_empty else call.arguments,
        }

    def part(self, *, is_empty: bool = False) -> dict[str, Any]:
        """Return the text as a part of the message."""
        return {
            "type": "output_text",
            "text": "" if is_empty else self.state.text.text,
            "annotations": [],
            "logprobs": [] if is_empty else self.logprobs(),
        }

    def logprobs(self, number: int | None = None) -> list[dict[str, Any]]:
        """Return the log-probabilities of a delta, or of all deltas; none unless requested."""
        if self.state.tokens is None:
            return []
        parts = self.state.tokens if number is None else [self.state.tokens[number]]
        tokens = [token for part in parts for token in part]
        found: list[dict[str, Any]] = logprobs.of_chat(tokens, self._vocabulary)["content"]
        return found

    def counts(self, deltas: Deltas, number: int | None) -> dict[str, Any]:
        """Return a field with the token counts up to the end of a delta, if they are requested."""
        state = self.state
        if number is None or not state.tells_usage:
            return {}
        tokens = {"input_tokens": state.input_tokens, "output_tokens": deltas.generated[number]}
        return {"sinkstream": tokens}
