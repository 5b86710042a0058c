"""Tokenizers from GGUF metadata equal transformers' own, and contradictions are named."""

from __future__ import annotations

import dataclasses
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers import pre_tokenizers as pre

from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.errors import CheckpointError
from sinkstream.text.tokenizers.from_gguf import text_format_from_gguf
from sinkstream.text.tokenizers.token_bytes import token_bytes
from tests.python.lanes import examples
from tests.python.text import vocabularies
from tests.python.text.encoding import encode_chat
from tests.python.text.vocabularies import BYTE, CONTROL, NORMAL, UNUSED, USER_DEFINED

# No digits: transformers' GGUF reader does not know that smollm splits them one by one.
ORDINARY = [
    "",
    " ",
    "Once upon a time, there was a café; naïve façade — “quoted”…",
    "def f(x):\n\treturn  x ** y  # why\n\n\n    pass\r\n\r\n",
    "日本語のテキスト 한국어 ไทย हिन्दी עברית",
    "🎉👨‍👩‍👧‍👦🇩🇪 e\u0301 \u00a0\u2003\u3000\ufeff",
    "don't I'LL we'Ve 'S ''' \"x\"",
    "<|im_start|>user\n<|im_end|><|im_end|> <|endoftext|>x<repo_name>",
    "\x00\x01\x7f\u2028\u2029",
]
DIGITS = ["12345", "a1b22c333", "  1  22   333", " 3.14159e-10", "٣٤٥ ²³ ½ ⅷ 一二三", "x=1;y=23\n4"]


def tokenizer_of(text: TextFormat) -> Tokenizer:
    assert text.tokenizer is not None
    return text.tokenizer


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    """Return a tiny byte-level vocabulary as metadata, with some keys changed or (None) removed."""
    tokens = ["<s>", "</s>", *sorted(pre.ByteLevel.alphabet()), "ab", "Ġab", "<tool>"]
    kinds = [CONTROL, CONTROL, *[NORMAL] * 258, USER_DEFINED]
    values: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": kinds,
        "merges": ["a b", "Ġ ab"],
        "bos_token_id": 0,
        "eos_token_id": 1,
    } | changes
    return {f"tokenizer.ggml.{k}": value for k, value in values.items() if value is not None}


@pytest.fixture(scope="module")
def oracle(smollm2: Path) -> Any:
    """Give SmolLM2's tokenizer as transformers builds it from the same file."""
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(smollm2.parent, gguf_file=smollm2.name)


@pytest.mark.parametrize("sample", ORDINARY)
def test_smollm2_equals_transformers(smollm2_text: TextFormat, oracle: Any, sample: str) -> None:
    ids = tokenizer_of(smollm2_text).encode(sample).ids
    assert ids == oracle.encode(sample, add_special_tokens=False)


def test_smollm2_equals_transformers_on_prose(smollm2_text: TextFormat, oracle: Any) -> None:
    prose = "".join(letter for letter in vocabularies.PROSE if not letter.isnumeric())
    ids = tokenizer_of(smollm2_text).encode(prose).ids
    assert ids == oracle.encode(prose, add_special_tokens=False)


@examples(200)
@given(sample=st.text(st.characters(exclude_categories=("Cs", "Nd", "Nl", "No"))))
def test_smollm2_equals_transformers_on_any_text(
    smollm2_text: TextFormat, oracle: Any, sample: str
) -> None:
    ids = tokenizer_of(smollm2_text).encode(sample).ids
    assert ids == oracle.encode(sample, add_special_tokens=False)


@pytest.mark.parametrize("sample", DIGITS)
def test_smollm2_takes_digits_one_by_one(smollm2_text: TextFormat, sample: str) -> None:
    tokenizer = tokenizer_of(smollm2_text)
    twin = Tokenizer(tokenizer.model)
    # As in the model's own tokenizer.json.
    twin.pre_tokenizer = pre.Sequence(
        [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)]
    )
    assert tokenizer.encode(sample).ids == twin.encode(sample).ids


def test_smollm2s_special_tokens_are_known(smollm2_text: TextFormat) -> None:
    assert smollm2_text.bos_token_id == 1
    assert smollm2_text.add_bos is False
    assert smollm2_text.end_token_ids == {0, 2}
    assert smollm2_text.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
    }
    assert smollm2_text.chat_template is not None
    assert smollm2_text.chat_template.startswith("{% for message in messages %}")
    assert tokenizer_of(smollm2_text).get_vocab_size() == 49152


