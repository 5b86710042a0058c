"""Tokenizers of Hugging Face folders: what starts and ends a text, and damaged files."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import AddedToken, Tokenizer, processors

from sinkstream.errors import CheckpointError
from sinkstream.text.tokenizers import from_folder
from sinkstream.text.tokenizers.from_folder import text_format_from_folder
from tests.python.text import templates, vocabularies
from tests.python.text.encoding import encode_chat, encode_prompt
from tests.python.text.vocabularies import FAMILIES, PROSE

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a folder: qwen3's tokenizer, and files given as JSON values or as strings."""

    def folder(tokenizer: Tokenizer | None = None, /, **files: Any) -> Path:
        chosen = tokenizer or vocabularies.qwen3().tokenizer
        assert chosen is not None
        chosen.save(str(tmp_path / "tokenizer.json"))
        for name, value in files.items():
            path = tmp_path / (name.replace("__", "."))
            path.write_text(value if isinstance(value, str) else json.dumps(value))
        return tmp_path

    return folder


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_encodes_and_decodes_as_transformers(write: Write, family: str) -> None:
    transformers = pytest.importorskip("transformers")
    text = FAMILIES[family]()
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": templates.QWEN3}
    folder = write(text.tokenizer, tokenizer_config__json=settings | dict(text.special_tokens))
    found = text_format_from_folder(folder, {})
    assert found.tokenizer is not None
    oracle = transformers.AutoTokenizer.from_pretrained(folder)
    for sample in (PROSE[:4000], " x  y", "naïve 日本 🎉"):
        ids = oracle.encode(sample)
        assert encode_prompt(found, 1000, sample) == ids
        assert found.tokenizer.decode(ids) == oracle.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
    messages = [{"role": "user", "content": "Hello"}]
    expected = oracle.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert encode_chat(found, messages) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_whether_a_text_gets_a_start_is_read_off_the_tokenizer(write: Write, family: str) -> None:
    text = FAMILIES[family]()
    folder = write(text.tokenizer, tokenizer_config__json=dict(text.special_tokens))
    found = text_format_from_folder(folder, {})
    # This form has no post-processor, which would add it.
    assert found.add_bos is (text.add_bos and family != "metaspace_first")
    assert found.special_tokens == text.special_tokens


@pytest.mark.parametrize("has_list", [True, False])
def test_end_tokens_come_from_every_file_that_counts(write: Write, has_list: bool) -> None:
    tokenizer = vocabularies.llama3().tokenizer
    assert tokenizer is not None
    ids = [tokenizer.token_to_id(f"<|reserved_special_token_{i}|>") for i in range(4)]
    folder = write(
        tokenizer,
        generation_config__json={"eos_token_id": [ids[0], ids[1]]},
        tokenizer_config__json={
            "eos_token": {"content": "<|eot_id|>", "special": True, "__type": "AddedToken"},
            **({"added_tokens_decoder": {}} if has_list else {}),
        },
        special_tokens_map__json={"eos_token": "<|end_of_text|>"},
    )
    found = text_format_from_folder(folder, {"eos_token_id": ids[2]})
    # With a list of added tokens in tokenizer_config.json, transformers reads no older file.
    eos = "<|eot_id|>" if has_list else "<|end_of_text|>"
    oracle = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    assert found.special_tokens["eos_token"] == oracle.eos_token == eos
    assert found.end_token_ids == {*ids[:3], tokenizer.token_to_id(eos)}


_NEW = "<|turn|>"  # no token of tokenizer.json
_NAMING_FILES: list[dict[str, Any]] = [
    {"tokenizer_config__json": {"eos_token": _NEW}},
    {"tokenizer_config__json": {"eos_token": {"__type": "AddedToken", "content": _NEW}}},
    {"tokenizer_config__json": {"bos_token": _NEW, "unk_token": "<unk>", "pad_token": "<pad>"}},
    {"tokenizer_config__json": {"image_token": _NEW, "sep_token": None}},
    {"tokenizer_config__json": {"additional_special_tokens": [_NEW, "<|im_end|>"]}},
    {"tokenizer_config__json": {"extra_special_tokens": {"audio_token": _NEW}}},
    {
        "tokenizer_config__json": {
            "extra_special_tokens": ["<new>"],
            "additional_special_tokens": [_NEW],
            "eos_token": "<think>",
        }
    },
    {
        "tokenizer_config__json": {
            "eos_token": _NEW,
            "added_tokens_decoder": {
                "608": {"content": "<b>", "lstrip": True},
                "607": {"content": _NEW, "rstrip": True, "single_word": True},
            },
        },
        "special_tokens_map__json": {"eos_token": "<|im_end|>"},
        "added_tokens__json": {"<c>": 609},
    },
    {
        "tokenizer_config__json": {"eos_token": "<|im_end|>"},
        "special_tokens_map__json": {
            "eos_token": {"content": _NEW, "lstrip": True, "normalized": False},
            "additional_special_tokens": ["<c>"],
        },
        "added_tokens__json": {"<d>": 607, _NEW: 608, "<c>": 609},
    },
    {"special_tokens_map__json": {"extra_special_tokens": [_NEW, {"content": "<c>"}]}},
    {"added_tokens__json": {_NEW: 607, "café": 608}},
]


