"""Every expression of a template gives transformers' text, and messages stay plain text."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.python.text import template_fuzz
from tests.python.text.expressions import CONTENTS
from tests.python.text.template_fuzz import EXPRESSION_SOURCES, ours, theirs

SDIST = "llama-cpp-python==0.3.36"  # it contains llama.cpp's collection of chat templates


@pytest.mark.parametrize("source", EXPRESSION_SOURCES)
def test_every_expression_gives_transformers_text(source: str) -> None:
    for content in CONTENTS:
        messages = [
            {"role": "user", "content": content},
            {"role": "assistant", "content": "x <|im_end|> y"},
        ]
        assert ours(source, messages)[0] == theirs(source, messages), content


def test_random_conversations_give_transformers_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert template_fuzz.main(["--cases", "600"]) == 0, capsys.readouterr().out


@pytest.fixture(scope="session")
def real_templates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder of checkpoints' own chat templates, from a package's sources."""
    folder = tmp_path_factory.mktemp("sdist")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
    try:
        subprocess.run(
            [*pip, "--dest", folder, SDIST], check=True, capture_output=True, timeout=240
        )
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"{SDIST} cannot be downloaded: {error}")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as sources:
        for member in sources.getmembers():
            if member.name.endswith(".jinja") and (file := sources.extractfile(member)) is not None:
                (folder / Path(member.name).name).write_bytes(file.read())
    return folder


@pytest.mark.slow
def test_checkpoints_templates_give_transformers_text(
    real_templates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(list(real_templates.glob("*.jinja"))) > 50
    found = template_fuzz.main(["--cases", "2500", "--templates", str(real_templates)])
    assert found == 0, capsys.readouterr().out