def test_smollm2s_tokenizer_is_made_quickly(smollm2_metadata: dict[str, Any]) -> None:
    took = []
    for _ in range(3):
        began = time.process_time()
        text_format_from_gguf(smollm2_metadata)
        took.append(time.process_time() - began)
    assert min(took) < 0.5  # 0.15 s on an idle core


@pytest.mark.parametrize("sample", [*ORDINARY, *DIGITS])
def test_text_survives_encoding_and_decoding(smollm2_text: TextFormat, sample: str) -> None:
    tokenizer = tokenizer_of(smollm2_text)
    assert tokenizer.decode(tokenizer.encode(sample).ids, skip_special_tokens=False) == sample


def test_kinds_of_tokens_are_followed() -> None:
    tokenizer = tokenizer_of(text_format_from_gguf(byte_level_metadata()))
    added = tokenizer.get_added_tokens_decoder()
    assert {token.content: token.special for token in added.values()} == {
        "<s>": True,
        "</s>": True,
        "<tool>": False,
    }
    ids = tokenizer.encode("ab<tool> ab</s>").ids
    assert ids == [258, 260, 259, 1]
    assert tokenizer.decode(ids) == "ab<tool> ab"


def test_unused_tokens_have_no_text() -> None:
    tokens = byte_level_metadata()["tokenizer.ggml.tokens"]
    kinds = byte_level_metadata()["tokenizer.ggml.token_type"]
    metadata = byte_level_metadata(
        tokens=[*tokens, "[PAD261]", "[PAD261]"], token_type=[*kinds, UNUSED, UNUSED]
    )
    tokenizer = tokenizer_of(text_format_from_gguf(metadata))
    assert tokenizer.decode([258, 261, 262]) == "ab"
    assert tokenizer.token_to_id("[PAD261]") is None


def test_an_end_token_that_the_file_forgot_to_mark_is_special() -> None:
    metadata = byte_level_metadata(token_type=None)
    text = text_format_from_gguf(metadata)
    assert tokenizer_of(text).encode("ab</s>").ids == [258, 1]
    assert tokenizer_of(text).decode([258, 1]) == "ab"


def test_all_declared_and_all_customary_end_tokens_end_a_text() -> None:
    extra = ["<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|custom|>", "<|other|>"]
    base = byte_level_metadata()
    metadata = byte_level_metadata(
        tokens=[*base["tokenizer.ggml.tokens"], *extra],
        token_type=[*base["tokenizer.ggml.token_type"], CONTROL, CONTROL, NORMAL, NORMAL, CONTROL],
        eot_token_id=264,
    )
    with pytest.warns(UserWarning, match=r'must mark "<\|im_end\|>" as a control token'):
        text = text_format_from_gguf(metadata)
    assert text.end_token_ids == {1, 261, 262, 263, 264}


def with_tokens(*tokens: str, kind: int, **changes: Any) -> dict[str, Any]:
    """Return the tiny vocabulary with tokens of one kind added; their ids begin at 261."""
    base = byte_level_metadata()
    return byte_level_metadata(
        tokens=[*base["tokenizer.ggml.tokens"], *tokens],
        token_type=[*base["tokenizer.ggml.token_type"], *[kind] * len(tokens)],
        **changes,
    )


ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>",
    "<|flush|>", "<end_of_turn>", "<turn|>", "<|tool_response>", "<eos>", "<EOT>", "_<EOT>",
    "[EOT]", "[EOS]", "<end_of_utterance>", "<|end_of_text|>", "<|endoftext|>",
    "<｜end▁of▁sentence｜>", "[e~[", "<|user|>", "<|observation|>",
)  # fmt: skip


@pytest.mark.parametrize("kind", [NORMAL, USER_DEFINED, CONTROL])
@pytest.mark.parametrize("end", ENDS)
def test_an_end_of_turn_is_known_by_its_text(end: str, kind: int) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        text = text_format_from_gguf(with_tokens(end, kind=kind, eos_token_id=None))
    assert len(caught) == (kind != CONTROL)
    assert 261 in text.end_token_ids
    tokenizer = tokenizer_of(text)
    assert tokenizer.decode(tokenizer.encode(f"x{end}").ids) == "x"
    # A message cannot end its turn, and the template can.
    template = "{{ messages[0].content }}" + end
    chat = dataclasses.replace(text, chat_template=template)
    ids = encode_chat(chat, [{"role": "user", "content": f"a{end}b"}])
    assert ids.count(261) == 1
    assert ids[-1] == 261