@pytest.mark.filterwarnings("ignore:load. .* the id")
@pytest.mark.parametrize("files", _NAMING_FILES, ids=lambda files: json.dumps(files)[:80])
def test_tokens_that_other_files_name_are_those_of_transformers(
    write: Write, files: dict[str, Any]
) -> None:
    folder = write(**files)
    oracle = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    found = text_format_from_folder(folder, {})
    assert found.tokenizer is not None
    added = found.tokenizer.get_added_tokens_decoder()
    expected = oracle.backend_tokenizer.get_added_tokens_decoder()
    assert {i: repr(token) for i, token in added.items()} == {
        i: repr(token) for i, token in expected.items()
    }
    assert found.special_tokens == oracle.special_tokens_map
    if oracle.eos_token is not None:
        assert found.end_token_ids == {oracle.eos_token_id}
    template = f"a{_NEW} {{{{ messages[0].content }}}} <c>"
    chat = dataclasses.replace(found, chat_template=template)
    assert encode_chat(chat, [{"role": "user", "content": "b"}]) == oracle.encode(f"a{_NEW} b <c>")


def test_a_declared_id_that_the_token_does_not_have_causes_a_warning(write: Write) -> None:
    tokenizer = vocabularies.qwen3().tokenizer
    assert tokenizer is not None
    size = tokenizer.get_vocab_size()
    listed = {"3": {"content": _NEW}, str(size + 1): {"content": "<b>"}}
    with pytest.warns(
        UserWarning,
        match=rf'tokenizer_config.json must give "<|turn|>" the id {size}, .* but gives it 3,',
    ):
        found = text_format_from_folder(
            write(tokenizer_config__json={"added_tokens_decoder": listed}), {}
        )
    assert found.vocabulary[_NEW] == size
    assert found.vocabulary["<b>"] == size + 1


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (
            {"tokenizer_config__json": {"added_tokens_decoder": [1]}},
            r"`added_tokens_decoder` must be an object, but is \[1\]",
        ),
        (
            {"tokenizer_config__json": {"added_tokens_decoder": {"x": {"content": "a"}}}},
            r'must have ids as keys, but has "x"',
        ),
        (
            {"tokenizer_config__json": {"added_tokens_decoder": {"1": "a"}}},
            r'must list tokens, but has "a"',
        ),
        ({"added_tokens__json": {"a": -1}}, r'"a" must have an id, a nonnegative integer, but has'),
    ],
)
def test_a_list_of_added_tokens_that_is_none_is_named(
    write: Write, files: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        text_format_from_folder(write(**files), {})


@pytest.mark.parametrize("value", [7, False, {"content": 3}, ["<a>"]])
def test_a_role_that_is_not_a_token_causes_a_warning(write: Write, value: Any) -> None:
    folder = write(tokenizer_config__json={"eos_token": value})
    with pytest.warns(UserWarning, match=r"`eos_token` must be a string, or an object with"):
        assert text_format_from_folder(folder, {}).end_token_ids == frozenset()


def test_an_end_token_of_ordinary_words_does_not_change_texts(write: Write) -> None:
    tokenizer = vocabularies.qwen3().tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode(" the sink").ids
    folder = write(generation_config__json={"eos_token_id": ids[0]})
    found = text_format_from_folder(folder, {"eos_token_id": ids[1]})
    assert found.end_token_ids == set(ids[:2])
    assert encode_prompt(found, 1000, " the sink") == ids


def test_a_text_starts_as_the_tokenizer_says_whatever_the_role(write: Write) -> None:
    tokenizer = vocabularies.llama3().tokenizer
    assert tokenizer is not None
    folder = write(tokenizer, tokenizer_config__json={"bos_token": "<|eot_id|>"})
    found = text_format_from_folder(folder, {})
    expected = transformers.PreTrainedTokenizerFast.from_pretrained(folder).encode("a")
    assert encode_prompt(found, 1000, "a") == expected
    assert found.special_tokens["bos_token"] == "<|eot_id|>"


def test_a_tokenizer_that_ends_texts_causes_a_warning(write: Write) -> None:
    tokenizer = Tokenizer.from_str(vocabularies.llama3().tokenizer.to_str())  # type: ignore[union-attr]
    names = ("<|begin_of_text|>", "<|eot_id|>")
    bos, eos = map(tokenizer.token_to_id, names)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[names[0], "$A", names[1]], special_tokens=[(names[0], bos), (names[1], eos)]
    )
    with pytest.warns(UserWarning, match=rf"but adds \[{bos}\] before it and \[{eos}\] after it\."):
        found = text_format_from_folder(write(tokenizer), {})
    assert found.bos_ids == [bos]


