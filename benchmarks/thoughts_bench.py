"""What a restart costs a conversation whose thoughts are left out, by what its store has.

    python benchmarks/thoughts_bench.py --turns 24 --tokens 64

A tiny reasoning model, whose template leaves out the thoughts of earlier replies, talks to one
client. Then the store is opened anew, and the next message is sent. Of the store is left: all; all
but the forms without thoughts, which are then made again from text; all but the snapshots; neither.
Reported are the tokens that are read before the reply, how many of them are not new, the seconds
until the reply has begun, and whether the reply has the same bits as one that nothing had
interrupted.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import sinkstream
from sinkstream.conversations.conversations import Conversations
from sinkstream.conversations.open_store import Settings
from sinkstream.conversations.turns import TurnRequest
from tests.data import tiny
from tests.python.text.reasoning_templates import OPENED, THINK, write_folder

DELETED = {
    "all": (),
    "no forms": ("forms",),
    "no snapshots": ("snapshots",),
    "neither": ("forms", "snapshots"),
}


def options(model: sinkstream.Model, seed: int, tokens: int) -> Any:
    """Sample letters and the end of a thought only, so that each reply has both."""
    assert model.tokenizer is not None
    ids = {
        i
        for text in ("x", "q", "j", "</think>")
        for i in model.tokenizer.encode(text, add_special_tokens=False).ids
    }
    bias = dict.fromkeys(ids, 1e5)
    return {
        "max_tokens": tokens, "seed": seed, "ignore_eos": True, "temperature": 100.0, "top_p": 1.0,
        "min_p": 0.0, "logit_bias": bias,
    }  # fmt: skip


def say(
    conversations: Conversations,
    messages: list[Any],
    model: sinkstream.Model,
    seed: int,
    count: int,
) -> tuple[Any, float, Any]:
    """Send messages; return the result, the seconds until the reply had begun, and the facts."""
    began = time.monotonic()
    turn = conversations.begin(TurnRequest("", messages, options(model, seed, count)))
    first = next(turn.stream.events())
    seconds = time.monotonic() - began
    del first
    result = turn.stream.result()
    turn.end()
    return result, seconds, turn.facts


def measure(model: sinkstream.Model, folder: Path, turns: int, count: int) -> list[dict[str, Any]]:
    settings = Settings(maintenance_s=3600, saved_early=0)
    conversations = Conversations(model, folder / "store", settings)
    messages: list[Any] = []
    for number in range(turns):
        messages.append(
            {"role": "user", "content": f"Message {number} of {turns}, which is short."}
        )
        result, _, _ = say(conversations, messages, model, number, count)
        messages.append({"role": "assistant", "content": result.text})
    conversations.close()
    messages.append({"role": "user", "content": "And the last one?"})
    rows, expected = [], None
    for name, tables in DELETED.items():
        copy = folder / name.replace(" ", "-")
        shutil.copytree(folder / "store", copy)
        opened = Conversations(model, copy, settings)
        for table in tables:
            opened.fence.store.submit(
                lambda connection, table=table: connection.execute(f"DELETE FROM {table}")  # type: ignore[misc]
            ).result()
        result, seconds, facts = say(opened, messages, model, 99, count)
        expected = expected or result.token_ids
        rows.append(
            {
                "left": name,
                "prompt_tokens": facts.prompt_tokens,
                "read_tokens": facts.prompt_tokens - facts.cached_tokens,
                "replayed_tokens": facts.replayed_tokens,
                "evicted_tokens": result.stats.evicted_tokens,
                "seconds": round(seconds, 3),
                "same_bits": result.token_ids == expected,
            }
        )
        opened.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=64, help="of each reply")
    parser.add_argument("--window", type=int, default=508)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = tiny.write_folder(tiny.build("llama"), folder / "tiny")
        write_folder(base, folder / "model", OPENED, *THINK)
        with sinkstream.load(
            folder / "model", sinks=4, window=given.window, threads=1, max_sequences=3
        ) as model:
            rows = measure(model, folder, given.turns, given.tokens)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
