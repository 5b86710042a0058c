"""The named pre-tokenizers equal the models' own rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders
from tokenizers import pre_tokenizers as pre

from sinkstream.errors import CheckpointError
from sinkstream.text.tokenizers.pre_tokenizers import PRE_TOKENIZERS, pre_tokenizer
from sinkstream.text.tokenizers.vocabulary_kinds import byte_level_tokenizer
from tests.python.lanes import examples
from tests.python.text.vocabularies import LLAMA3_SPLIT, PROSE, QWEN_SPLIT

VOCABULARY = {letter: i for i, letter in enumerate(sorted(pre.ByteLevel.alphabet()))}


def _regex(split: str) -> pre.PreTokenizer:
    return pre.Sequence(
        [
            pre.Split(Regex(split), "isolated"),
            pre.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


# From the models' own tokenizer.json files.
OWN_RULES = {
    "gpt-2": pre.ByteLevel(add_prefix_space=False),
    "llama-bpe": _regex(LLAMA3_SPLIT),
    "qwen2": _regex(QWEN_SPLIT),
    "smollm": pre.Sequence(
        [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)]
    ),
}
SAMPLES = [
    PROSE,
    "",
    "  1  22   333 4444 55555",
    "don't I'LL we'Ve 'S 'sx ''re",
    "a\n\n\n  b\r\n\r\n\tc   ",
    "x = {'a': [1,2]}\n\n\n\n   y!?...  --",
    "²³ ½ ⅷ ٣٤ 一二 日本語 한글 ไทย हिन्दी 🎉👨‍👩‍👧 e\u0301",
    "\u00a0\u2003\u3000 \x85\x1c\u2028 x",
]


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    """Return the words that a text is split into, in the byte alphabet."""
    assert tokenizer.pre_tokenizer is not None
    return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def decoded(word: str) -> str:
    """Return the text of a word in the byte alphabet."""
    return str(decoders.ByteLevel().decode([word]))


def built(name: str) -> Tokenizer:
    return byte_level_tokenizer(VOCABULARY, [], pre_tokenizer(name))


@pytest.mark.parametrize("name", OWN_RULES)
def test_a_rule_equals_the_models_own(name: str) -> None:
    tokenizer = built(name)
    for sample in SAMPLES:
        expected = [word for word, _ in OWN_RULES[name].pre_tokenize_str(sample)]
        assert words(tokenizer, sample) == expected


@examples(300)
@given(st.text(), st.sampled_from(sorted(OWN_RULES)))
def test_a_rule_equals_the_models_own_on_any_text(text: str, name: str) -> None:
    expected = [word for word, _ in OWN_RULES[name].pre_tokenize_str(text)]
    assert words(built(name), text) == expected


# From llama.cpp, which defines the names: its vocab-only tokenizer gives these words.
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("default", ["Hi", "Ġ", "123", "45", "Ġ", "$", "x", "++", "Ġyou", "'", "re"]),
        ("dbrx", ["Hi", "Ġ", "123", "45", "Ġ$", "x", "++", "Ġyou", "'re"]),
        ("gpt-2", ["Hi", "Ġ12345", "Ġ$", "x", "++", "Ġyou", "'re"]),
        ("llama-bpe", ["Hi", "Ġ", "123", "45", "Ġ$", "x", "++", "Ġyou", "'re"]),
        ("qwen2", ["Hi", "Ġ", "1", "2", "3", "4", "5", "Ġ$", "x", "++", "Ġyou", "'re"]),
        ("starcoder", ["Hi", "Ġ", "1", "2", "3", "4", "5", "Ġ$", "x", "++", "Ġyou", "'re"]),
        ("tekken", ["Hi", "Ġ", "1", "2", "3", "4", "5", "Ġ$", "x", "++", "Ġyou", "'re"]),
        ("command-r", ["Hi", "Ġ", "1", "2", "3", "4", "5", "Ġ$", "x", "++", "Ġyou", "'re"]),
        (
            "deepseek-coder",
            ["Hi", "Ġ", "1", "2", "3", "4", "5", "Ġ$", "x", "++", "Ġyou", "'", "re"],
        ),
        ("deepseek-llm", ["Hi", "Ġ", "12345", "Ġ$", "x", "++", "Ġyou", "'", "re"]),
        ("deepseek-v3", ["Hi", "Ġ", "123", "45", "Ġ$", "x", "++", "Ġyou", "'re"]),
        ("falcon", ["Hi", "Ġ", "123", "45", "Ġ", "$", "x", "++", "Ġyou", "'", "re"]),
        ("glm4", ["Hi", "Ġ", "123", "45", "Ġ$", "x", "++", "Ġyou", "'re"]),
        ("gpt-4o", ["Hi", "Ġ", "123", "45", "Ġ$", "x", "++", "Ġyou're"]),
        ("qwen35", ["Hi", "Ġ", "1", "2", "3", "4", "5", "Ġ$", "x", "++", "Ġyou", "'re"]),
        ("seed-coder", ["Hi", "Ġ", "1", "2", "3", "4", "5", "Ġ$", "x", "++", "Ġyou", "'re"]),
        ("superbpe", ["HiĠ", "12", "345", "Ġ$x++Ġyou're"]),
        ("tiny_aya", ["Hi", "Ġ", "12", "345", "Ġ$", "x", "++", "Ġyou're"]),
        ("ufakzeka", ["Hi", "Ġ", "1", "2", "3", "4", "5", "Ġ$", "x", "++", "Ġyou", "'re"]),
        ("viking", ["Hi", "Ġ", "1", "2", "3", "4", "5", "Ġ$x++", "Ġyou're"]),
    ],
)
def test_a_name_means_what_it_always_meant(name: str, expected: list[str]) -> None:
    assert words(built(name), "Hi 12345 $x++ you're") == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("qwen2", "हिन्दी", ["ह", "िन", "्द", "ी"]),
        ("qwen35", "हिन्दी", ["हिन्दी"]),
        ("gpt-4o", "HelloWorld IS x's", ["Hello", "World", " IS", " x's"]),
        ("deepseek-llm", "ab日本 ƻ\n\n", ["ab", "日本", " ƻ", "\n", "\n"]),
        ("deepseek-v3", "#if 日本カナx", ["#if", " ", "日本カナ", "x"]),
        ("seed-coder", "x!\n\ny", ["x", "!", "\n\n", "y"]),
        ("qwen2", "x!\n\ny", ["x", "!\n\n", "y"]),
        ("falcon", "a`b 1234", ["a", "`", "b", " ", "123", "4"]),
        ("spark2_5", "12345 x", ["1", "2", "3", "4", "5", " x"]),
        ("exaone-moe", "ab cd 1", ["ab cd", " ", "1"]),
        ("laguna", "a\nb", ["a", "\n", "b"]),
        ("youtu", "日本한국x", ["日本", "한국", "x"]),
    ],
)
def test_a_name_splits_as_its_models_tokenizer(name: str, text: str, expected: list[str]) -> None:
    assert [decoded(word) for word in words(built(name), text)] == expected


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_name_loses_nothing(name: str) -> None:
    tokenizer = built(name)
    for sample in SAMPLES[1:]:
        composed = tokenizer.normalizer.normalize_str(sample) if tokenizer.normalizer else sample
        assert tokenizer.decode(tokenizer.encode(sample).ids) == composed


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(CheckpointError, match='"gpt-5"; the supported ones are ') as caught:
        pre_tokenizer("gpt-5")
    for name in PRE_TOKENIZERS:
        assert name in str(caught.value)


def test_the_list_is_sorted() -> None:
    assert list(PRE_TOKENIZERS) == sorted(PRE_TOKENIZERS)