@pytest.mark.parametrize("kind", [NORMAL, USER_DEFINED])
@pytest.mark.parametrize(
    "start", ["<|im_start|>", "<start_of_turn>", "<|start_header_id|>", "<|turn>", "<|assistant|>"]
)
def test_a_start_of_turn_is_a_control_token_whatever_its_type(start: str, kind: int) -> None:
    with pytest.warns(UserWarning, match=r"as a control token \(3\)"):
        text = text_format_from_gguf(with_tokens(start, kind=kind))
    assert text.end_token_ids == {1}
    chat = dataclasses.replace(text, chat_template=start + "{{ messages[0].content }}")
    ids = encode_chat(chat, [{"role": "user", "content": start}])
    assert ids.count(261) == 1


def test_one_warning_lists_the_tokens_that_a_file_marks_wrongly() -> None:
    metadata = with_tokens("<|im_end|>", "<|im_start|>", "<think>", kind=USER_DEFINED)
    with pytest.warns(UserWarning, match="token_type") as caught:
        text = text_format_from_gguf(metadata)
    assert [str(warning.message) for warning in caught] == [
        "load: GGUF metadata: `tokenizer.ggml.token_type` must mark "
        '"<|im_end|>", "<|im_start|>" as control tokens (3), but does not. The model is loaded as '
        "if it did."
    ]
    assert tokenizer_of(text).get_added_tokens_decoder()[263].special is False


def test_harmonys_end_of_a_message_does_not_end_a_turn() -> None:
    harmony = ("<|end|>", "<|return|>", "<|call|>", "<|channel|>")
    text = text_format_from_gguf(with_tokens(*harmony, kind=CONTROL, eos_token_id=262))
    assert text.end_token_ids == {1, 262, 263}  # "</s>" too, as in llama.cpp
    solar = ("<|end|>", "<|flush|>", "<|calls|>")
    text = text_format_from_gguf(with_tokens(*solar, kind=CONTROL, eos_token_id=262))
    assert text.end_token_ids == {1, 262, 263}


def test_strikethrough_does_not_end_a_turn_of_gemma() -> None:
    base = byte_level_metadata()
    kinds = [CONTROL, NORMAL, *base["tokenizer.ggml.token_type"][2:], CONTROL, CONTROL]
    tokens = [*base["tokenizer.ggml.tokens"], "<turn|>", "<|tool_response>"]
    metadata = byte_level_metadata(tokens=tokens, token_type=kinds, eos_token_id=261)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = text_format_from_gguf(metadata)
    assert text.end_token_ids == {261, 262}
    assert 1 not in tokenizer_of(text).get_added_tokens_decoder()


def test_a_word_of_html_does_not_end_a_turn_unless_it_is_marked() -> None:
    # In Qwen2's vocabulary merges make "</s>"; Phi-3 lists it as an added token of text.
    base = byte_level_metadata()["tokenizer.ggml.token_type"]
    for kind in (NORMAL, USER_DEFINED):
        kinds = [CONTROL, kind, *base[2:]]
        text = text_format_from_gguf(byte_level_metadata(token_type=kinds, eos_token_id=None))
        assert text.end_token_ids == set()


def test_a_word_that_merges_make_is_no_control_token() -> None:
    merges = ["[ E", "[E O", "[EO T", "[EOT ]"]
    tokens = ("[E", "[EO", "[EOT", "[EOT]")
    steps = with_tokens(*tokens, kind=NORMAL, merges=merges, pre="superbpe")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = text_format_from_gguf(steps)
    assert text.end_token_ids == {1}
    assert tokenizer_of(text).encode("[EOT]").ids == [264]


def test_an_unused_token_is_no_end() -> None:
    text = text_format_from_gguf(with_tokens("<|im_end|>", kind=UNUSED))
    assert text.end_token_ids == {1}


