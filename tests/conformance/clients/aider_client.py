"""aider: questions about a file past the window, streamed and whole, and an edit of it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = "def depth(place):\n    return {\n"
SOURCE += "".join(f'        "Harbour {n}": {n % 40},\n' for n in range(80)) + "    }[place]\n"
QUESTIONS = "".join(f"/ask What is the depth at harbour {n}?\n" for n in range(6))
SETTINGS = """
- name: openai/any
  extra_params:
    max_tokens: 96
"""


def main(base_url: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sea.py").write_text(SOURCE, encoding="utf-8")
        settings = folder / ".aider.model.settings.yml"
        settings.write_text(SETTINGS, encoding="utf-8")
        assert aider(folder, base_url, given=QUESTIONS) >= 6
        for stream in ("--stream", "--no-stream"):
            assert aider(folder, base_url, stream, "--message", "Add Brest, at 7.") >= 1


def aider(folder: Path, base_url: str, *arguments: str, given: str = "") -> int:
    """Run aider on the file, and return how many replies it had."""
    log = folder / "replies"
    log.unlink(missing_ok=True)
    command = [str(Path(sys.executable).parent / "aider"), "--model", "openai/any"]
    command += ["--no-git", "--yes-always", "--no-pretty", "--no-fancy-input", "--map-tokens", "0"]
    command += ["--no-check-update", "--no-show-release-notes", "--no-show-model-warnings"]
    command += ["--analytics-disable", "--llm-history-file", str(log)]
    command += [*arguments, "sea.py"]
    environment = {
        **os.environ,
        "OPENAI_API_BASE": base_url,
        "OPENAI_API_KEY": "none",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HOME": str(folder),
    }
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        input=given,
        capture_output=True,
        text=True,
        timeout=500,
    )
    written = done.stdout + done.stderr
    assert done.returncode == 0, written
    assert "litellm." not in written, written
    return log.read_text(encoding="utf-8").count("LLM RESPONSE")


if __name__ == "__main__":
    main(sys.argv[1])
