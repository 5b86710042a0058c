"""Fields of llama.cpp and of vLLM: timings, progress, token ids, slots, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.python.server.http.running_server import (
    CHAT,
    COMPLETIONS,
    ENDLESS,
    HELLO,
    Running,
    events_of,
)

SHORT: dict[str, Any] = {"max_tokens": 6, "ignore_eos": True, "seed": 3}
ROUTES = [(CHAT, {"messages": HELLO}), (COMPLETIONS, {"prompt": "the sea"})]


@pytest.mark.parametrize(("path", "prompt"), ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_timings_come_where_they_are_asked_for(
    server: Running, path: str, prompt: dict[str, Any], stream: bool
) -> None:
    body = {**SHORT, **prompt, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    plain = server.post(path, body)
    assert b"timings" not in plain.body
    answer = server.post(path, {**body, "timings_per_token": True})
    last = events_of(answer.body)[-1] if stream else answer.json
    timings, usage = last["timings"], last["usage"]
    assert timings["predicted_n"] == 6
    assert timings["prompt_n"] + timings["cache_n"] == usage["prompt_tokens"]
    assert timings["prompt_ms"] > 0
    assert timings["predicted_ms"] > 0
    assert timings["predicted_per_second"] == pytest.approx(5000 / timings["predicted_ms"])


def test_timings_of_one_token_have_no_rate(server: Running) -> None:
    body = {"prompt": "the sea", **SHORT, "max_tokens": 1, "timings_per_token": True}
    timings = server.post(COMPLETIONS, body).json["timings"]
    assert timings["predicted_n"] == 1
    assert timings["predicted_per_second"] == timings["predicted_ms"] == 0


@pytest.mark.parametrize("length", [3, 200_000])
def test_progress_begins_with_the_cache_and_ends_with_the_prompt(
    server: Running, length: int
) -> None:
    body = {"prompt": [5] * length, **SHORT, "stream": True, "return_progress": True}
    events = events_of(server.post(COMPLETIONS, body).body)
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    read = [one["processed"] for one in progress]
    assert read[0] == progress[0]["cache"] == 0
    assert read[-1] == length
    assert read == sorted(set(read))
    assert {one["total"] for one in progress} == {length}
    assert (len(read) > 2) == (length > 1000)
    assert all("prompt_progress" not in event for event in events[len(progress) :])


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_are_those_of_the_python_api(server: Running, stream: bool) -> None:
    expected = server.model.generate(HELLO, **SHORT)
    body = {"messages": HELLO, **SHORT, "stream": stream, "return_token_ids": True}
    answer = server.post(CHAT, body)
    ids, texts = [], []
    for part in events_of(answer.body) if stream else [answer.json]:
        for choice in part["choices"]:
            assert choice["logprobs"] is None
            ids += choice.get("token_ids", [])
            texts.append(choice["delta" if stream else "message"].get("content", ""))
    assert ids == expected.token_ids
    assert "".join(texts) == expected.text


def test_tokens_are_named_by_id_on_request(server: Running) -> None:
    body = {"prompt": "the sea", **SHORT, "logprobs": 2, "return_token_ids": True}
    choice = server.post(COMPLETIONS, {**body, "return_tokens_as_token_ids": True}).json["choices"][
        0
    ]
    names = [f"token_id:{token_id}" for token_id in choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == names
    assert all(
        name.startswith("token_id:")
        for others in choice["logprobs"]["top_logprobs"]
        for name in others
    )


def test_slots_say_how_many_replies_are_generated(server: Running) -> None:
    def busy() -> int:
        return sum(slot["is_processing"] for slot in server.ask("GET", "/slots").json)

    assert busy() == 0
    with server.begin(COMPLETIONS, ENDLESS), server.begin(COMPLETIONS, ENDLESS):
        server.wait_until(lambda: busy() == 2, "two slots are in use")
    server.wait_until(lambda: busy() == 0, "no slot is in use")
    slots = server.ask("GET", "/slots").json
    assert [slot["id"] for slot in slots] == [0, 1, 2, 3]
    assert {slot["n_ctx"] for slot in slots} == {64}


def test_props_name_the_model_but_no_folder(server: Running) -> None:
    props = server.ask("GET", "/props").json
    assert props["total_slots"] == 4
    assert props["default_generation_settings"] == {"n_ctx": 64}
    assert props["model_alias"] == "tiny"
    assert props["model_path"] == server.model.path.rpartition("/")[2]
    assert "{%" in props["chat_template"]


def test_a_conversation_is_counted_as_it_would_be_read(server: Running) -> None:
    counted = server.post("/v1/chat/completions/input_tokens", {"messages": HELLO}).json
    usage = server.post(CHAT, {"messages": HELLO, **SHORT}).json["usage"]
    assert counted == {"input_tokens": usage["prompt_tokens"]}


def test_a_message_cannot_be_continued_and_followed_by_another(server: Running) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "is"}]
    both = {"add_generation_prompt": True, "continue_final_message": True}
    answer = server.post(CHAT, {"messages": messages, **SHORT, **both})
    assert answer.status == 400
    assert answer.error["param"] == "add_generation_prompt"
    one = {"add_generation_prompt": False, "continue_final_message": True}
    assert server.post(CHAT, {"messages": messages, **SHORT, **one}).status == 200


def test_continuous_usage_is_in_every_chunk_and_needs_the_usage(server: Running) -> None:
    body = {"messages": HELLO, **SHORT, "stream": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = events_of(server.post(CHAT, {**body, "stream_options": options}).body)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == counts[-2] == 6
    options = {"include_usage": False, "continuous_usage_stats": True}
    events = events_of(server.post(CHAT, {**body, "stream_options": options}).body)
    assert all("usage" not in event for event in events)


def test_the_openapi_document_is_whole(server: Running) -> None:
    answer = server.ask("GET", "/openapi.json")
    assert b'"$ref":"#/$defs' not in answer.body
    paths = answer.json["paths"]
    chat = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]
    options = chat["schema"]["properties"]["stream_options"]["anyOf"][0]
    assert "include_usage" in options["properties"]
    assert list(paths["/v1/metrics"]["get"]["responses"]["200"]["content"]) == ["text/plain"]


def test_tokenize_leaves_open_what_is_to_be_continued(server: Running) -> None:
    messages = [*HELLO, {"role": "assistant", "content": "is"}]
    asked = {"messages": messages, "continue_final_message": True}
    usage = server.post(CHAT, {**asked, **SHORT}).json["usage"]
    opened = server.post("/tokenize", asked).json
    closed = server.post("/tokenize", {"messages": messages, "add_generation_prompt": False}).json
    assert opened["count"] == usage["prompt_tokens"]
    assert closed["tokens"][: opened["count"]] == opened["tokens"]
    assert closed["count"] > opened["count"]


def test_the_tokenizer_is_described_in_vllms_form(server: Running) -> None:
    info = server.ask("GET", "/tokenizer_info").json
    assert info["tokenizer_class"] == "PreTrainedTokenizerFast"
    tokenizer = server.model.tokenizer
    assert tokenizer is not None
    assert tokenizer.token_to_id(info["eos_token"]) in server.model.end_token_ids
    assert info["chat_template"] == server.ask("GET", "/props").json["chat_template"]


def test_a_completions_alternatives_include_the_token_itself(server: Running) -> None:
    body = {"prompt": "the sea", **SHORT, "temperature": 5.0, "return_tokens_as_token_ids": True}
    logprobs = server.post(COMPLETIONS, {**body, "logprobs": 0}).json["choices"][0]["logprobs"]
    rows = zip(logprobs["tokens"], logprobs["token_logprobs"], strict=True)
    assert logprobs["top_logprobs"] == [{name: logprob} for name, logprob in rows]
