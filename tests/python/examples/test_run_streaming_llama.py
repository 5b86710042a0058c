"""The conversation runs as its users run it, and turns follow each other as the template says."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "examples" / "run_streaming_llama.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_streaming_llama", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_prompt_is_answered_and_the_cache_stays_bounded(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Hello there\n\nTell me about the sea, the land and the sky\nAnd so?\n")
    sizes = ("--recent-size=30", "--max-new-tokens=20")
    finished = subprocess.run(
        [sys.executable, SCRIPT, tiny_folder("llama"), "--prompts", prompts, *sizes],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert re.findall("^You: .*$", finished.stdout, re.MULTILINE) == [
        "You: Hello there",
        "You: Tell me about the sea, the land and the sky",
        "You: And so?",
    ]
    lines = re.findall(
        r"\[(\d+) tokens read, (\d+) written .*? holds (\d+), (\d+) are forgotten\]",
        finished.stdout,
    )
    turns = [tuple(map(int, line)) for line in lines]
    total = 0
    for read, written, held, forgotten in turns:
        total += read + written - 1  # the last one written is read with the next turn
        assert held == min(34, total)
        assert forgotten == total - held
    assert len(turns) == 3
    assert turns[-1][-1] > 34


class Template:
    """A tokenizer with a template that writes a beginning and a default system prompt."""

    chat_template = "…"

    def apply_chat_template(
        self, messages: Any, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert tokenize is False
        turns = "".join(f"<{m['role']}>{m['content']}<end>" for m in messages)
        return (
            "<begin><system>Be brief.<end>"
            + turns
            + ("<assistant>" if add_generation_prompt else "")
        )


def test_later_turns_have_no_beginning(script: ModuleType) -> None:
    first = script.turn_text(Template(), "Hi", is_first=True)
    assert first == "<begin><system>Be brief.<end><user>Hi<end><assistant>"
    assert script.turn_text(Template(), "Hi", is_first=False) == "<user>Hi<end><assistant>"
