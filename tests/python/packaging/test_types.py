"""What mypy says about a program that uses the API: nothing if it is right, a line for a typo."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

ROOT = Path(__file__).parents[3]

# Each line that ends with "# wrong" must have an error, and no other line may have one.
PROGRAM = """
from collections.abc import Iterator, Sequence
from typing import Unpack, assert_type

import numpy as np
import torch

from sinkstream import (
    Event, FinishReason, Message, Model, Prompt, Replies, Result, Sampling, Session, Stream,
    StreamOptions, load,
)

model: Model = load()
ids = [5, 9]
message: Message = {"role": "user", "content": "the"}
prompts: list[Prompt] = ["the", ids, np.array(ids), torch.tensor(ids), [message]]

assert_type(model.generate("the", max_tokens=3), Result)
assert_type(model.generate(ids, top_k=3, sinks=8), Result)
assert_type(model.generate([message]), Result)
assert_type(model.generate(["a", "b"], seed=1), list[Result])
assert_type(model.generate([ids, ids]), list[Result])
assert_type(model.generate(prompts), list[Result])
assert_type(model.generate(np.array([ids])), Result | list[Result])
assert_type(model.stream(torch.tensor(ids)), Stream)
assert_type(model.generate_many(iter(prompts), max_tokens=3), Replies)
assert_type(model.generate_many(torch.tensor([ids])), Replies)
for index, reply in model.generate_many(prompts):
    assert_type(reply, Result | Exception)

model.generate("the", temprature=1)  # wrong
model.generate(["the"], temprature=1)  # wrong
model.generate("the", temperature="hot")  # wrong
model.generate_many(["the"], temprature=1)  # wrong
model.generate_many(5)  # wrong
model.stream("the", temprature=1)  # wrong
model.stream({"role": "user"})  # wrong
model.session().stream("the", sinks=3)  # wrong


def reason(event: Event) -> FinishReason | None:
    return event.reason if hasattr(event, "reason") else None


async def ask(session: Session, text: str, **options: Unpack[StreamOptions]) -> str:
    with await session.afork() as fork:
        assert_type((await fork.stream(text, **options).aresult()).alternatives,
                    list[tuple[tuple[int, float], ...]])
    await session.asave("x.session")
    assert_type(await model.aload_session("x.session"), Session)
    return Sampling(temperature=0.5).__class__.__name__
"""


def test_mypy_accepts_a_program_and_finds_its_typos(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", ROOT / "pyproject.toml", file],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    found = {int(line) for line in re.findall(r"program\.py:(\d+): error", done.stdout)}
    lines = PROGRAM.splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    assert found == wrong, done.stdout + done.stderr
