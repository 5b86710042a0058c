"""The command `llm`: a conversation past the window, schemas, and tools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MODELS = """
- model_id: served
  model_name: any
  api_base: {base_url}
  api_key_name: served
  supports_schema: true
  supports_tools: true
"""
TOOL = '''
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b
'''
LONG = "The sea was calm, and the boat lay still. " * 20
"""More than a tenth of the window."""


def main(base_url: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        models = Path(folder) / "extra-openai-models.yaml"
        models.write_text(MODELS.format(base_url=base_url), encoding="utf-8")
        (Path(folder) / "keys.json").write_text('{"served": "none"}', encoding="utf-8")
        check_conversation(folder)
        check_schemas(folder)
        check_tools(folder)


def check_conversation(folder: str) -> None:
    system = ("-s", "You are a sailor.")
    assert ask(folder, "-m", "served", *system, "-o", "max_tokens", "16", "Name a colour.")
    for _ in range(10):
        assert ask(folder, "-c", "-o", "max_tokens", "16", "Go on.", given=LONG)
    assert ask(folder, "-m", "served", "--no-stream", "-o", "max_tokens", "8", "Say yes.")


def check_schemas(folder: str) -> None:
    for options in ((), ("--no-stream",)):
        arguments = ("-m", "served", "-o", "max_tokens", "200", *options)
        dog = json.loads(ask(folder, *arguments, "--schema", "name, age int", "Invent a dog."))
        assert isinstance(dog["name"], str)
        assert isinstance(dog["age"], int)
    several = json.dumps(
        {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3}
    )
    schema = json.dumps({"type": "object", "properties": {"names": json.loads(several)}})
    assert json.loads(ask(folder, *arguments, "--schema", schema, "Name three dogs.")) is not None


def check_tools(folder: str) -> None:
    """The model decides whether it calls; a call is run, and its result is sent back."""
    for options in ((), ("--no-stream",)):
        arguments = ("-m", "served", "-o", "max_tokens", "64", *options, "--functions", TOOL)
        ask(folder, *arguments, "-T", "llm_time", "What is 12 times 34? Use the tool.")
        logged = last_logged(folder)
        assert {tool["name"] for tool in logged["tools"]} == {"multiply", "llm_time"}
        assert logged["response"] or logged["tool_calls"]
        ask(folder, "-c", "-o", "max_tokens", "16", "Thank you.")


def last_logged(folder: str) -> Any:
    """Return what `llm` keeps of the first response that the last command asked for."""
    return json.loads(ask(folder, "logs", "list", "--json", "-n", "1"))[0]


def ask(folder: str, *arguments: str, given: str | None = None) -> str:
    command = [str(Path(sys.executable).parent / "llm"), *arguments]
    environment = {**os.environ, "LLM_USER_PATH": folder}
    done = subprocess.run(
        command, env=environment, input=given, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


if __name__ == "__main__":
    main(sys.argv[1])
