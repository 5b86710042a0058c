"""Long texts are refused before they take the memory of their tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

import sinkstream
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.plain_turns import PlainTurns
from sinkstream.conversations.turns import TurnRequest, Turns
from sinkstream.errors import ContextExceeded, InvalidArgument
from sinkstream.loading.open_checkpoint import open_checkpoint
from sinkstream.model import host_of
from sinkstream.server.texts import Texts
from sinkstream.text import prompt
from sinkstream.text.chat_format import ChatFormat
from sinkstream.text.plain_text import plain_encoder
from sinkstream.text.prompt import encode_prediction
from sinkstream.text.tokenizers import encoding_limit
from sinkstream.text.tokenizers.encoding_limit import limiting


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Callable[[str], Path]) -> Tokenizer:
    found = open_checkpoint(tiny_folder("llama")).text.tokenizer
    assert found is not None
    return found


def test_a_text_within_the_limit_is_encoded_as_without_one(tokenizer: Tokenizer) -> None:
    text = "the sea " * 500
    ids = plain_encoder(tokenizer).encode(text)
    with limiting(len(ids) + 100):
        assert plain_encoder(tokenizer).encode(text) == ids


def test_a_text_beyond_the_limit_is_refused_after_a_slice(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding_limit, "_SLICE", 64)
    counted = []
    encode = Tokenizer.encode_batch_fast

    class Counting:
        def encode_batch_fast(self, texts: list[str], **given: Any) -> Any:
            counted.append(len(texts[0]))
            return encode(tokenizer, texts, **given)

    rule = r"at most 10 tokens, but the first 64 of 160 characters"
    with limiting(10), pytest.raises(ContextExceeded, match=rule) as refused:
        encoding_limit.check_length(Counting(), "7" * 160)  # type: ignore[arg-type]
    assert refused.value.param == "prompt"
    assert counted == [64]
    rule = r"at most 160 characters, but has 161\."
    with limiting(10), pytest.raises(ContextExceeded, match=rule):
        encoding_limit.check_length(Counting(), "7" * 161)  # type: ignore[arg-type]
    assert counted == [64]  # for its characters alone


def test_a_prediction_has_a_limit_of_its_own(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt, "_MOST_PREDICTED", 100)
    text = open_checkpoint(tiny_folder("llama")).text
    assert len(encode_prediction(text, "7" * 100)) == 100
    assert encode_prediction(text, "") == []
    rule = r"^stream: `prediction` must have at most 100 tokens, .* Predict a part of the reply\.$"
    for limit in (20, 1000):  # of the request's other texts
        with limiting(limit), pytest.raises(InvalidArgument, match=rule) as refused:
            encode_prediction(text, "7" * 101)
        assert refused.value.param == "prediction"
    with pytest.raises(InvalidArgument, match="lone surrogate") as refused:
        encode_prediction(text, "a\ud800")
    assert refused.value.param == "prediction"


def test_a_text_that_is_encoded_again_and_again_counts_once(tokenizer: Tokenizer) -> None:
    encoder = plain_encoder(tokenizer)
    with limiting(100):
        for _ in range(10):
            encoder.encode("7" * 60)
    encoder.encode("7" * 1000)  # not of a request


@pytest.mark.parametrize("content", ["7" * 60, [{"type": "text", "text": "7" * 60}]])
def test_the_texts_of_messages_count_together(tokenizer: Tokenizer, content: Any) -> None:
    messages = [{"role": "user", "content": content}]
    with limiting(100):
        encoding_limit.check_texts(tokenizer, messages)
        with pytest.raises(InvalidArgument, match="at most 100 tokens"):
            encoding_limit.check_texts(tokenizer, messages * 2)
    encoding_limit.check_texts(tokenizer, messages * 100)  # not of a request


@pytest.mark.parametrize("way", ["a turn", "counted", "a whole prompt", "pinned"])
def test_messages_that_are_too_long_are_not_rendered(
    tiny_folder: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    """A template handles all of their characters in each step."""
    role = "system" if way == "pinned" else "user"
    asked = TurnRequest("", [{"role": role, "content": "7" * 2000}], {}, sinks="system")
    with sinkstream.load(tiny_folder("llama"), max_sequences=1, threads=1) as model:
        turns: Turns = PlainTurns(model)
        if way != "a whole prompt":
            turns = Conversations(model, tmp_path / "store")
        monkeypatch.setattr(ChatFormat, "_written", None)  # what renders
        with limiting(100), pytest.raises(InvalidArgument, match="at most 1600 characters"):
            turns.prompt_tokens(asked) if way == "counted" else turns.begin(asked)
        turns.close()


LONG = "7" * 161
OWN: dict[str, Any] = {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    "message",
    [
        {**OWN, "content": LONG},
        {**OWN, "content": [{"type": "text", "text": LONG}]},
        {**OWN, "reasoning_content": LONG},
        {**OWN, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": LONG}}]},
        {**OWN, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": [LONG]}}}]},
        {**OWN, "tool_calls": [{"id": LONG, "function": {"name": "f", "arguments": "{}"}}]},
    ],
)
def test_every_text_of_a_message_counts(tokenizer: Tokenizer, message: dict[str, Any]) -> None:
    with limiting(10), pytest.raises(InvalidArgument, match="at most 160 characters"):
        encoding_limit.check_texts(tokenizer, [message])
    with limiting(1000):
        encoding_limit.check_texts(tokenizer, [message])


def test_more_ids_than_a_text_may_have_are_not_decoded(tiny_folder: Callable[[str], Path]) -> None:
    """A token may stand for a hundred characters."""
    with sinkstream.load(tiny_folder("llama"), window=60, threads=1) as model:
        texts = Texts(host_of(model))
        with limiting(10):
            assert texts.decode([5] * 10)
            with pytest.raises(InvalidArgument, match=r"must have at most 10 tokens, but has 11\."):
                texts.decode([5] * 11)
