"""Fixtures: the real tokenizer, as GGUF metadata and as a text format; real chat templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sinkstream.checkpoint.bounded_file import File
from sinkstream.checkpoint.checkpoint import TextFormat
from sinkstream.checkpoint.formats.gguf_header import read_gguf_header
from sinkstream.text.tokenizers.from_gguf import text_format_from_gguf
from tests.python.text.llama_cpp_sources import files_of_sdist


@pytest.fixture(scope="session")
def smollm2_metadata(smollm2: Path) -> dict[str, Any]:
    """Give the metadata of SmolLM2's GGUF file."""
    file = File(smollm2)
    try:
        return read_gguf_header(file).metadata
    finally:
        file.close()


@pytest.fixture(scope="session")
def smollm2_text(smollm2_metadata: dict[str, Any]) -> TextFormat:
    """Give SmolLM2's text format."""
    return text_format_from_gguf(smollm2_metadata)


@pytest.fixture(scope="session")
def real_templates(pytestconfig: pytest.Config) -> Path:
    """Give a folder of checkpoints' own chat templates, from llama.cpp's collection."""
    sources = files_of_sdist(pytestconfig, "templates", lambda path: path.endswith(".jinja"))
    return sources / "models/templates"
