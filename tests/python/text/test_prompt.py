"""A prompt is a string, token ids or messages; everything else raises an error."""

from __future__ import annotations

import dataclasses
import gc
import re
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import InvalidArgument
from sinkstream.request import checks
from sinkstream.text import plain_text
from sinkstream.text.plain_text import plain_encoder
from sinkstream.text.tokenizers import control_tokens as control_tokens_module
from sinkstream.text.tokenizers.control_tokens import control_literals, control_tokens
from tests.python.lanes import examples
from tests.python.text import vocabularies
from tests.python.text.encoding import encode_chat, encode_prompt
from tests.python.text.vocabularies import FAMILIES

VOCAB = 1000


class Endless:
    """Has items, but no length."""

    def __getitem__(self, index: int) -> int:
        return index


def tokenizer_of(text: TextFormat) -> Tokenizer:
    assert text.tokenizer is not None
    return text.tokenizer


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("prompt", ["Once upon a time", " x", "a\n\nb", "naïve 日本 🎉 e\u0301"])
def test_a_text_is_encoded_as_the_tokenizer_does(family: str, prompt: str) -> None:
    text = FAMILIES[family]()
    expected = tokenizer_of(text).encode(prompt, add_special_tokens=False).ids
    start = [text.bos_token_id] if text.add_bos else []
    assert encode_prompt(text, VOCAB, prompt) == start + expected


def test_smollm2_gets_the_ids_that_are_known(smollm2_text: TextFormat) -> None:
    assert encode_prompt(smollm2_text, 49152, "Once upon a time") == [6403, 1980, 253, 655]


@examples(200)
@given(st.text(min_size=1), st.sampled_from(sorted(FAMILIES)))
def test_any_text_is_accepted_and_comes_back(prompt: str, family: str) -> None:
    text = FAMILIES[family]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ids = encode_prompt(text, VOCAB, prompt)
    normalizer = tokenizer_of(text).normalizer if family == "qwen3" else None
    expected = normalizer.normalize_str(prompt) if normalizer else prompt
    if "sentencepiece" in family or family == "metaspace_first":
        expected = expected.replace("▁", " ")  # the only character that such a vocabulary loses
    if family == "metaspace_first" and expected.startswith(" "):
        expected = expected[1:]  # this form does not add a second space
    assert tokenizer_of(text).decode(ids) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_no_control_token_can_be_written_in_a_text(family: str) -> None:
    text = FAMILIES[family]()
    control = control_tokens(tokenizer_of(text))
    for token in control.values():
        prompt = f"a{token.content}b"
        with pytest.warns(UserWarning, match="is treated as plain text"):
            ids = encode_prompt(text, VOCAB, prompt)
        assert control.keys() & set(ids) <= {text.bos_token_id if text.add_bos else None}
        assert tokenizer_of(text).decode(ids) == prompt


def test_the_warning_names_the_literal_and_says_what_to_do() -> None:
    with pytest.warns(UserWarning, match=r"'<\|im_start\|>'.*use a list of messages, or token"):
        encode_prompt(vocabularies.qwen3(), VOCAB, "x<|im_start|>")


def test_an_ordinary_text_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encode_prompt(vocabularies.qwen3(), VOCAB, "a < b | c > d <|im_ start|> <think>")


def test_added_tokens_that_are_text_are_found_in_a_text() -> None:
    text = vocabularies.qwen3()
    ids = encode_prompt(text, VOCAB, "<think>x")
    assert ids[0] == tokenizer_of(text).token_to_id("<think>")


@pytest.mark.parametrize(
    "ids",
    [
        [0, 1, 999],
        (0, 1, 999),
        range(5),
        np.array([0, 1, 999]),
        np.array([0, 1, 200], np.uint8),
        [np.int64(3), 4],
        torch.tensor([0, 1, 999]),
    ],
    ids=repr,
)
def test_ids_are_taken_as_they_are(ids: Any) -> None:
    found = encode_prompt(vocabularies.llama3(), VOCAB, ids)
    assert found == [int(i) for i in ids]
    assert all(type(i) is int for i in found)


@pytest.mark.parametrize("wrong", [-1, 1000, 2**31, 2**63, 10**50, np.int64(-1)])
def test_an_id_outside_of_the_vocabulary_is_named(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"item 2 of `prompt` must .* \[0, 1000\), but is"):
        encode_prompt(vocabularies.llama3(), VOCAB, [0, 999, wrong])


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (True, "bool"),
        (1.0, "float"),
        ("1", "str"),
        (None, "NoneType"),
        ([1], "list"),
        (np.float32(1), "float32"),
        (np.array([1]), "ndarray"),
        (torch.tensor([1]), "Tensor"),
        ({"role": "user"}, "dict"),
    ],
)
def test_an_item_that_is_not_an_integer_is_a_type_error(wrong: Any, kind: str) -> None:
    sentence = f"item 1 of `prompt` must be a token id, an integer, but is of type {kind}."
    with pytest.raises(TypeError, match=sentence):
        encode_prompt(vocabularies.llama3(), VOCAB, [0, wrong])


@pytest.mark.parametrize("array", [np.array, torch.tensor])
@pytest.mark.parametrize(("content", "kind"), [([True, False], "bool"), ([1.0, 2.0], "float")])
def test_an_array_of_anything_but_integers_is_a_type_error(
    array: Callable[[Any], Any], content: list[Any], kind: str
) -> None:
    with pytest.raises(TypeError, match=f"item 0 of `prompt` must .* but is of type {kind}."):
        encode_prompt(vocabularies.llama3(), VOCAB, array(content))


