"""aider: questions about a file past the window, streamed and whole, and an edit of it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = '''def depth(place):
    """Return the depth of the sea at a place."""
    return {"Dover": 12, "Calais": 9}[place]
'''
QUESTIONS = "".join(f"/ask Question {n}: what does `depth` return, and why?\n" for n in range(8))


def main(base_url: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sea.py").write_text(SOURCE, encoding="utf-8")
        (folder / "questions").write_text(QUESTIONS + "/tokens\n", encoding="utf-8")
        settings = folder / ".aider.model.settings.yml"
        settings.write_text(SETTINGS, encoding="utf-8")
        replies = aider(folder, base_url, "--load", "questions", "--exit")
        assert replies.count("Tokens: ") >= 8, replies
        for form in ("whole", "diff"):
            for stream in ("--stream", "--no-stream"):
                edit = ("--edit-format", form, stream, "--message", "Add Brest, at 7.")
                assert "Tokens: " in aider(folder, base_url, *edit)


SETTINGS = """
- name: openai/any
  extra_params:
    max_tokens: 96
"""


def aider(folder: Path, base_url: str, *arguments: str) -> str:
    """Run aider on the file, and return what it writes."""
    command = [str(Path(sys.executable).parent / "aider"), "--model", "openai/any"]
    command += [
        "--no-git",
        "--yes-always",
        "--no-pretty",
        "--no-check-update",
        "--analytics-disable",
    ]
    command += ["--no-show-model-warnings", "--no-show-release-notes", "--map-tokens", "0"]
    command += [*arguments, "sea.py"]
    environment = {
        **os.environ,
        "OPENAI_API_BASE": base_url,
        "OPENAI_API_KEY": "none",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HOME": str(folder),
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, input="", capture_output=True, text=True, timeout=500
    )
    written = done.stdout + done.stderr
    assert done.returncode == 0, written
    assert "litellm." not in written, written
    return written


if __name__ == "__main__":
    main(sys.argv[1])
