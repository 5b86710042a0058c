"""`text.format` of the Responses API: the reply follows a schema, as that of a chat does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.python.server.http.running_server import Running
from tests.python.server.responses.checking import create, deltas, streamed, text_of

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("llguidance", reason="needs the extra `structured`")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "is_big": {"type": "boolean"}},
    "required": ["name", "is_big"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
LONG: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_output_tokens": 500}


def following(form: dict[str, Any]) -> dict[str, Any]:
    return {**LONG, "text": {"format": form}}


def test_a_schema_is_followed_and_repeated(server: Running) -> None:
    form = {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True}
    response = create(server, "the sea", **following(form)).json
    text = text_of(response)
    jsonschema.validate(json.loads(text), SCHEMA)
    assert response["status"] == "completed"
    assert response["text"]["format"] == {**form, "description": None}
    messages = [{"role": "user", "content": "the sea"}]
    options = {"temperature": 1.0, "seed": 3, "max_tokens": 500}
    assert text == server.model.generate(messages, schema=SCHEMA, **options).text


def test_a_stream_gives_the_same_reply(server: Running) -> None:
    form = {"type": "json_schema", "name": "place", "schema": SCHEMA}
    whole = text_of(create(server, "the boat", **following(form)).json)
    assert "".join(deltas(streamed(server, "the boat", **following(form)))) == whole


def test_any_object_is_followed(server: Running) -> None:
    fields = {**following({"type": "json_object"}), "max_output_tokens": 2000}
    response = create(server, "the sea", **fields).json
    if response["status"] == "completed":
        assert isinstance(json.loads(text_of(response)), dict)
    else:
        assert text_of(response).lstrip().startswith("{")


def test_the_next_response_is_free_again(server: Running) -> None:
    form = {"type": "json_schema", "name": "place", "schema": SCHEMA}
    first = create(server, "the sea", **following(form)).json
    second = create(server, "the boat", previous_response_id=first["id"]).json
    assert second["text"]["format"] == {"type": "text"}
    assert not text_of(second).startswith('{"')
