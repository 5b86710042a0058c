"""Responses that are kept: continued by their ids, found, listed, deleted, and not by strangers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

import sinkstream
from tests.python.server.http.running_server import CHAT, Running, running
from tests.python.server.responses.checking import (
    ASKED,
    KEY,
    RESPONSES,
    checked,
    client_of,
    create,
    followed,
    streamed,
    text_of,
)
from tests.python.server.responses.test_create import ITEMS

OTHER = {"X-Api-Key": "b"}


def get(server: Running, name: str) -> dict[str, Any]:
    answer = server.ask("GET", f"{RESPONSES}/{name}", None, KEY)
    assert answer.status == 200, answer.body
    return checked(answer.json)


def read(response: dict[str, Any]) -> int:
    """Return how many tokens were read for a response."""
    usage = response["usage"]
    return int(usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"])


def test_a_chain_is_a_session(server: Running, tiny_folder: Callable[[str], Path]) -> None:
    """30 turns at a window of 60; every reply equals a session's."""
    name, reads = None, []
    options: Any = {"max_tokens": 8, "ignore_eos": True, "temperature": 1.0}
    with (
        sinkstream.load(tiny_folder("llama"), window=60, threads=1) as alone,
        alone.session() as session,
    ):
        for turn in range(30):
            asked = f"say {turn}"
            more = {"previous_response_id": name} if name else {}
            response = create(server, asked, **more, seed=turn).json
            assert text_of(response) == session.stream(asked, seed=turn, **options).result().text
            assert response["previous_response_id"] == name
            assert response["sinkstream"]["state"] == ("resident" if turn else "new")
            reads.append(read(response))
            name = response["id"]
    assert max(reads[1:]) <= reads[0] + 10


def test_one_response_may_have_two_children(server: Running) -> None:
    first = create(server, "My name is Mark.").json["id"]
    texts = {}
    for asked in ("What is my name?", "Name a colour.", "What is my name?"):
        child = create(server, asked, previous_response_id=first, seed=2).json
        assert texts.setdefault(asked, text_of(child)) == text_of(child)
        assert child["sinkstream"]["session"] == get(server, first)["sinkstream"]["session"]
    assert len(set(texts.values())) == 2


def test_a_chat_and_a_response_continue_each_other(server: Running) -> None:
    first = create(server, "the two ways").json
    history = [
        {"role": "user", "content": "the two ways"},
        {"role": "assistant", "content": text_of(first)},
        {"role": "user", "content": "go on"},
    ]
    chat = server.post(CHAT, {"messages": history, "max_tokens": 4, "seed": 1}, **KEY).json
    assert chat["usage"]["sinkstream"]["state"] == "resident"
    node = chat["usage"]["sinkstream"]["node"]
    after = create(server, "and on", previous_response_id=node).json
    assert after["sinkstream"]["state"] == "resident"
    assert server.ask("GET", f"{RESPONSES}/{node}", None, KEY).status == 404
    found = create(server, [*history[:2], {"role": "user", "content": "or so"}]).json
    assert found["sinkstream"]["session"] == first["sinkstream"]["session"]


def test_a_response_is_found_as_it_was_sent(server: Running, client: OpenAI) -> None:
    sent = create(server, "the sea", metadata={"a": "b"}, instructions="Be brief.").json
    assert get(server, sent["id"]) == sent
    assert client.responses.retrieve(sent["id"]).to_dict(mode="json") == sent
    events = streamed(server, "the boat")
    assert get(server, events[0]["response"]["id"]) == events[-1]["response"]


def test_the_events_of_a_response_can_be_read_again_from_any_number(server: Running) -> None:
    events = streamed(server, "the boat", max_output_tokens=20)
    name = events[0]["response"]["id"]
    assert followed(server, name) == events
    for after in range(len(events)):
        assert followed(server, name, after) == events[after + 1 :]
    assert followed(server, name, len(events) + 5) == []
    whole = create(server, "the boat", max_output_tokens=20).json
    again = followed(server, whole["id"])
    assert again[-1]["response"] == whole


def test_openais_client_reads_events_again(server: Running, client: OpenAI) -> None:
    events = streamed(server, "the boat")
    name = events[0]["response"]["id"]
    found = client.responses.retrieve(name, stream=True, starting_after=3)
    assert [event.sequence_number for event in found] == [
        event["sequence_number"] for event in events[4:]
    ]


