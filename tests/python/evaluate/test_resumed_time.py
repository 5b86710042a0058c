"""A run reports the time of all its tokens, however often it was stopped."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import sinkstream
from sinkstream.evaluate import perplexity
from tests.python.evaluate.conftest import random_ids
from tests.python.evaluate.test_perplexity_resume import TOKENS, run_until_stopped


def test_a_resumed_run_keeps_the_time_that_was_spent(
    model: sinkstream.Model, tmp_path: Path
) -> None:
    ids, state = random_ids(TOKENS), tmp_path / "run.npz"
    run_until_stopped(model, ids, 15, chunk=11, block=50, resume=state)
    with np.load(state) as file:
        spent = file["block_seconds"]
    begun = int(np.flatnonzero(spent)[-1])  # the block in which it was stopped
    assert 0 < begun < len(spent) - 1
    result = perplexity(model, ids, chunk=11, block=50, resume=state)
    assert result.block_seconds[:begun] == tuple(spent[:begun].tolist())
    assert result.block_seconds[begun] >= spent[begun]
    assert all(seconds > 0 for seconds in result.block_seconds)
    assert perplexity(model, ids, block=50, resume=state).block_seconds == result.block_seconds
