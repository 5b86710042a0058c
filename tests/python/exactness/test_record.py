"""Results are those that were recorded: `record.py` says what can be, and how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.data import tiny
from tests.python.exactness.record import (
    FILE,
    LEAST_LEAD,
    TOKENS,
    greedy_ids,
    last_weight,
    reply_of_smollm2,
)
from tests.python.exactness.streams import LoadOnce

RECORD: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))


def test_smollm2_continues_a_prompt_as_recorded_over_several_windows(smollm2: Path) -> None:
    ids, lead = reply_of_smollm2(smollm2)
    assert len(ids) == TOKENS
    assert ids == RECORD["smollm2"]
    assert lead > LEAST_LEAD  # no kernel table may choose otherwise


def test_every_tiny_model_is_recorded() -> None:
    assert RECORD["tiny"].keys() == tiny.CONFIGS.keys()


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_a_tiny_model_prefers_the_recorded_tokens(loaded: LoadOnce, name: str) -> None:
    recorded = RECORD["tiny"][name]
    assert last_weight(name) == pytest.approx(recorded["last_weight"], rel=1e-6)
    pairs = list(zip(greedy_ids(loaded(name), name), recorded["greedy_ids"], strict=True))
    clear = [(found, kept) for found, kept in pairs if None not in (found, kept)]
    assert [found for found, _ in clear] == [kept for _, kept in clear]
    assert len(clear) > 0.8 * len(pairs)
