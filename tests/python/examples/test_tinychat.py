"""examples/tinychat.py: a chat of several turns, as a user types it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "examples" / "tinychat.py"


def chat(typed: str, *options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, options)],
        input=typed,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_every_message_is_answered_and_timed(tiny_folder: Callable[[str], Path]) -> None:
    sizes = ("--max_seq_len", 64, "--n_predict", 30, "--seed", 1)
    done = chat(
        "Hello there\nAnd so?\nThe sea\n\nnot read\n", "--model_path", tiny_folder("llama"), *sizes
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = r"TTFT: \d+\.\d{3} s for (\d+) tokens; generation: \d+\.\d\d ms/token; (stop|length)\n"
    assert len(re.findall(lines, done.stdout)) == 3
    assert done.stdout.count("ASSISTANT: ") == 3
    assert done.stdout.endswith("USER: EXIT...\n")


def test_an_error_is_a_sentence(tmp_path: Path) -> None:
    done = chat("Hello\n", "--model_path", tmp_path / "absent.gguf")
    assert done.returncode == 1
    assert "absent.gguf" in done.stderr
    assert "Traceback" not in done.stderr
