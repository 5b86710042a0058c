"""Openings of requests, compared with those of the responses before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from sinkstream.server.responses.response_bodies import (
    ResponseRequest,
    request_fields_of,
    response_tools,
)
from sinkstream.server.responses.stored_responses import opening_of_fields, opening_with

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "day": {"type": "string"}}}
IN_ORDER = {"type": "function", "name": "f", "description": "A b.", "parameters": SCHEMA}
TURNED = {
    "strict": True,
    "parameters": dict(reversed(SCHEMA.items())),
    "description": "A b.",
    "name": "f",
    "type": "function",
}


def of_request(tool: dict[str, Any]) -> tuple[Any, Any]:
    """Return the opening of a request, and the one of its response."""
    body = ResponseRequest.model_validate({"input": "a", "instructions": "c", "tools": [tool]})
    defaults = SimpleNamespace(presence_penalty=0, frequency_penalty=0, temperature=1, top_p=1)
    config = SimpleNamespace(model_name="tiny", store="", refuses_overflow=False, tools="native")
    service: Any = SimpleNamespace(host=SimpleNamespace(defaults=defaults), config=config)
    fields = request_fields_of(service, body, "resp_1", store=True)
    return opening_with(body.instructions, response_tools(body, "native")), opening_of_fields(
        fields
    )


@pytest.mark.parametrize("tool", [IN_ORDER, TURNED], ids=["in_order", "turned"])
def test_a_request_and_its_response_have_the_same_opening(tool: dict[str, Any]) -> None:
    asked, answered = of_request(tool)
    assert asked == answered


def test_other_tools_are_another_opening() -> None:
    openings = [of_request({**IN_ORDER, "description": text})[0] for text in "ab"]
    assert openings[0] != openings[1]