def test_instructions_are_not_carried_over(server: Running) -> None:
    first = create(server, "the sea", instructions="Be brief.").json
    name = first["id"]
    kept = create(server, "go on", previous_response_id=name, instructions="Be brief.").json
    assert kept["sinkstream"]["state"] == "resident"
    for instructions in ("Be long.", None):
        asked: dict[str, Any] = {"instructions": instructions} if instructions else {}
        found = create(server, "go on", previous_response_id=name, **asked).json
        messages = [
            *([{"role": "system", "content": instructions}] if instructions else []),
            {"role": "user", "content": "the sea"},
            {"role": "assistant", "content": text_of(first)},
            {"role": "user", "content": "go on"},
        ]
        assert text_of(found) == text_of(create(server, messages, cache_salt="no cache").json)
        assert found["instructions"] == instructions
        assert found["previous_response_id"] == name
        # What follows continues it, not the first one.
        after = create(server, "and?", previous_response_id=found["id"], **asked).json
        assert after["sinkstream"]["session"] == found["sinkstream"]["session"]
        assert after["sinkstream"]["session"] != first["sinkstream"]["session"]


def test_a_system_message_in_the_input_is_carried_over(server: Running) -> None:
    first = create(server, ITEMS).json
    after = create(server, "go on", previous_response_id=first["id"]).json
    assert after["sinkstream"]["state"] == "resident"
    # With instructions, it stays after them.
    asked = {"previous_response_id": first["id"], "instructions": "Other"}
    found = create(server, "go on", **asked).json
    messages = [
        {"role": "system", "content": "Other"},
        *ITEMS,
        {"role": "assistant", "content": text_of(first)},
        {"role": "user", "content": "go on"},
    ]
    expected = create(server, messages, cache_salt="no cache").json
    assert text_of(found) == text_of(expected)
    assert found["usage"]["input_tokens"] == expected["usage"]["input_tokens"]


def test_the_input_is_listed(server: Running, client: OpenAI) -> None:
    first = create(server, ITEMS, instructions="Hear").json["id"]
    listed = client.responses.input_items.list(first, order="asc").data
    contents = [
        [part.text for part in item.content]
        for item in listed  # type: ignore[union-attr]
    ]
    assert contents == [["Be brief."], ["the sea"], ["is wide"], ["and\nthen?"]]
    assert [item.role for item in listed] == ["system", "user", "assistant", "user"]  # type: ignore[union-attr]
    second = create(server, "go on", previous_response_id=first, instructions="Hear").json["id"]
    (only,) = client.responses.input_items.list(second).data
    assert only.content[0].text == "go on"  # type: ignore[union-attr]
    # A history that is sent again is all of it the input, although it was not read again.
    history = [{"role": "user", "content": "one"}]
    text = text_of(create(server, history).json)
    history += [{"role": "assistant", "content": text}, {"role": "user", "content": "two"}]
    third = create(server, history).json
    assert third["sinkstream"]["state"] == "resident"
    assert len(client.responses.input_items.list(third["id"]).data) == 3


def test_the_input_is_listed_in_pages(server: Running) -> None:
    name = create(server, ITEMS).json["id"]

    def page(query: str) -> dict[str, Any]:
        answer = server.ask("GET", f"{RESPONSES}/{name}/input_items?{query}", None, KEY)
        assert answer.status == 200, answer.body
        found: dict[str, Any] = answer.json
        return found

    ids = [item["id"] for item in page("order=asc")["data"]]
    assert [item["id"] for item in page("")["data"]] == ids[::-1]
    first = page("order=asc&limit=3")
    assert (first["first_id"], first["last_id"], first["has_more"]) == (ids[0], ids[2], True)
    rest = page(f"order=asc&after={ids[2]}")
    assert ([item["id"] for item in rest["data"]], rest["has_more"]) == (ids[3:], False)
    for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=msg_none"):
        assert server.ask("GET", f"{RESPONSES}/{name}/input_items?{query}", None, KEY).status == 400


def test_function_calls_are_read_and_listed(server: Running) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "42"}
    given = [{"role": "user", "content": "count"}, call, output]
    response = create(server, given).json
    assert (
        response["usage"]["input_tokens"] > create(server, given[:1]).json["usage"]["input_tokens"]
    )
    name = response["id"]
    items = server.ask("GET", f"{RESPONSES}/{name}/input_items?order=asc", None, KEY).json["data"]
    assert [item["type"] for item in items] == ["message", "function_call", "function_call_output"]
    assert {**items[1], **call} == items[1]
    assert {**items[2], **output} == items[2]


def test_a_deleted_response_is_gone_with_what_follows(server: Running, client: OpenAI) -> None:
    first = create(server, "delete").json["id"]
    second = create(server, "go on", previous_response_id=first).json["id"]
    third = create(server, "and on", previous_response_id=second).json["id"]
    answer = server.ask("DELETE", f"{RESPONSES}/{second}", None, KEY)
    assert answer.json == {"id": second, "object": "response", "deleted": True}
    for name in (second, third):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(name)
    assert client.responses.retrieve(first).id == first
    client.responses.delete(first)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(first)


