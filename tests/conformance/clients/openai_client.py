"""OpenAI's own client: whole, streamed, with its helper, and asynchronous."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import openai

MESSAGES: Any = [{"role": "user", "content": "Name three colours."}]
OPTIONS: Any = {"model": "any", "messages": MESSAGES, "max_completion_tokens": 24}


def main(base_url: str) -> None:
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        check_models(client)
        said = check_whole(client)
        check_stream(client, said)
        check_helper(client, said)
        check_completions(client)
        check_errors(client)
        check_a_stream_can_be_left(client)
    asyncio.run(check_async(base_url, said))


def check_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id
    error = refusal(lambda: client.models.retrieve("no-such-model"))
    assert (error.status_code, error.code) == (404, "model_not_found")


def check_whole(client: openai.OpenAI) -> str:
    answer = client.chat.completions.create(**OPTIONS, temperature=0, logprobs=True)
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length")
    assert choice.message.content
    assert choice.logprobs is not None
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(choice.logprobs.content or [])
    many = client.chat.completions.create(**OPTIONS, n=3, seed=5)
    assert [one.index for one in many.choices] == [0, 1, 2]
    return choice.message.content


def check_stream(client: openai.OpenAI, said: str) -> None:
    chunks = list(
        client.chat.completions.create(
            **OPTIONS, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == said
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert set(reasons[:-1]) == {None}
    assert reasons[-1] in ("stop", "length")
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert all(chunk.usage is None for chunk in chunks[:-1])


def check_helper(client: openai.OpenAI, said: str) -> None:
    # The helper refuses a reply that its limit cuts off: this one ends at a stop string.
    stop = said[8:10]
    with client.chat.completions.stream(**OPTIONS, temperature=0, stop=stop) as stream:
        kinds = {event.type for event in stream}
        assert {"chunk", "content.delta", "content.done"} <= kinds, kinds
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "stop"
    assert final.message.content == said.partition(stop)[0]


def check_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="any", prompt=["The sky is", "Grass is"], max_tokens=5, seed=1, stop=["\n\n"]
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    parts = client.completions.create(model="any", prompt="One, two,", max_tokens=5, stream=True)
    assert "".join(part.choices[0].text for part in parts)


def check_errors(client: openai.OpenAI) -> None:
    tool = {"type": "function", "function": {"name": "a name"}}
    wrongs: list[dict[str, Any]] = [
        {"temperature": -1},
        {"n": 0},
        {"messages": []},
        {"tools": [tool]},
    ]
    for wrong in wrongs:
        request = {**OPTIONS, **wrong}
        error = refusal(partial(client.chat.completions.create, **request))
        assert (error.status_code, error.param) == (400, next(iter(wrong)))


def refusal(call: Callable[[], object]) -> openai.APIStatusError:
    """Return the error that a call ends with."""
    try:
        call()
    except openai.APIStatusError as error:
        return error
    raise AssertionError(f"{call} was accepted")


def check_a_stream_can_be_left(client: openai.OpenAI) -> None:
    endless = client.chat.completions.create(
        **{**OPTIONS, "max_completion_tokens": 1 << 20},
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for _, _ in zip(range(3), endless, strict=False):
        pass
    endless.close()
    end = time.monotonic() + 60
    while any(slot["is_processing"] for slot in client.get("/slots", cast_to=list[Any])):
        assert time.monotonic() < end, "the reply goes on"
        time.sleep(0.05)


async def check_async(base_url: str, said: str) -> None:
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        answers = await asyncio.gather(
            *(client.chat.completions.create(**OPTIONS, temperature=0) for _ in range(6))
        )
        assert {answer.choices[0].message.content for answer in answers} == {said}
        stream = await client.chat.completions.create(**OPTIONS, temperature=0, stream=True)
        text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        assert text == said


if __name__ == "__main__":
    main(sys.argv[1])
