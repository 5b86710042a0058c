"""llama.cpp's vocabularies of real models give the ids that it expects of them."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from sinkstream.checkpoint.bounded_file import File
from sinkstream.checkpoint.formats.gguf_header import read_gguf_header
from sinkstream.errors import CheckpointError
from sinkstream.text.tokenizers.from_gguf import text_format_from_gguf
from tests.python.text.llama_cpp_sources import files_of_sdist

NAMES = (
    "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe",
    "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder",
)  # fmt: skip
SEPARATOR = "\n__ggml_vocab_test__\n"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def folder(pytestconfig: pytest.Config) -> Path:
    """Give a folder with vocabularies, texts (`.gguf.inp`) and their ids (`.gguf.out`)."""
    wanted = "models/ggml-vocab-"
    sources = files_of_sdist(pytestconfig, "vocabularies", lambda path: path.startswith(wanted))
    return sources / "models"


@pytest.mark.filterwarnings("ignore:load. GGUF metadata. `tokenizer.ggml.token_type`")
@pytest.mark.parametrize("name", NAMES)
def test_texts_have_the_expected_ids(folder: Path, name: str) -> None:
    path = folder / f"ggml-vocab-{name}.gguf"
    file = File(path)
    try:
        text = text_format_from_gguf(read_gguf_header(file).metadata)
    finally:
        file.close()
    assert text.tokenizer is not None
    texts = Path(f"{path}.inp").read_bytes().decode().removesuffix(SEPARATOR).split(SEPARATOR)
    lines = Path(f"{path}.out").read_text().splitlines()
    assert len(texts) in (len(lines), len(lines) - 1)
    normalizer = text.tokenizer.normalizer
    compared = 0
    for sample, line in zip(texts, lines, strict=False):
        composed = unicodedata.normalize("NFC", sample)
        normalized = sample if normalizer is None else normalizer.normalize_str(sample)
        if sample != composed == normalized:  # llama.cpp does not normalize; the model's own does
            continue
        ids = text.tokenizer.encode(sample, add_special_tokens=False).ids
        assert ids == [int(number) for number in line.split()], sample
        compared += 1
    assert compared >= 45


def test_a_vocabulary_of_another_kind_is_refused(folder: Path) -> None:
    file = File(folder / "ggml-vocab-bert-bge.gguf")
    try:
        metadata = read_gguf_header(file).metadata
    finally:
        file.close()
    with pytest.raises(CheckpointError, match='the tokenizer model "bert"; the supported ones are'):
        text_format_from_gguf(metadata)
