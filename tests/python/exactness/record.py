"""Greedy tokens of fixed inputs, and the file that records them.

Bits differ between processors, kernel tables and releases (docs/versioning.md), so none are
recorded. A greedy token does not differ if its logit exceeds all others by much more than rounding:
the file has only such tokens. `python -m tests.python.exactness.record` writes it.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sinkstream
from tests.data import tiny

FILE = Path(__file__).with_name("record.json")

PROMPT = "In 1492, Columbus sailed from Spain with three ships"
TOKENS = 300
SETTINGS: dict[str, Any] = {
    "dtype": "float32", "kv_dtype": "float32", "sinks": 4, "window": 60, "threads": 1,
    "max_sequences": 1,
}  # fmt: skip
# In nats, with logits of about 20: 100 times the rounding of float32 in `streams.TOLERANCE`.
LEAST_LEAD = 0.02

TINY_TOKENS, TINY_SINKS, TINY_WINDOW = 48, 4, 12
# Relative to the row's largest logit: 100 times `streams.TOLERANCE`.
LEAST_TINY_LEAD = 1e-3


def reply_of_smollm2(path: str | Path = "smollm2") -> tuple[list[int], float]:
    """Return the greedy ids after PROMPT, and the least lead of one over the second best."""
    with (
        sinkstream.load(path, **SETTINGS) as model,
        model.stream(
            PROMPT, max_tokens=TOKENS, temperature=0, logprobs=2, ignore_eos=True
        ) as stream,
    ):
        tokens = [event for event in stream.events() if isinstance(event, sinkstream.Token)]
    leads = [best[1] - second[1] for best, second in (token.alternatives for token in tokens)]
    return [token.id for token in tokens], min(leads)


def greedy_ids(model: sinkstream.Model, name: str) -> list[int | None]:
    """Return the most probable id after each of TINY_TOKENS fixed ids; None if another is close."""
    vocab = tiny.CONFIGS[name][0]["vocab_size"]
    ids = torch.tensor([[(7 * i * i + 3 * i) % vocab for i in range(TINY_TOKENS)]])
    cache = model.new_cache(sinks=TINY_SINKS, window=TINY_WINDOW)
    logits = model.forward(ids, cache)[0]
    best = logits.topk(2, dim=-1)
    leads = (best.values[:, 0] - best.values[:, 1]) / logits.abs().max(dim=-1).values
    return [
        int(token) if lead > LEAST_TINY_LEAD else None
        for token, lead in zip(best.indices[:, 0], leads, strict=True)
    ]


def last_weight(name: str) -> float:
    """Return the number that was drawn last for a tiny model: NumPy may change what it draws."""
    weights = list(tiny.build(name).weights.values())
    return float(np.ravel(weights[-1])[-1])


def main() -> None:
    """Write the file."""
    ids, lead = reply_of_smollm2()
    if lead < LEAST_LEAD:
        raise ValueError(f"a token leads by only {lead}: choose another prompt.")
    tiny_models = {}
    with tempfile.TemporaryDirectory() as root:
        for name in tiny.CONFIGS:
            folder = tiny.write_folder(tiny.build(name), Path(root) / name)
            with sinkstream.load(folder, **SETTINGS) as model:
                found = {"last_weight": last_weight(name), "greedy_ids": greedy_ids(model, name)}
            tiny_models[name] = found
    text = json.dumps({"smollm2": ids, "tiny": tiny_models})
    text = text.replace('"tiny": {', '\n"tiny": {\n').replace("}, ", "},\n")  # a line for each
    FILE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