def test_strangers_find_nothing(server: Running) -> None:
    name = create(server, "a secret").json["id"]
    for method, path in (
        ("GET", name),
        ("GET", f"{name}?stream=true"),
        ("GET", f"{name}/input_items"),
        ("DELETE", name),
    ):
        refused = server.ask(method, f"{RESPONSES}/{path}", None, OTHER)
        assert (refused.status, refused.error["code"]) == (404, "response_not_found")
    cancelled = server.post(f"{RESPONSES}/{name}/cancel", {}, **OTHER)
    assert (cancelled.status, cancelled.error["code"]) == (404, "response_not_found")
    for path in (RESPONSES, f"{RESPONSES}/input_tokens"):
        body = {"input": "go on", "previous_response_id": name, **ASKED}
        refused = server.post(path, body, **OTHER)
        assert refused.status == 400
        assert refused.error["code"] == "previous_response_not_found"
        assert refused.error["param"] == "previous_response_id"
    assert get(server, name)["id"] == name


@pytest.mark.parametrize("name", ["resp_none", "x", "resp_" + "0" * 32, "%00", "resp_'--"])
def test_what_is_not_there_is_not_found(server: Running, name: str) -> None:
    for method in ("GET", "DELETE"):
        answer = server.ask(method, f"{RESPONSES}/{name}", None, KEY)
        assert (answer.status, answer.error["code"]) == (404, "response_not_found")
    answer = server.post(RESPONSES, {"input": "a", "previous_response_id": name}, **KEY)
    assert (answer.status, answer.error["code"]) == (400, "previous_response_not_found")
    assert answer.error["message"] == (
        "`previous_response_id` must name a response that is stored, or is in memory and has "
        f"not been continued, but is {name!r}."
    )


@pytest.mark.parametrize(
    "query", ["stream=yes", "starting_after=1", "stream=true&starting_after=-1",
              "stream=true&starting_after=x"]
)  # fmt: skip
def test_a_bad_query_is_refused(server: Running, query: str) -> None:
    name = create(server, "the sea").json["id"]
    assert server.ask("GET", f"{RESPONSES}/{name}?{query}", None, KEY).status == 400


def test_what_is_not_stored_is_only_continued(server: Running) -> None:
    first = create(server, "not stored", store=False, instructions="Be brief.").json
    assert first["store"] is False
    assert server.ask("GET", f"{RESPONSES}/{first['id']}", None, KEY).status == 404
    asked = {"previous_response_id": first["id"], "store": False, **ASKED, "input": "go on"}
    refused = server.post(RESPONSES, {**asked, "instructions": "Be long."}, **KEY)
    assert (refused.status, refused.error["param"]) == (400, "instructions")
    refused = server.post(RESPONSES, {**asked, "instructions": "Be brief.", "store": True}, **KEY)
    assert (refused.status, refused.error["param"]) == (400, "store")
    del asked["input"]
    after = create(server, "go on", **asked, instructions="Be brief.").json
    assert after["sinkstream"]["state"] == "resident"


def test_without_a_store_nothing_is_found(tiny_folder: Callable[[str], Path]) -> None:
    with running(tiny_folder("llama")) as server:
        sent = create(server, "the sea").json
        assert sent["store"] is False
        assert server.ask("GET", f"{RESPONSES}/{sent['id']}").status == 404
        body = {"input": "go on", "previous_response_id": sent["id"]}
        refused = server.post(RESPONSES, body)
        assert refused.error["code"] == "previous_response_not_found"
        counted = server.post(f"{RESPONSES}/input_tokens", {"input": "the sea"}).json
        assert counted["input_tokens"] == sent["usage"]["input_tokens"]


def test_a_restart_keeps_ids(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    store, model = str(tmp_path), tiny_folder("llama")
    with running(model, store=store, api_keys=("a",)) as server:
        first = create(server, "the sea").json
        events = streamed(server, "go on", previous_response_id=first["id"])
        second = events[-1]["response"]
        expected = text_of(create(server, "more", previous_response_id=second["id"]).json)
    with running(model, store=store, api_keys=("a",)) as server, client_of(server) as client:
        assert get(server, first["id"]) == first
        assert get(server, second["id"]) == second
        assert followed(server, second["id"], 4) == events[5:]
        again = create(server, "more", previous_response_id=second["id"]).json
        assert text_of(again) == expected
        assert again["sinkstream"]["state"] in ("loaded", "replayed")
        assert client.responses.retrieve(again["id"]).output_text == expected