FLAGS = [
    {"single_word": True},
    {"normalized": True},
    {"lstrip": True, "rstrip": True},
    {"single_word": True, "normalized": True, "rstrip": True},
]


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "+".join(flags))
@pytest.mark.parametrize("family", ["qwen3", "sentencepiece_without_prefix", "metaspace_first"])
def test_flags_of_tokens_give_the_ids_of_transformers(
    write: Write, family: str, flags: dict[str, bool], special: bool
) -> None:
    base = FAMILIES[family]().tokenizer
    assert base is not None
    tokenizer = Tokenizer.from_str(base.to_str())
    tokenizer.add_tokens(
        [AddedToken("<x>", special=special, **flags), AddedToken("<x><y>", special=False)]
    )
    folder = write(tokenizer)
    oracle = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    found = text_format_from_folder(folder, {})
    for text in ("a <x> b", "a<x>b", "<x>", "é<x>\u0301", "_<x>", " <x>\x1c<x>\u3000\n", "<x><y>"):
        chat = dataclasses.replace(found, chat_template=f"{{{{ {json.dumps(text)} }}}}")
        expected = oracle.encode(text, add_special_tokens=False)
        assert encode_chat(chat, [{"role": "user", "content": "x"}]) == expected, text


def test_a_token_that_is_matched_after_normalization_causes_a_warning(write: Write) -> None:
    tokenizer = Tokenizer.from_str(vocabularies.sentencepiece().tokenizer.to_str())  # type: ignore[union-attr]
    tokenizer.add_tokens([AddedToken("<x>", special=True, normalized=True)])
    with pytest.warns(UserWarning, match=r'"<x>" has the flag `normalized`'):
        text_format_from_folder(write(tokenizer), {})


def test_the_start_may_come_from_the_config_alone(write: Write) -> None:
    tokenizer = vocabularies.llama3().tokenizer
    assert tokenizer is not None
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    found = text_format_from_folder(write(tokenizer), {"bos_token_id": bos})
    assert (found.bos_token_id, found.add_bos) == (bos, True)


def test_an_end_token_that_is_ordinary_text_becomes_special(write: Write) -> None:
    copy = Tokenizer.from_str(vocabularies.qwen3().tokenizer.to_str())  # type: ignore[union-attr]
    copy.add_tokens(["<end>"])
    found = text_format_from_folder(write(copy, tokenizer_config__json={"eos_token": "<end>"}), {})
    assert found.tokenizer is not None
    assert found.tokenizer.decode(found.tokenizer.encode("x<end>").ids) == "x"


def test_saved_truncation_and_padding_are_left_aside(write: Write) -> None:
    copy = Tokenizer.from_str(vocabularies.qwen3().tokenizer.to_str())  # type: ignore[union-attr]
    copy.enable_truncation(3)
    copy.enable_padding(length=50)
    found = text_format_from_folder(write(copy), {})
    expected = encode_prompt(vocabularies.qwen3(), 1000, "one two three four five")
    assert encode_prompt(found, 1000, "one two three four five") == expected
    assert 3 < len(expected) < 50


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"tokenizer_config__json": {"chat_template": "A"}}, "A"),
        (
            {
                "tokenizer_config__json": {
                    "chat_template": [
                        {"name": "tool_use", "template": "T"},
                        {"name": "default", "template": "D"},
                    ]
                }
            },
            "D",
        ),
        ({"tokenizer_config__json": {"chat_template": "A"}, "chat_template__jinja": "B"}, "B"),
        ({"chat_template__json": {"chat_template": "C"}}, "C"),
    ],
)
def test_the_chat_template_is_found(write: Write, files: dict[str, Any], expected: Any) -> None:
    assert text_format_from_folder(write(**files), {}).chat_template == expected


