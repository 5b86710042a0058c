"""A folder's tokenizer as GGUF metadata gives the same ids, or is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers
from tokenizers import pre_tokenizers as pre

from sinkstream.checkpoint.bounded_file import File
from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.checkpoint.formats.gguf_header import read_gguf_header
from sinkstream.errors import CheckpointError
from sinkstream.export.tokenizer_metadata import tokenizer_metadata
from sinkstream.text.tokenizers.from_gguf import text_format_from_gguf
from tests.python.text.llama_cpp_sources import files_of_sdist
from tests.python.text.vocabularies import FAMILIES, PROSE, llama3, sentencepiece

REAL = (
    "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gpt-2", "llama-bpe", "llama-spm",
    "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder",
)  # fmt: skip
SAME_RULE = {"refact": "smollm", "starcoder": "smollm", "llama-spm": "default", "phi-3": "default"}


def rows_of(text: TextFormat) -> int:
    assert text.tokenizer is not None
    return max(text.tokenizer.get_vocab(with_added_tokens=True).values()) + 1


@pytest.mark.parametrize("name", FAMILIES)
def test_text_has_the_same_ids(name: str) -> None:
    text = FAMILIES[name]()
    rows = rows_of(text) + 5
    metadata = tokenizer_metadata(text, rows)
    read = text_format_from_gguf(metadata)
    assert text.tokenizer is not None
    assert read.tokenizer is not None
    for begin in range(0, len(PROSE), 997):
        sample = PROSE[begin : begin + 997].lstrip()
        ours = text.tokenizer.encode(sample, add_special_tokens=False).ids
        assert read.tokenizer.encode(sample, add_special_tokens=False).ids == ours
    tokens = metadata["tokenizer.ggml.tokens"]
    assert len(tokens) == rows
    assert len(set(tokens)) == rows
    assert metadata["tokenizer.ggml.token_type"][-5:] == [5] * 5
    assert read.end_token_ids >= text.end_token_ids
    assert read.bos_token_id == text.bos_token_id or not text.add_bos
    assert (read.add_bos, read.chat_template) == (text.add_bos, text.chat_template)
    own = text.tokenizer.get_added_tokens_decoder()
    added = read.tokenizer.get_added_tokens_decoder()
    assert {i: token.special for i, token in own.items()}.items() <= {
        i: token.special for i, token in added.items()
    }.items()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:load. GGUF metadata")
@pytest.mark.parametrize("name", REAL)
def test_real_vocabularies_come_out_as_they_were(pytestconfig: pytest.Config, name: str) -> None:
    folder = files_of_sdist(
        pytestconfig, "vocabularies", lambda path: "/models/ggml-vocab-" in path
    )
    file = File(folder / f"ggml-vocab-{name}.gguf")
    try:
        expected = read_gguf_header(file).metadata
    finally:
        file.close()
    text = text_format_from_gguf(expected)
    found = tokenizer_metadata(text, len(expected["tokenizer.ggml.tokens"]))
    assert found["tokenizer.ggml.pre"] == SAME_RULE.get(name, name)
    for key in ("tokens", "merges", "model", "eos_token_id"):
        key = f"tokenizer.ggml.{key}"
        assert found.get(key) == expected.get(key)


def damaged(text: TextFormat, **steps: Any) -> TextFormat:
    """Return a text format whose tokenizer has other steps."""
    assert text.tokenizer is not None
    tokenizer = Tokenizer.from_str(text.tokenizer.to_str())
    for name, step in steps.items():
        setattr(tokenizer, name, step)
    return replace(text, tokenizer=tokenizer)


@pytest.mark.parametrize(
    "steps",
    [
        {"pre_tokenizer": pre.Sequence([pre.Whitespace(), pre.ByteLevel(use_regex=False)])},
        {"pre_tokenizer": pre.ByteLevel(add_prefix_space=True)},
        {"pre_tokenizer": pre.Sequence([pre.Split("x", "isolated"), pre.ByteLevel()])},
        {"normalizer": normalizers.Lowercase()},
    ],
)
def test_rules_without_a_name_are_refused(steps: dict[str, Any]) -> None:
    text = damaged(llama3(), **steps)
    with pytest.raises(CheckpointError, match="must have a pre-tokenizer that GGUF has a name for"):
        tokenizer_metadata(text, rows_of(text))


def test_other_models_are_refused() -> None:
    text = replace(llama3(), tokenizer=Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))
    with pytest.raises(CheckpointError, match=r'must have merges \(BPE\), but has "WordLevel"'):
        tokenizer_metadata(text, 1)


def test_merges_that_scores_cannot_order_are_refused() -> None:
    text = sentencepiece()
    assert text.tokenizer is not None
    state = json.loads(text.tokenizer.to_str())
    state["model"]["merges"].pop(5)
    text = replace(text, tokenizer=Tokenizer.from_str(json.dumps(state)))
    with pytest.raises(CheckpointError, match="must have merges that follow from the scores"):
        tokenizer_metadata(text, rows_of(text))


def test_other_ids_are_refused() -> None:
    text = damaged(sentencepiece(), normalizer=normalizers.Replace("e", "x"))
    with pytest.raises(CheckpointError, match=r"split .* in the same way after the conversion"):
        tokenizer_metadata(text, rows_of(text))


def test_flags_that_gguf_lacks_cause_a_warning() -> None:
    text = damaged(llama3())
    assert text.tokenizer is not None
    text.tokenizer.add_tokens([AddedToken("<x>", lstrip=True), AddedToken("<y>", rstrip=True)])
    with pytest.warns(UserWarning, match=r'flags .* but "<x>" and 1 more have one'):
        tokenizer_metadata(text, rows_of(text))


def test_a_folder_without_a_tokenizer_gives_a_file_without_one(tmp_path: Path) -> None:
    assert tokenizer_metadata(TextFormat(None, None), 5) == {"tokenizer.ggml.model": "none"}
