"""The command `llm`: a prompt, and the conversation that continues it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

MODELS = """
- model_id: served
  model_name: any
  api_base: {base_url}
  api_key_name: served
"""


def main(base_url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "extra-openai-models.yaml"
        models.write_text(MODELS.format(base_url=base_url), encoding="utf-8")
        (Path(folder) / "keys.json").write_text('{"served": "none"}', encoding="utf-8")
        first = ask(folder, "-m", "served", "-o", "max_tokens", "16", "Name a colour.")
        assert first
        assert ask(folder, "-c", "-o", "max_tokens", "16", "Another one.")
        assert ask(folder, "-m", "served", "--no-stream", "-o", "max_tokens", "8", "Say yes.")


def ask(folder: str, *arguments: str) -> str:
    command = [str(Path(sys.executable).parent / "llm"), *arguments]
    environment = {**os.environ, "LLM_USER_PATH": folder}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


if __name__ == "__main__":
    main(sys.argv[1])
