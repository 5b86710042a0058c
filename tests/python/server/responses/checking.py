"""Clients of the Responses API, and the published schema of its objects and events."""

from __future__ import annotations

import json
from typing import Any

import openresponses_types as schema
from openai import OpenAI

from tests.python.server.http.running_server import Answered, Running

RESPONSES = "/v1/responses"
OPTIONS: dict[str, Any] = {"max_output_tokens": 8, "temperature": 1.0}
OWN: dict[str, Any] = {"seed": 5, "ignore_eos": True}
ASKED: dict[str, Any] = {**OPTIONS, **OWN}
"""A reply of 8 tokens, always the same."""
ENDLESS: dict[str, Any] = {**ASKED, "max_output_tokens": 60000}
KEY = {"X-Api-Key": "a"}

_EVENTS: dict[str, Any] = {
    "response.created": schema.ResponseCreatedStreamingEvent,
    "response.queued": schema.ResponseQueuedStreamingEvent,
    "response.in_progress": schema.ResponseInProgressStreamingEvent,
    "response.output_item.added": schema.ResponseOutputItemAddedStreamingEvent,
    "response.content_part.added": schema.ResponseContentPartAddedStreamingEvent,
    "response.output_text.delta": schema.ResponseOutputTextDeltaStreamingEvent,
    "response.output_text.done": schema.ResponseOutputTextDoneStreamingEvent,
    "response.content_part.done": schema.ResponseContentPartDoneStreamingEvent,
    "response.output_item.done": schema.ResponseOutputItemDoneStreamingEvent,
    "response.reasoning_text.delta": schema.ResponseReasoningDeltaStreamingEvent,
    "response.reasoning_text.done": schema.ResponseReasoningDoneStreamingEvent,
    "response.completed": schema.ResponseCompletedStreamingEvent,
    "response.incomplete": schema.ResponseIncompleteStreamingEvent,
    "response.failed": schema.ResponseFailedStreamingEvent,
}
_CALL = "response.function_call_arguments"
_EVENTS[f"{_CALL}.delta"] = schema.ResponseFunctionCallArgumentsDeltaStreamingEvent
_EVENTS[f"{_CALL}.done"] = schema.ResponseFunctionCallArgumentsDoneStreamingEvent
OPENING = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
]
CLOSING = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]


def client_of(server: Running, key: str = "a") -> OpenAI:
    return OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=key, max_retries=0)


def create(server: Running, given: Any, key: str = "a", **more: Any) -> Answered:
    """Ask for a whole response, and check its shape."""
    body = {"input": given, **ASKED, **more}
    answer = server.post(RESPONSES, body, **{"X-Api-Key": key})
    assert answer.status == 200, answer.body
    checked(answer.json)
    return answer


def checked(response: dict[str, Any]) -> dict[str, Any]:
    """Return a response that the schema allows."""
    schema.ResponseResource.model_validate(without_schema(response))
    return response


def without_schema(response: dict[str, Any]) -> dict[str, Any]:
    """Return a response whose `text.format` has no schema, of which `openresponses-types` knows
    nothing but null."""
    form = response["text"]["format"]
    return {**response, "text": {"format": {**form, "schema": None} if "schema" in form else form}}


def text_of(response: dict[str, Any]) -> str:
    (item,) = response["output"]
    (part,) = item["content"]
    return str(part["text"])


def streamed(server: Running, given: Any, **more: Any) -> list[dict[str, Any]]:
    """Ask for a stream, and return its events."""
    answer = server.post(RESPONSES, {"input": given, **ASKED, **more, "stream": True}, **KEY)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    return sse(answer.body)


def followed(server: Running, name: str, after: int | None = None) -> list[dict[str, Any]]:
    """Return the events of a response after a number."""
    query = "stream=true" if after is None else f"stream=true&starting_after={after}"
    answer = server.ask("GET", f"{RESPONSES}/{name}?{query}", None, KEY)
    assert answer.status == 200, answer.body
    return sse(answer.body)


def sse(body: bytes) -> list[dict[str, Any]]:
    """Return the events of a complete stream; their names and numbers must be right."""
    events = []
    *blocks, end = [block for block in body.decode().split("\n\n") if block[:1] != ":"][:-1]
    assert end == "data: [DONE]"
    for block in blocks:
        name, _, data = block.partition("\ndata: ")
        event = json.loads(data)
        assert name == f"event: {event['type']}"
        events.append(event)
    return checked_events(events)


def checked_events(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events that the schema allows, numbered without gaps."""
    for event in events:
        whole = {"response": without_schema(event["response"])} if "response" in event else {}
        # OpenAI's clients know these events by another name than the schema.
        named = {"type": event["type"].replace(".reasoning_text.", ".reasoning.")}
        _EVENTS[event["type"]].model_validate({**event, **named, **whole})
    numbers = [event["sequence_number"] for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
    return events


def deltas(events: list[dict[str, Any]]) -> str:
    return "".join(event.get("delta", "") for event in events)