@pytest.mark.parametrize("array", [np.array, torch.tensor])
@pytest.mark.parametrize(
    ("content", "shape"), [(5, []), ([[5], [6]], [2, 1]), ([[1, 2, 3]], [1, 3])], ids=str
)
def test_an_array_that_is_not_one_row_is_refused_with_its_shape(
    array: Callable[[Any], Any], content: Any, shape: list[int]
) -> None:
    sentence = f"stream: `prompt` must be one row of token ids, but has shape {shape}."
    with pytest.raises(InvalidArgument, match=re.escape(sentence)) as caught:
        encode_prompt(vocabularies.llama3(), VOCAB, array(content))
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    "prompt",
    [None, 3, 1.5, b"x", bytearray(b"x"), {"role": "user"}, {1, 2}, iter([1]), object(), Endless()],
)
def test_a_prompt_of_another_type_is_a_type_error(prompt: Any) -> None:
    with pytest.raises(
        TypeError, match="`prompt` must be a string, token ids or a list of messages"
    ):
        encode_prompt(vocabularies.llama3(), VOCAB, prompt)


def test_messages_go_through_the_template() -> None:
    text = vocabularies.qwen3()
    messages = [{"role": "user", "content": "Hello"}]
    assert encode_prompt(text, VOCAB, messages) == encode_chat(text, messages)


def test_messages_after_ids_are_not_a_prompt() -> None:
    with pytest.raises(TypeError, match="item 1 of `prompt` must be a token id"):
        encode_prompt(vocabularies.qwen3(), VOCAB, [1, {"role": "user", "content": "x"}])  # type: ignore[list-item]


def test_an_empty_text_is_the_start_of_a_text_where_there_is_one() -> None:
    text = vocabularies.llama3()
    assert encode_prompt(text, VOCAB, "") == [text.bos_token_id]
    with pytest.raises(InvalidArgument, match="no beginning-of-text token"):
        encode_prompt(vocabularies.qwen3(), VOCAB, "")


@pytest.mark.parametrize("empty", [[], (), np.array([], np.int64)])
def test_no_ids_at_all_are_an_error(empty: Any) -> None:
    with pytest.raises(InvalidArgument, match="`prompt` must not be empty"):
        encode_prompt(vocabularies.llama3(), VOCAB, empty)


@pytest.mark.parametrize(("prompt", "position"), [("\ud800", 0), ("ab\udfffc", 2), ("🎉\ud83d", 1)])
def test_a_lone_surrogate_is_named_with_its_position(prompt: str, position: int) -> None:
    with pytest.raises(InvalidArgument, match=rf"lone surrogate U\+D\w+ at position {position}"):
        encode_prompt(vocabularies.llama3(), VOCAB, prompt)


@given(st.text(st.characters(exclude_categories=())))
def test_a_lone_surrogate_is_found_in_slices(text: str) -> None:
    first = next((i for i, c in enumerate(text) if "\ud800" <= c <= "\udfff"), None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "_SLICE", 3)
        assert checks.lone_surrogate(text) == first


def test_without_a_tokenizer_ids_work_and_text_says_so() -> None:
    text = TextFormat(None, None)
    assert encode_prompt(text, VOCAB, [1, 2]) == [1, 2]
    with pytest.raises(InvalidArgument, match=r"no tokenizer. Pass token ids instead"):
        encode_prompt(text, VOCAB, "x")


def test_a_text_without_tokens_is_an_error() -> None:
    from tokenizers import models

    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    text = dataclasses.replace(TextFormat(tokenizer, None))
    assert encode_prompt(text, VOCAB, "a") == [0]
    with pytest.raises(InvalidArgument, match="must not be empty"):
        encode_prompt(text, VOCAB, "b")


def test_one_message_is_to_be_wrapped_in_a_list() -> None:
    with pytest.raises(TypeError, match=r"of type dict\. Wrap one message in a list\.$"):
        encode_prompt(TextFormat(None, None), 300, {"role": "user", "content": "Hi"})  # type: ignore[arg-type]


def own_llama3() -> TextFormat:
    """Return Llama 3's with a tokenizer that nothing else has used, or holds."""
    text = vocabularies.llama3()
    tokenizer = Tokenizer.from_str(tokenizer_of(text).to_str())
    return dataclasses.replace(text, tokenizer=tokenizer)


def test_what_finds_and_encodes_texts_is_made_once_for_a_tokenizer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 256 control tokens, as Llama 3 has, it takes over a millisecond."""
    made: list[str] = []

    def counted(module: Any, name: str) -> None:
        make = getattr(module, name)

        def call(*arguments: Any) -> Any:
            made.append(name)
            return make(*arguments)

        monkeypatch.setattr(module, name, call)

    counted(control_tokens_module, "_Matcher")
    counted(plain_text, "_twin")
    text = own_llama3()
    messages = [{"role": "user", "content": "Hello"}]
    encode_prompt(text, VOCAB, "Hello")
    encode_prompt(text, VOCAB, messages)
    first = len(made)
    assert {*made} == {"_Matcher", "_twin"}
    for i in range(3):
        encode_prompt(text, VOCAB, f"Hello {i}")
        encode_prompt(text, VOCAB, messages)
    assert len(made) == first


def test_what_is_made_of_a_tokenizer_goes_with_it() -> None:
    text = own_llama3()
    tokenizer = tokenizer_of(text)
    kept = [weakref.ref(make(tokenizer)) for make in (control_literals, plain_encoder)]
    assert all(one() is not None for one in kept)
    del text, tokenizer
    gc.collect()
    assert [one() for one in kept] == [None, None]