@pytest.mark.parametrize("kind", [NORMAL, CONTROL, USER_DEFINED])
def test_empty_tokens_have_no_text(kind: int) -> None:
    text = text_format_from_gguf(with_tokens("", "ba", "", "", kind=kind))
    tokenizer = tokenizer_of(text)
    assert (
        tokenizer.encode("ab ba").ids
        == tokenizer_of(text_format_from_gguf(with_tokens("[PAD]", "ba", "[PAD2]", kind=kind)))
        .encode("ab ba")
        .ids
    )
    table = token_bytes(tokenizer, 265, text.vocabulary)
    assert [table.pieces[i] for i in (261, 262, 263, 264)] == [b"", b"ba", b"", b""]


def test_empty_pieces_have_no_text() -> None:
    metadata = dict(vocabularies.sentencepiece_metadata())
    expected = tokenizer_of(text_format_from_gguf(metadata)).encode(vocabularies.PROSE).ids
    for name, value in (("tokens", ""), ("token_type", NORMAL), ("scores", 0.0)):
        key = f"tokenizer.ggml.{name}"
        metadata[key] = [*metadata[key], value, value]
    assert tokenizer_of(text_format_from_gguf(metadata)).encode(vocabularies.PROSE).ids == expected


@pytest.mark.parametrize(
    ("changes", "add_bos"),
    [
        ({}, False),
        ({"pre": "llama-bpe"}, True),
        ({"pre": "llama-bpe", "add_bos_token": False}, False),
        ({"pre": "llama-bpe", "bos_token_id": None}, False),
        ({"add_bos_token": True}, True),
    ],
)
def test_the_start_of_a_text_is_as_the_file_says(changes: dict[str, Any], add_bos: bool) -> None:
    text = text_format_from_gguf(byte_level_metadata(**changes))
    assert text.add_bos is add_bos
    assert tokenizer_of(text).encode("").ids == ([0] if add_bos else [])


def test_words_that_are_tokens_are_taken_whole_where_the_rule_says_so() -> None:
    # "ba" cannot be merged, yet is a token.
    base = byte_level_metadata()
    tokens = [*base["tokenizer.ggml.tokens"], "ba"]
    kinds = [*base["tokenizer.ggml.token_type"], NORMAL]
    for name, ids in (("llama-bpe", [261]), ("gpt-2", None)):
        metadata = byte_level_metadata(tokens=tokens, token_type=kinds, pre=name)
        found = tokenizer_of(text_format_from_gguf(metadata)).encode("ba", add_special_tokens=False)
        assert found.ids == ids or (ids is None and len(found.ids) == 2)


def test_arrays_may_be_of_numpy() -> None:
    metadata = vocabularies.sentencepiece_metadata()
    arrays = dict(metadata)
    for name, dtype in (("token_type", np.int32), ("scores", np.float32)):
        arrays[f"tokenizer.ggml.{name}"] = np.array(metadata[f"tokenizer.ggml.{name}"], dtype)
    expected = tokenizer_of(text_format_from_gguf(metadata)).encode(vocabularies.PROSE).ids
    assert tokenizer_of(text_format_from_gguf(arrays)).encode(vocabularies.PROSE).ids == expected


@pytest.mark.parametrize("model", [None, "none", "no_vocab"])
def test_a_file_without_tokenizer_has_none(model: str | None) -> None:
    text = text_format_from_gguf({} if model is None else {"tokenizer.ggml.model": model})
    assert text.tokenizer is None


