"""Guessed tokens over HTTP: they change no byte of a reply, and no key learns another's texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.python.server.http.running_server import (
    CHAT,
    COMPLETIONS,
    HELLO,
    Running,
    events_of,
    running,
)

ROUTES = [
    (CHAT, {"messages": HELLO}),
    (COMPLETIONS, {"prompt": "the sea"}),
    ("/v1/responses", {"input": "the sea"}),
]
LETTERS = "jkqxz"  # no merge joins two of them
ALL = 63  # all that is guessed is drafted, whatever it costs


@pytest.fixture(scope="module")
def server(tiny_folder: Callable[[str], Path]) -> Iterator[Running]:
    with running(tiny_folder("llama"), speculation=ALL) as found:
        yield found


@pytest.fixture(scope="module")
def locked(tiny_folder: Callable[[str], Path]) -> Iterator[Running]:
    with running(tiny_folder("llama"), speculation=ALL, api_keys=("right", "other")) as found:
        yield found


def asked(server: Running, salt: str = "", **more: Any) -> dict[str, Any]:
    """Return a request for a reply of letters, which is encoded as it was generated."""
    assert server.model.tokenizer is not None
    letters = server.model.tokenizer.encode(LETTERS).ids
    return {
        "messages": HELLO, "max_tokens": 60, "ignore_eos": True, "seed": 3, "temperature": 1.2,
        "logit_bias": dict.fromkeys(map(str, letters), 100), "cache_salt": salt,
        "logprobs": True, "return_token_ids": True, "timings_per_token": True, **more,
    }  # fmt: skip


def predicted(text: str) -> dict[str, str]:
    return {"type": "content", "content": text}


def whole(server: Running, body: dict[str, Any], **headers: str) -> dict[str, Any]:
    answer = server.post(CHAT, body, **headers)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def text_of(reply: dict[str, Any]) -> str:
    text: str = reply["choices"][0]["message"]["content"]
    return text


def drafts(reply: dict[str, Any]) -> tuple[int, int]:
    """Return how many tokens of a reply were drafted, and how many of these were right."""
    timings = reply["timings"]
    return timings["draft_n"], timings["draft_n_accepted"]


def test_a_reply_with_a_prediction_has_the_same_bits(server: Running) -> None:
    plain = whole(server, asked(server, "plain", speculation=0))
    assert drafts(plain) == (0, 0)
    assert "completion_tokens_details" not in plain["usage"]
    text = text_of(plain)
    assert set(text) <= set(LETTERS)
    wrong = text[:30] + "?" + text[31:]
    for number, content in enumerate([wrong, [{"type": "text", "text": wrong}]]):
        prediction = {"type": "content", "content": content}
        reply = whole(
            server, asked(server, f"whole {number}", speculation=20, prediction=prediction)
        )
        assert reply["choices"] == plain["choices"]
        drafted, right = drafts(reply)
        assert drafted > right > 30
        details = reply["usage"]["completion_tokens_details"]
        assert details["accepted_prediction_tokens"] == right
        assert details["rejected_prediction_tokens"] == drafted - right
        assert reply["usage"]["completion_tokens"] == 60


def test_a_streamed_reply_has_the_same_bits_and_counts(server: Running) -> None:
    plain = whole(server, asked(server, "plain", speculation=0))["choices"][0]
    options = {"stream": True, "stream_options": {"include_usage": True}}
    body = asked(
        server, "streamed", speculation=20, prediction=predicted(plain["message"]["content"])
    )
    *chunks, last = events_of(server.post(CHAT, body | options).body)
    choices = [chunk["choices"][0] for chunk in chunks]
    parts = [choice["delta"].get("content", "") for choice in choices]
    assert "".join(parts) == plain["message"]["content"]
    scored = [one for choice in choices for one in (choice["logprobs"] or {}).get("content", [])]
    assert scored == plain["logprobs"]["content"]
    drafted, right = drafts(last)
    assert right > 40
    assert last["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": right,
        "rejected_prediction_tokens": drafted - right,
    }


def test_all_choices_of_a_request_are_counted(server: Running) -> None:
    alone = [
        whole(server, asked(server, f"alone {i}", seed=3 + i, speculation=0)) for i in range(2)
    ]
    prediction = predicted(text_of(alone[1]))
    both = whole(server, asked(server, "both", n=2, speculation=20, prediction=prediction))
    texts = [choice["message"]["content"] for choice in both["choices"]]
    assert texts == [text_of(reply) for reply in alone]
    details = both["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 40


def test_an_empty_prediction_says_nothing(server: Running) -> None:
    nothing: tuple[object, ...] = ("", [])
    for content in nothing:
        prediction = {"type": "content", "content": content}
        reply = whole(server, asked(server, "empty", max_tokens=2, prediction=prediction))
        assert reply["usage"]["completion_tokens_details"] == {
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        }
    assert server.post(CHAT, asked(server, max_tokens=1, prediction=None)).status == 200


def test_a_reply_that_is_generated_again_is_guessed(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """As the page does it, and with what was evicted."""
    with running(
        tiny_folder("llama"), window=28, speculation=ALL, store=str(tmp_path / "store")
    ) as server:
        first = whole(server, asked(server))
        again = whole(server, asked(server, speculation=20))
    assert again["choices"] == first["choices"]
    assert drafts(again)[1] > 40
    assert again["usage"]["sinkstream"]["evicted_tokens"] > 30


def test_what_one_key_said_is_not_guessed_for_another(locked: Running) -> None:
    right, other = ({"Authorization": f"Bearer {key}"} for key in ("right", "other"))
    body = asked(locked, speculation=20)
    first, again = (whole(locked, body, **right) for _ in range(2))
    theirs = whole(locked, body, **other)
    assert again["choices"] == theirs["choices"] == first["choices"]
    assert drafts(again)[1] > drafts(first)[1] + 30
    assert drafts(theirs) == drafts(first)
    prediction = predicted(text_of(first))
    salted = {**body, "cache_salt": "a"}
    whole(locked, {**salted, "prediction": prediction, "max_tokens": 1}, **right)
    assert drafts(whole(locked, salted, **other)) == drafts(first)
    assert drafts(whole(locked, salted, **right))[1] > drafts(first)[1] + 30


@pytest.mark.parametrize(("path", "body"), ROUTES)
def test_every_route_takes_a_number_of_drafts(
    server: Running, path: str, body: dict[str, Any]
) -> None:
    name = "max_output_tokens" if "input" in body else "max_tokens"
    body = {**body, name: 2, "ignore_eos": True}
    for number in (0, 63, None):
        assert server.post(path, {**body, "speculation": number}).status == 200
    for value in (-1, 64):
        answer = server.post(path, {**body, "speculation": value})
        assert (answer.status, answer.error["param"]) == (400, "speculation")
        assert answer.error["message"] == f"`speculation` must be in [0, 63], but is {value}."
    for wrong in ("2", True, 1.5):
        answer = server.post(path, {**body, "speculation": wrong})
        assert (answer.status, answer.error["param"]) == (400, "speculation")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({}, "`prediction.type` must be given."),
        ({"type": "content"}, "`prediction.content` must be given."),
        ("a", "`prediction` must be an object, but is a string."),
        ({"type": "x", "content": "a"}, '`prediction.type` must be "content", but is "x".'),
        ({"type": "content", "content": 1},
         "`prediction.content` must be a string or an array, but is 1."),
        ({"type": "content", "content": ["a"]},
         "`prediction.content.0` must be an object, but is a string."),
        ({"type": "content", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
         '`prediction.content.1` must have the `type` "text" and a string as `text`. Only text is '
         "supported."),
        ({"type": "content", "content": "7" * 131_100},
         "`prediction` must have at most 131072 tokens, but the first 131100 of 131100 characters "
         "have more. Predict a part of the reply."),
        ({"type": "content", "content": "7" * 2_100_000},
         "`prediction` must have at most 2097152 characters, but has 2100000. Predict a part of "
         "the reply."),
    ],
    ids=range(9),
)  # fmt: skip
def test_a_wrong_prediction_is_refused_with_its_field(
    server: Running, value: Any, sentence: str
) -> None:
    answer = server.post(CHAT, {"messages": HELLO, "max_tokens": 1, "prediction": value})
    assert (answer.status, answer.error["param"]) == (400, "prediction")
    assert answer.error["message"] == sentence
