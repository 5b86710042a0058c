"""`/v1/completions` scores prompts: OpenAI's `echo` with `logprobs`, and vLLM's field."""

from __future__ import annotations

from typing import Any

import pytest

from sinkstream.text.plain_text import PlainEncoder
from tests.python.server.http.running_server import COMPLETIONS, Running, events_of

PROMPT = "the sea was calm and the boat, with all its sails, lay still"
ECHOED: dict[str, Any] = {"echo": True, "logprobs": 2, "temperature": 0, "seed": 1}
FIELDS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def ids_of(server: Running, text: str) -> list[int]:
    asked = {"content": text, "add_special": True}
    ids: list[int] = server.post("/tokenize", asked).json["tokens"]
    return ids


def choices_of(server: Running, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = server.post(COMPLETIONS, body)
    assert answer.status == 200, answer.body
    choices: list[dict[str, Any]] = answer.json["choices"]
    return choices


@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_an_echo_has_the_scores_of_the_python_api(
    server: Running, as_ids: bool, tokens: int
) -> None:
    ids = ids_of(server, PROMPT)
    options: dict[str, Any] = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    expected = server.model.generate(ids, logprobs=2, prompt_logprobs=2, **options)
    body = {"prompt": ids if as_ids else PROMPT, "return_tokens_as_token_ids": True}
    (choice,) = choices_of(server, {**body, **ECHOED, **options})
    assert choice["text"].startswith(PROMPT)
    assert choice["finish_reason"] == "length"
    scores = choice["logprobs"]
    assert scores["tokens"] == [f"token_id:{i}" for i in ids + expected.token_ids]
    assert {len(scores[name]) for name in FIELDS} == {len(ids) + tokens}
    prompt = expected.prompt_logprobs
    assert scores["token_logprobs"] == [t.logprob for t in prompt] + expected.logprobs
    assert scores["token_logprobs"][0] is scores["top_logprobs"][0] is None
    for token, top in zip(prompt[1:], scores["top_logprobs"][1:], strict=False):
        assert set(top.values()) == {token.logprob, *(p for _, p in token.alternatives)}


def test_offsets_are_where_each_token_begins(server: Running) -> None:
    (choice,) = choices_of(server, {"prompt": PROMPT, "max_tokens": 0, **ECHOED})
    offsets = [*choice["logprobs"]["text_offset"], len(PROMPT)]
    assert offsets[0] == 0
    tokens = choice["logprobs"]["tokens"]
    for begin, end, token in zip(offsets, offsets[1:], tokens, strict=False):
        if begin < end:  # not a control token
            assert PROMPT[begin:end] == token.removeprefix("" if begin else " ")


def test_offsets_count_characters_that_several_tokens_share(server: Running) -> None:
    text = "é 海 🌊"
    ids = ids_of(server, text)
    assert len(ids) > len(text)
    (choice,) = choices_of(server, {"prompt": text, "max_tokens": 0, **ECHOED})
    offsets = choice["logprobs"]["text_offset"]
    assert offsets == sorted(offsets)
    assert (offsets[0], offsets[-1]) == (0, len(text) - 1)
    assert len(set(offsets)) < len(offsets)
    assert choice["text"] == text


def test_lm_eval_finds_the_log_likelihood_of_a_continuation(server: Running) -> None:
    contexts, continuations = ["the sea", "a boat on"], [" was calm", " the still sea"]
    requests = [ids_of(server, a + b) for a, b in zip(contexts, continuations, strict=True)]
    lengths = [len(ids_of(server, context)) for context in contexts]
    # As its `local-completions` asks, and reads the answer.
    body = {"prompt": requests, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234}
    choices = choices_of(server, {**body, "echo": True, "model": "any"})
    for ids, length, choice in zip(requests, lengths, choices, strict=True):
        scores = choice["logprobs"]["token_logprobs"][length:-1]
        top = choice["logprobs"]["top_logprobs"][length:-1]
        prompt = server.model.generate(ids, max_tokens=0, prompt_logprobs=1).prompt_logprobs
        assert scores == [token.logprob for token in prompt[length:]]
        greedy = all(score == max(row.values()) for score, row in zip(scores, top, strict=True))
        assert greedy == all(token.alternatives[0][0] == token.id for token in prompt[length:])


def test_a_stream_begins_with_the_scored_prompt(server: Running) -> None:
    body = {"prompt": [PROMPT, "a boat"], "max_tokens": 5, "n": 2, "ignore_eos": True, **ECHOED}
    whole = choices_of(server, body)
    assert len(whole) == 4
    assert whole[0]["logprobs"] == whole[1]["logprobs"]
    assert whole[2]["text"].startswith("a boat")
    joined: list[dict[str, Any]] = [{name: [] for name in FIELDS} for _ in whole]
    for event in events_of(server.post(COMPLETIONS, {**body, "stream": True}).body):
        for choice in event["choices"]:
            for name in FIELDS if choice["logprobs"] else ():
                joined[choice["index"]][name] += choice["logprobs"][name]
    assert joined == [choice["logprobs"] for choice in whole]


def test_a_prompt_is_encoded_once_for_all_replies_and_stays_a_text(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0, "ignore_eos": True, "echo": True}
    (plain,) = choices_of(server, body)
    encoded = []
    encode = PlainEncoder.encode

    def noted(encoder: PlainEncoder, text: str, **options: Any) -> list[int]:
        encoded.append(text)
        return encode(encoder, text, **options)

    monkeypatch.setattr(PlainEncoder, "encode", noted)
    choices = choices_of(server, {**body, "logprobs": 1, "n": 2})
    assert encoded == [PROMPT]
    assert [choice["text"] for choice in choices] == [plain["text"]] * 2
    choices_of(server, {**body, "echo": False, "prompt_logprobs": 1})
    assert encoded == [PROMPT] * 2


def test_vllms_field_names_tokens_by_id(server: Running) -> None:
    body = {"prompt": PROMPT, "max_tokens": 2, "temperature": 0, "prompt_logprobs": 1}
    (choice,) = choices_of(server, body)
    assert choice["logprobs"] is None
    first, *others = choice["prompt_logprobs"]
    assert first is None
    ids = ids_of(server, PROMPT)
    expected = server.model.generate(ids, max_tokens=0, prompt_logprobs=1).prompt_logprobs
    for entries, token in zip(others, expected[1:], strict=True):
        ((best, probability),) = token.alternatives
        assert set(entries) == {str(token.id), str(best)}
        assert entries[str(token.id)]["logprob"] == token.logprob
        assert (entries[str(best)]["logprob"], entries[str(best)]["rank"]) == (probability, 1)
    (plain,) = choices_of(server, {"prompt": PROMPT, "max_tokens": 2, "seed": 1})
    assert "prompt_logprobs" not in plain


@pytest.mark.parametrize(
    ("fields", "param", "sentence"),
    [
        (
            {"prompt_logprobs": 1, "stream": True},
            "prompt_logprobs",
            "requires `stream` to be false",
        ),
        ({"echo": True, "logprobs": 21}, "logprobs", "must be in [0, 20], but is 21"),
        ({"echo": True, "logprobs": -1}, "logprobs", "must be in [0, 20], but is -1"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "must be in [0, 20], but is 21"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "must be in [0, 20], but is -1"),
        (
            {"echo": True, "logprobs": 20, "prompt": [5] * 10_000},
            "logprobs",
            "10000 tokens of prompts with 21 each may take 180 MiB",
        ),
    ],
)
def test_what_cannot_be_scored_is_refused_with_a_sentence(
    server: Running, fields: dict[str, Any], param: str, sentence: str
) -> None:
    answer = server.post(COMPLETIONS, {"prompt": "the sea", "max_tokens": 1, **fields})
    assert (answer.status, answer.error["param"]) == (400, param)
    assert sentence in answer.error["message"]
