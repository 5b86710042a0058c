"""A reasoning model's stream: text without thoughts, events with both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream import Finished, Token
from sinkstream.errors import InvalidArgument
from tests.python.text.reasoning_templates import KEPT, OPENED, THINK, WRITTEN, write_folder
from tests.python.text.vocabularies import special

HELLO = [{"role": "user", "content": "the sea"}]
CLOSE = "</think>"
Models = Callable[..., sinkstream.Model]


@pytest.fixture(scope="module")
def models(
    tiny_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Models]:
    """Give tiny models by template; replies are what the bias of a request allows."""
    loaded: dict[str, sinkstream.Model] = {}

    def model(template: str, *added: Any) -> sinkstream.Model:
        if template not in loaded:
            folder = tmp_path_factory.mktemp("models") / "model"
            write_folder(tiny_folder("llama"), folder, template, *added)
            loaded[template] = sinkstream.load(folder, threads=1)
        return loaded[template]

    yield model
    for one in loaded.values():
        one.close()


@pytest.fixture
def model(models: Models) -> sinkstream.Model:
    """Give a model whose prompt opens a thought."""
    return models(OPENED, *THINK)


def ids_of(model: sinkstream.Model, *texts: str) -> list[int]:
    assert model.tokenizer is not None
    return [i for text in texts for i in model.tokenizer.encode(text, add_special_tokens=False).ids]


def among(model: sinkstream.Model, *texts: str, **options: Any) -> Any:
    """Return options with which every token is one of a few, drawn with a seed."""
    bias = dict.fromkeys(ids_of(model, *texts), 1e5)
    return {"logit_bias": bias, "temperature": 100.0, "top_p": 1.0, "min_p": 0.0,
            "ignore_eos": True, "seed": 1, "max_tokens": 40, **options}  # fmt: skip


def expected(model: sinkstream.Model, ids: list[int]) -> tuple[str, str]:
    """Return thought and text of a reply whose prompt opens a thought, from its whole text."""
    assert model.tokenizer is not None
    whole = model.tokenizer.decode(ids, skip_special_tokens=False)
    thought, _, text = whole.partition(CLOSE)
    return thought.strip(), text.lstrip()


@pytest.mark.parametrize("seed", [0, 1, 3, 5])
@pytest.mark.parametrize("interval", [1, 7])
def test_text_events_and_result_agree(model: sinkstream.Model, seed: int, interval: int) -> None:
    options = among(model, "x", "é", " ", CLOSE, seed=seed, stream_interval=interval)
    result = model.generate(HELLO, **options)
    assert (result.thought, result.text) == expected(model, result.token_ids)
    assert result.thought
    assert result.text
    stream = model.stream(HELLO, **options)
    assert "".join(stream) == result.text
    assert (stream.thought, stream.thought_tokens) == (result.thought, result.thought_tokens)
    events = list(model.stream(HELLO, **options).events())
    tokens = [event for event in events if isinstance(event, Token)]
    assert [token.id for token in tokens] == result.token_ids
    shown = {
        kind: "".join(t.text for t in tokens if t.kind == kind) for kind in ("thought", "text")
    }
    assert isinstance(events[-1], Finished)
    assert shown["thought"] + events[-1].thought == result.thought
    assert shown["text"] + events[-1].text == result.text
    assert result.thought_tokens == 1 + result.token_ids.index(*ids_of(model, CLOSE))


def test_asyncio_reads_the_same(model: sinkstream.Model) -> None:
    options = among(model, "x", CLOSE)

    async def read() -> tuple[str, str]:
        stream = model.stream(HELLO, **options)
        return "".join([text async for text in stream]), stream.thought

    result = model.generate(HELLO, **options)
    assert asyncio.run(read()) == (result.text, result.thought)


@pytest.mark.parametrize("limit", range(1, 12))
def test_a_limit_may_end_a_thought(model: sinkstream.Model, limit: int) -> None:
    result = model.generate(HELLO, **among(model, "x", CLOSE, max_tokens=limit))
    assert (result.thought, result.text) == expected(model, result.token_ids)
    assert result.finish_reason == "length"


def test_a_model_that_never_ends_its_thought_has_no_text(model: sinkstream.Model) -> None:
    result = model.generate(HELLO, **among(model, "x"))
    assert (result.thought, result.text) == ("x" * 40, "")
    assert result.thought_tokens == 40


def test_a_character_that_a_tag_cuts_is_replaced(model: sinkstream.Model) -> None:
    first, second = ids_of(model, "é")
    bias = {first: 1000.0, ids_of(model, CLOSE)[0]: 1000.0}
    options = {**among(model, "x"), "logit_bias": bias, "max_tokens": 12}
    result = model.generate(HELLO, **options)
    assert (result.thought, result.text) == expected(model, result.token_ids)
    assert "\ufffd" in result.thought
    assert second not in result.token_ids


@pytest.mark.parametrize("stop", ["xxxx", "x" + CLOSE + "x", CLOSE + "yyy", CLOSE])
@pytest.mark.parametrize("seed", range(5))
def test_stop_strings_see_thoughts_and_tags(model: sinkstream.Model, stop: str, seed: int) -> None:
    options = among(model, "x", "y", CLOSE, seed=seed)
    whole = model.generate(HELLO, **options)
    assert model.tokenizer is not None
    text = model.tokenizer.decode(whole.token_ids, skip_special_tokens=False)
    result = model.generate(HELLO, stop=stop, **options)
    assert (result.finish_reason == "stop_string") == (stop in text)
    thought, is_closed, rest = text.partition(stop)[0].partition(CLOSE)
    assert (result.thought, result.text) == (thought, rest if is_closed else "")
    shown = {"thought": "", "text": ""}
    for event in model.stream(HELLO, stop=stop, **options).events():
        if isinstance(event, Token):
            shown[event.kind] += event.text
        elif isinstance(event, Finished):
            shown["text"] += event.text
            shown["thought"] += event.thought
    assert shown == {"thought": result.thought, "text": result.text}


def test_a_thought_may_be_absent(models: Models) -> None:
    model = models(WRITTEN, *THINK)
    result = model.generate(HELLO, **among(model, "x"))
    assert (result.thought, result.text, result.thought_tokens) == ("", "x" * 40, 0)
    opening = model.generate(HELLO, **among(model, "<think>"))
    assert (opening.thought, opening.text) == ("", "")  # the prompt's may be repeated


def test_hidden_control_tokens_are_tags_too(models: Models) -> None:
    added = special("[THINK]", "[/THINK]")
    model = models(KEPT, *added)
    for seed in range(30):
        result = model.generate(HELLO, **among(model, "[THINK]", "x", "[/THINK]", seed=seed))
        letters = [i for i in result.token_ids if i == ids_of(model, "x")[0]]
        assert len(result.thought + result.text) == len(letters)
    assert any(
        model.generate(HELLO, **among(model, "[THINK]", "x", "[/THINK]", seed=seed)).thought
        for seed in range(8)
    )


@pytest.mark.parametrize("prompt", ["the sea", [5, 6, 7]])
def test_a_prompt_that_is_no_messages_has_text_only(model: sinkstream.Model, prompt: Any) -> None:
    result = model.generate(prompt, **among(model, "x", CLOSE))
    assert model.tokenizer is not None
    assert result.text == model.tokenizer.decode(result.token_ids)
    assert (result.thought, result.thought_tokens) == ("", 0)
    with pytest.raises(InvalidArgument, match="`thinking` must be None, but is True: `prompt`"):
        model.generate(prompt, thinking=True)


def test_thinking_changes_the_prompt(models: Models) -> None:
    model = models(WRITTEN, *THINK)
    usual, quiet = (
        model.generate(HELLO, thinking=thinking, **among(model, "x")) for thinking in (True, False)
    )
    assert quiet.stats.prompt_tokens > usual.stats.prompt_tokens
    assert model.generate(HELLO, **among(model, "x")).stats.prompt_tokens == (
        usual.stats.prompt_tokens
    )
    for bad, error in [(3, TypeError), ("", InvalidArgument), ("a b", InvalidArgument)]:
        with pytest.raises(error, match="`thinking` must be"):
            model.generate(HELLO, thinking=bad)  # type: ignore[call-overload]
        with pytest.raises(error, match="`thinking` must be"):
            model.generate_many([HELLO], thinking=bad)  # type: ignore[arg-type]


def test_a_reply_that_follows_a_grammar_is_text(model: sinkstream.Model) -> None:
    pytest.importorskip("llguidance", reason="needs the extra `structured`")
    stream = model.stream(HELLO, regex="[xq]{5}", seed=1, max_tokens=9)
    kinds = {event.kind for event in stream.events() if isinstance(event, Token)}
    result = model.generate(HELLO, regex="[xq]{5}", seed=1, max_tokens=9)
    assert kinds == {"text"}
    assert (len(result.text), result.thought) == (5, "")