_TOKENS: list[Any] = byte_level_metadata()["tokenizer.ggml.tokens"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "bert"}, r'model "bert"; the supported ones are gemma4, gpt2, llama, no_vocab'),
        ({"model": 3}, "`tokenizer.ggml.model` must be a string, but is 3"),
        (
            {"pre": "foo"},
            r'pre-tokenizer "foo"; the supported ones are a.x-4.0, .*dbrx, .*qwen2.*smollm',
        ),
        ({"tokens": None}, "`tokenizer.ggml.tokens` must be an array of strings, but is missing"),
        ({"tokens": "abc"}, "must be an array of strings"),
        ({"tokens": [*_TOKENS[:-1], 7]}, "entry 260 of `tokenizer.ggml.tokens` must be a string"),
        (
            {"tokens": [*_TOKENS[:-1], "ab"]},
            'must not repeat a token, but entries 258 and 260 are both "ab"',
        ),
        ({"token_type": [1, 1]}, "one entry for each of the 261 tokens, but has 2"),
        ({"token_type": ["x"] * 261}, "entry 0 of `tokenizer.ggml.token_type` must be a number"),
        ({"merges": None}, "`tokenizer.ggml.merges` must be an array of strings, but is missing"),
        (
            {"merges": ["a b", "ab"]},
            'entry 1 of `tokenizer.ggml.merges` must be two tokens, separated by a space, .*"ab"',
        ),
        ({"merges": ["a b c"]}, "entry 0 of `tokenizer.ggml.merges` must be two tokens"),
        ({"merges": ["a é́"]}, "entry 0 of `tokenizer.ggml.merges` must be two tokens"),
        ({"merges": ["a b", "b a"]}, "entry 1 of .* that together spell a third"),
        (
            {"bos_token_id": None, "add_bos_token": True},
            "`tokenizer.ggml.bos_token_id` must be pre",
        ),
        ({"add_bos_token": "yes"}, "`tokenizer.ggml.add_bos_token` must be true or false"),
    ],
)
def test_a_contradiction_in_the_metadata_is_named(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        text_format_from_gguf(byte_level_metadata(**changes))


@pytest.mark.parametrize("value", [261, -1, 2**32 - 1, "x", 2.0, True])
@pytest.mark.parametrize("role", ["bos", "eos", "unknown", "eot", "eom"])
def test_a_special_token_that_is_none_causes_a_warning(role: str, value: Any) -> None:
    expected = text_format_from_gguf(byte_level_metadata(**{f"{role}_token_id": None}))
    changes = {f"{role}_token_id": value, "add_bos_token": False}
    with pytest.warns(UserWarning, match=f"`tokenizer.ggml.{role}_token_id` must be one of the"):
        text = text_format_from_gguf(byte_level_metadata(**changes))
    assert text.special_tokens == expected.special_tokens
    assert text.end_token_ids == expected.end_token_ids
    assert text.bos_token_id == expected.bos_token_id


def test_a_start_that_is_no_token_is_not_added() -> None:
    with pytest.warns(UserWarning, match=r"bos_token_id` .* but is 261\. It is ignored\."):
        text = text_format_from_gguf(byte_level_metadata(bos_token_id=261, add_bos_token=True))
    assert (text.bos_token_id, text.bos_ids) == (None, [])


def test_sentencepieces_own_id_replaces_one_that_is_no_token() -> None:
    metadata = {**vocabularies.sentencepiece_metadata(), "tokenizer.ggml.bos_token_id": 10**6}
    with pytest.warns(UserWarning, match=r"bos_token_id` must be one of .* but is 1000000"):
        assert text_format_from_gguf(metadata).bos_ids == [1]


def test_named_templates_are_not_used_for_a_chat() -> None:
    named = {"tokenizer.chat_template.rag": "R", "tokenizer.chat_templates": ["rag"]}
    default = {"tokenizer.chat_template": "D"}
    assert text_format_from_gguf(byte_level_metadata() | named | default).chat_template == "D"
    with pytest.warns(UserWarning, match=r"only `tokenizer.chat_template.rag`. The model"):
        assert text_format_from_gguf(byte_level_metadata() | named).chat_template is None


def test_a_chat_template_that_is_not_a_string_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"`tokenizer.chat_template` must be a string"):
        text_format_from_gguf(byte_level_metadata() | {"tokenizer.chat_template": 3})


@pytest.mark.parametrize("score", [float("nan"), "x", None])
def test_a_score_that_is_not_a_number_is_refused(score: Any) -> None:
    metadata = dict(vocabularies.sentencepiece_metadata())
    scores = list(metadata["tokenizer.ggml.scores"])
    scores[300] = score
    with pytest.raises(
        CheckpointError, match=r"entry 300 of `tokenizer.ggml.scores` must be a num"
    ):
        text_format_from_gguf(metadata | {"tokenizer.ggml.scores": scores})


def test_byte_pieces_stand_for_bytes() -> None:
    metadata = vocabularies.sentencepiece_metadata()
    assert metadata["tokenizer.ggml.token_type"][3] == BYTE
    text = text_format_from_gguf(metadata)
    ids = tokenizer_of(text).encode("\x00", add_special_tokens=False).ids
    assert ids[-1] == 3
