"""An instruct model often ends a plain prompt at once: a warning says so, and what to do."""

from __future__ import annotations

import asyncio
import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sinkstream

EMPTY = (
    "stream: the reply is empty, because the model ended its text immediately. It has a chat "
    'template, so it expects messages, [{"role": "user", "content": "…"}], rather than a string.'
)
QUESTION = [{"role": "user", "content": "the"}]


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    with sinkstream.load(tiny_folder("llama"), threads=1) as loaded:
        assert loaded.has_chat_template
        yield loaded


def ending(model: sinkstream.Model, after: str = "") -> dict[str, Any]:
    """Return options with which a reply is `after` and the end of the text."""
    assert model.tokenizer is not None
    ids = [*model.tokenizer.encode(after, add_special_tokens=False).ids, min(model.end_token_ids)]
    assert len(ids) <= 2
    # The first has the larger bias, until it has a penalty.
    bias = {token: 900.0 - 50 * index for index, token in enumerate(ids)}
    return {"temperature": 0, "logit_bias": bias, "presence_penalty": 100.0, "max_tokens": 4}


def read_text(model: sinkstream.Model, prompt: Any, **options: Any) -> None:
    list(model.stream(prompt, **options))


def read_events(model: sinkstream.Model, prompt: Any, **options: Any) -> None:
    events = list(model.stream(prompt, **options).events())
    assert events[-1] == sinkstream.Finished("stop")


def generate(model: sinkstream.Model, prompt: Any, **options: Any) -> None:
    model.generate(prompt, **options)


def generate_list(model: sinkstream.Model, prompt: Any, **options: Any) -> None:
    model.generate([prompt] * 3, **options)


def generate_many(model: sinkstream.Model, prompt: Any, **options: Any) -> None:
    list(model.generate_many([prompt] * 3, **options))


def read_async(model: sinkstream.Model, prompt: Any, **options: Any) -> None:
    async def read() -> None:
        async for _ in model.stream(prompt, **options):
            pass

    asyncio.run(read())


READERS = [read_text, read_events, generate, generate_list, generate_many, read_async]


@pytest.mark.parametrize("read", READERS)
def test_an_empty_reply_to_a_plain_prompt_is_warned_of_once(
    model: sinkstream.Model, read: Callable[..., None]
) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        read(model, "the", **ending(model))
    assert [str(warning.message) for warning in seen] == [EMPTY]
    assert seen[0].filename == __file__


@pytest.mark.parametrize("blank", [" ", "\n"])
def test_a_blank_reply_is_as_good_as_none(model: sinkstream.Model, blank: str) -> None:
    with pytest.warns(UserWarning, match="the reply is empty"):
        assert model.generate("the", **ending(model, blank)).text == blank


def plain(model: sinkstream.Model) -> dict[str, Any]:
    return {**ending(model), "logit_bias": {}, "ignore_eos": True}


@pytest.mark.parametrize(
    ("prompt", "options"),
    [
        (QUESTION, ending),
        ([5, 9, 17], ending),  # perhaps written with a template of the caller's
        ("the", plain),
        ("the", lambda model: ending(model, "a")),
        ("the", lambda model: {**ending(model), "max_tokens": 0}),
        ("the", lambda model: {**ending(model), "ignore_eos": True}),
        ("the", lambda model: {**plain(model), "stop_token_ids": range(model.spec.vocab_size)}),
    ],
)
def test_other_replies_are_no_reason_to_warn(
    model: sinkstream.Model, prompt: Any, options: Callable[[sinkstream.Model], dict[str, Any]]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.generate(prompt, **options(model))


def test_neither_is_a_model_without_a_chat_template(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    base = shutil.copytree(tiny_folder("llama"), tmp_path / "base")
    config = base / "tokenizer_config.json"
    fields = json.loads(config.read_text())
    del fields["chat_template"]
    config.write_text(json.dumps(fields))
    with sinkstream.load(base, threads=1) as model:
        assert not model.has_chat_template
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert model.generate("the", **ending(model)).text == ""


def test_a_session_sends_messages(model: sinkstream.Model) -> None:
    with model.session() as session, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert session.stream("the", **ending(model)).result().text == ""
