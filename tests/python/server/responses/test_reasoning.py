"""A reasoning model's thoughts in the Responses API: items and events of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from tests.python.server.http.running_server import Running, running
from tests.python.server.responses.checking import (
    RESPONSES,
    checked,
    client_of,
    deltas,
    followed,
    sse,
)
from tests.python.text.reasoning_templates import KEPT, OPENED, THINK, WRITTEN, write_folder
from tests.python.text.vocabularies import special

TEMPLATES: dict[str, tuple[Any, ...]] = {
    "opened": (OPENED, *THINK),
    "written": (WRITTEN, *THINK),
    "kept": (KEPT, *special("[THINK]", "[/THINK]")),
}
Serve = Callable[[str], Running]
THOUGHT = [
    "response.output_item.added",
    "response.content_part.added",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
MESSAGE = [kind.replace("reasoning", "output") for kind in THOUGHT]


@pytest.fixture(scope="module")
def serve(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Serve]:
    """Give servers that store responses, by template."""
    found: dict[str, Running] = {}
    with ExitStack() as stack:

        def server(name: str) -> Running:
            if name not in found:
                root = tmp_path_factory.mktemp("server")
                folder = write_folder(tiny_folder("llama"), root / "model", *TEMPLATES[name])
                found[name] = stack.enter_context(
                    running(folder, store=str(root / "store"), flush_s=0.0)
                )
            return found[name]

        yield server


def asked(server: Running, *texts: str, **more: Any) -> dict[str, Any]:
    """Return a request in whose reply every token is one of a few."""
    tokenizer = server.model.tokenizer
    assert tokenizer is not None
    ids = {i for text in texts for i in tokenizer.encode(text, add_special_tokens=False).ids}
    bias = {str(i): 1e5 for i in ids}
    drawn = {"temperature": 100.0, "top_p": 1.0, "min_p": 0.0, "seed": 1}
    options = {"max_output_tokens": 20, "logit_bias": bias, "ignore_eos": True}
    return {"input": "the sea", **drawn, **options, **more}


def created(server: Running, *texts: str, **more: Any) -> dict[str, Any]:
    answer = server.post(RESPONSES, asked(server, *texts, **more))
    assert answer.status == 200, answer.body
    return checked(answer.json)


def short(events: list[dict[str, Any]]) -> list[str]:
    """Return the types of events, each series of deltas as one."""
    kinds = [event["type"] for event in events]
    return [kind for index, kind in enumerate(kinds) if index == 0 or kind != kinds[index - 1]]


def test_a_thought_is_an_item_before_the_message(serve: Serve) -> None:
    server = serve("opened")
    response = created(server, "x", "q", "</think>")
    thought, message = response["output"]
    assert (thought["type"], message["type"]) == ("reasoning", "message")
    assert thought["id"] == message["id"].replace("msg_", "rs_")
    assert thought["summary"] == []
    assert (thought["status"], thought["encrypted_content"]) == ("completed", None)
    (part,) = thought["content"]
    assert part["type"] == "reasoning_text"
    assert part["text"].strip("xq") == ""
    assert message["content"][0]["text"]
    details = response["usage"]["output_tokens_details"]
    assert details == {"reasoning_tokens": len(part["text"]) + 1}
    again = server.ask("GET", f"{RESPONSES}/{response['id']}").json
    assert again == response


@pytest.mark.parametrize("background", [False, True])
def test_events_of_a_thought_come_before_those_of_the_message(
    serve: Serve, background: bool
) -> None:
    server = serve("opened")
    more = {"stream": True, "background": background}
    events = sse(server.post(RESPONSES, asked(server, "x", "q", "</think>", **more)).body)
    queued = ["response.queued"] * background
    expected = ["response.created", *queued, "response.in_progress", *THOUGHT, *MESSAGE]
    assert short(events) == [*expected, "response.completed"] or short(events) == [
        *expected, "response.incomplete"
    ]  # fmt: skip
    response = events[-1]["response"]
    for index, item in enumerate(response["output"]):
        own = [event for event in events if event.get("output_index") == index]
        assert deltas(own) == item["content"][0]["text"]
        assert own[-1]["item"] == {**item, "status": own[-1]["item"]["status"]}
        assert {event["item_id"] for event in own if "item_id" in event} == {item["id"]}
    # They are the same when they are read again, from any number on.
    name = response["id"]
    assert followed(server, name) == events
    for after in range(len(events)):
        assert followed(server, name, after) == events[after + 1 :]


def test_a_thought_that_never_ends_leaves_no_message(serve: Serve) -> None:
    server = serve("opened")
    response = created(server, "x")
    (thought,) = response["output"]
    assert (response["status"], thought["status"]) == ("incomplete", "incomplete")
    assert thought["content"] == [{"type": "reasoning_text", "text": "x" * 20}]
    assert server.ask("GET", f"{RESPONSES}/{response['id']}").json == response
    events = sse(server.post(RESPONSES, asked(server, "x", stream=True)).body)
    opening = ["response.created", "response.in_progress"]
    assert short(events) == [*opening, *THOUGHT, "response.incomplete"]


def test_a_reply_without_a_thought_is_a_message(serve: Serve) -> None:
    server = serve("written")
    response = created(server, "x")
    (message,) = response["output"]
    assert message["content"][0]["text"] == "x" * 20
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}
    events = sse(server.post(RESPONSES, asked(server, "x", stream=True)).body)
    opening = ["response.created", "response.in_progress"]
    assert short(events) == [*opening, *MESSAGE, "response.incomplete"]
    empty = sse(server.post(RESPONSES, asked(server, "x", stream=True, max_output_tokens=0)).body)
    no_deltas = [kind for kind in MESSAGE if not kind.endswith("delta")]
    assert short(empty) == [*opening, *no_deltas, "response.incomplete"]


def test_an_effort_says_whether_to_think(serve: Serve) -> None:
    server = serve("written")

    def tokens(**more: Any) -> int:
        response = created(server, "x", **more)
        count: int = response["usage"]["input_tokens"]
        counted = server.post(f"{RESPONSES}/input_tokens", {"input": "the sea", **more}).json
        assert counted["input_tokens"] == count
        return count

    plain = tokens()
    assert tokens(reasoning={"effort": "none"}) > plain
    assert tokens(reasoning={"effort": "low"}) == plain  # the template knows no efforts
    assert created(server, "x", reasoning={"effort": "low"})["reasoning"]["effort"] == "low"


def test_thoughts_are_sent_back_as_the_template_says(serve: Serve) -> None:
    server = serve("kept")
    include = ["reasoning.encrypted_content"]
    for seed in range(40):  # until the reply begins with the tag
        response = created(server, "[THINK]", "[/THINK]", "x", "q", include=include, seed=seed)
        if len(response["output"]) == 2:
            break
    thought, message = response["output"]
    encoded = thought["encrypted_content"]
    assert encoded
    assert server.ask("GET", f"{RESPONSES}/{response['id']}").json == response
    # Not the stored conversation, which would be continued as it is.
    said = [{"role": "user", "content": "a boat"}, message, {"role": "user", "content": "and"}]
    forms: list[dict[str, Any]] = [
        thought,
        {**thought, "content": None},
        {**thought, "encrypted_content": None},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]},
    ]

    def tokens(*items: Any) -> int:
        given = [said[0], *items, *said[1:]]
        answer = server.post(f"{RESPONSES}/input_tokens", {"input": given, "store": False})
        assert answer.status == 200, answer.body
        count: int = answer.json["input_tokens"]
        return count

    counts = [tokens(form) for form in forms]
    assert counts[0] == counts[1] == counts[2] > tokens()
    assert counts[3] != tokens()
    after = [*said, thought, {"role": "user", "content": "more"}]  # no reply follows it
    answer = server.post(f"{RESPONSES}/input_tokens", {"input": after})
    without = server.post(f"{RESPONSES}/input_tokens", {"input": [*said, after[-1]]})
    assert answer.json == without.json
    for wrong in ("x", encoded[:-3] + "*", encoded.replace("-1.", "-2.")):
        item = {"type": "reasoning", "summary": list[str](), "encrypted_content": wrong}
        answer = server.post(RESPONSES, asked(server, "x", input=[item, *said]))
        assert (answer.status, answer.error["code"]) == (400, "invalid_encrypted_content")


def test_openai_s_client_reads_thoughts(serve: Serve) -> None:
    server = serve("opened")
    body = asked(server, "x", "q", "</think>")
    names = ("input", "temperature", "top_p", "max_output_tokens")
    known = {name: body.pop(name) for name in names}
    with client_of(server) as client:
        with client.responses.stream(model="tiny", extra_body=body, **known) as stream:
            events = list(stream)
        thoughts = [
            event.delta for event in events if event.type == "response.reasoning_text.delta"
        ]
        last = events[-1]
        assert last.type in ("response.completed", "response.incomplete")
        response = last.response
        thought = response.output[0]
        assert thought.type == "reasoning"
        assert thought.content is not None
        assert thought.content[0].text == "".join(thoughts) != ""
        assert response.output_text
        # What the client returns can be sent back as it is.
        more = client.responses.create(
            model="tiny",
            input=[*response.output, {"role": "user", "content": "and"}],  # type: ignore[list-item]
            max_output_tokens=2,
        )
        assert more.output


def test_deltas_count_tokens_where_asked(serve: Serve) -> None:
    server = serve("opened")
    more: dict[str, Any] = {"stream": True, "stream_options": {"continuous_usage_stats": True}}
    events = sse(server.post(RESPONSES, asked(server, "x", "q", "</think>", **more)).body)
    usage = events[-1]["response"]["usage"]
    told = [event["sinkstream"] for event in events if event["type"].endswith(".delta")]
    assert {one["input_tokens"] for one in told} == {usage["input_tokens"]}
    counts = [one["output_tokens"] for one in told]
    assert counts == sorted(counts)
    assert 0 < counts[0] <= counts[-1] <= usage["output_tokens"]
    name = events[-1]["response"]["id"]
    assert followed(server, name) == events
