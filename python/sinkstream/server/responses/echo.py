"""The fields of a response that repeat its request, and the record that the store keeps of it."""

from __future__ import annotations

import time
from typing import Any

import orjson

from sinkstream.server.config import NO_STORE
from sinkstream.server.responses.requests import ResponseRequest, format_of
from sinkstream.server.service import Service

_FUNCTION = {"type": "function", "name": "", "description": None, "parameters": None}


def echo_of(service: Service, body: ResponseRequest, name: str, *, store: bool) -> dict[str, Any]:
    """Return the fields of a response that do not change.

    Args:
        service: The server.
        body: The request.
        name: The response's id.
        store: Whether the client wants it stored.
    """
    defaults = service.host.defaults
    return {
        "id": name,
        "object": "response",
        "created_at": int(time.time()),
        "background": bool(body.background),
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": service.config.model_name,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "presence_penalty": _or(body.presence_penalty, defaults.presence_penalty),
        "frequency_penalty": _or(body.frequency_penalty, defaults.frequency_penalty),
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": (body.reasoning or {}).get("effort"), "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": store and service.config.store != NO_STORE,
        "temperature": _or(body.temperature, defaults.temperature),
        "text": {"format": format_of(body)},
        "tool_choice": body.tool_choice or "auto",
        "tools": [{**_FUNCTION, "strict": None, **tool} for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": _or(body.top_p, defaults.top_p),
        # OpenAI's default is "disabled"; here, tokens leave the window unless that is asked for.
        "truncation": body.truncation or "auto",
        "user": body.user,
    }


def _or(value: float | None, default: float) -> float:
    return float(default if value is None else value)


def record_of(echo: dict[str, Any], messages: int) -> str:
    """Return what is stored of a request in addition to its messages, whose number is given."""
    return orjson.dumps({"echo": echo, "messages": messages}).decode()