def test_a_folder_without_tokenizer_has_none(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "A"}')
    text = text_format_from_folder(tmp_path, {})
    assert (text.tokenizer, text.chat_template) == (None, "A")


def test_a_folder_without_tokenizer_still_has_end_ids(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert text_format_from_folder(tmp_path, {"eos_token_id": 3}).end_token_ids == {1, 2, 3}


OPTIONAL = (
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_file_that_cannot_be_looked_at_is_an_error_and_not_absent(
    write: Write, name: str
) -> None:
    folder = write()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("x" * 300)  # longer than any file system's names
    with pytest.raises(
        CheckpointError, match=f'load: file "{name}" cannot be opened: File name too long.'
    ):
        text_format_from_folder(folder, {})


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_link_whose_target_is_gone_is_an_error_and_not_absent(write: Write, name: str) -> None:
    folder = write()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("../../blobs/0a1b")
    with pytest.raises(CheckpointError) as caught:
        text_format_from_folder(folder, {})
    assert str(caught.value) == (
        f'load: "{name}" must be a regular file, but is a link to "../../blobs/0a1b", '
        "which does not exist."
    )


def test_a_file_without_permission_is_an_error_and_not_absent(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write()

    def refuse(path: Path, **options: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "stat", refuse)  # a superuser would be let in
    with pytest.raises(CheckpointError, match=r"cannot be opened: Permission denied\."):
        text_format_from_folder(folder, {})


_VALID = json.loads(vocabularies.qwen3().tokenizer.to_str())  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"tokenizer__json": ""}, "tokenizer.json must describe a tokenizer, but does not"),
        ({"tokenizer__json": "[]"}, "tokenizer.json must describe a tokenizer"),
        ({"tokenizer__json": '{"model": {}}'}, "tokenizer.json must describe a tokenizer"),
        ({"tokenizer__json": "[" * 100_000}, "tokenizer.json must describe a tokenizer"),
        (
            {"tokenizer__json": _VALID | {"model": _VALID["model"] | {"merges": [["a", "Ω"]]}}},
            "tokenizer.json must describe a tokenizer",
        ),
        ({"tokenizer_config__json": "{"}, "tokenizer_config.json must be valid JSON"),
        ({"tokenizer_config__json": {"chat_template": 3}}, "`chat_template` must be a string, or"),
        ({"chat_template__jinja": "x" * (1 << 20) + "x"}, "at most 1048576 bytes, but has 1048577"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_damaged_file_is_named(write: Write, files: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CheckpointError, match=sentence):
        text_format_from_folder(write(**files), {})


def test_a_tokenizer_that_is_too_large_is_refused(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_folder, "MAX_TOKENIZER_BYTES", 1000)
    with pytest.raises(CheckpointError, match=r"tokenizer.json must have at most 1000 bytes, but"):
        text_format_from_folder(write(), {})


def test_a_template_that_is_not_utf8_is_refused(write: Write) -> None:
    folder = write()
    (folder / "chat_template.jinja").write_bytes(b"ab\xff")
    with pytest.raises(
        CheckpointError, match=r"chat_template.jinja must be UTF-8 .* but byte 2 is not"
    ):
        text_format_from_folder(folder, {})


def test_a_tokenizer_cut_anywhere_is_an_error(write: Write) -> None:
    folder = write()
    whole = (folder / "tokenizer.json").read_bytes()
    for length in range(0, len(whole) - 1, max(1, len(whole) // 50)):
        (folder / "tokenizer.json").write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            text_format_from_folder(folder, {})


# Two kinds of damage on which the tokenizers package panics instead of raising an error.
def test_a_tokenizer_that_panics_when_it_is_read_is_an_error(write: Write) -> None:
    model = _VALID["model"] | {"continuing_subword_prefix": "日本"}
    with pytest.raises(
        CheckpointError, match=r"tokenizer.json must describe a tokenizer, but does"
    ):
        text_format_from_folder(write(tokenizer__json=_VALID | {"model": model}), {})


def test_a_tokenizer_that_panics_when_it_encodes_is_an_error(write: Write) -> None:
    damaged = json.loads(vocabularies.llama3().tokenizer.to_str())  # type: ignore[union-attr]
    damaged["post_processor"]["single"][0]["SpecialToken"]["id"] = "unknown"
    with pytest.raises(CheckpointError, match="a tokenizer that can encode"):
        text_format_from_folder(write(tokenizer__json=damaged), {})
