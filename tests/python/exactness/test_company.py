"""A request gives the same bits alone and in any company; `make soak` compares more of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sinkstream
from tests.data import tiny
from tests.python.exactness.company import SETTINGS, compare_in_company, draw_asks, open_tiny


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_request_gives_the_same_bits_in_company_that_comes_and_goes(
    setting: str, tmp_path: Path
) -> None:
    draw = np.random.default_rng(1)
    with open_tiny(setting, tmp_path, most=32, threads=1) as model:
        asks = draw_asks(model.spec.vocab_size, 30, draw, longest=300)
        tally = compare_in_company(model, asks, 100, draw)
    assert not tally.different
    assert tally.cancelled > 5
    assert tally.tokens_per_step > 2, "there was no company"


def test_the_real_model_gives_the_same_bits_in_company(smollm2: Path) -> None:
    draw = np.random.default_rng(2)
    with sinkstream.load(smollm2, window=60, max_sequences=6, threads=1) as model:
        asks = draw_asks(model.spec.vocab_size, 6, draw, longest=90)
        tally = compare_in_company(model, asks, 12, draw, most=6)
    assert not tally.different


class OtherwiseInCompany:
    """A model that rounds keys and values otherwise while others are running."""

    def __init__(self, alone: sinkstream.Model, in_company: sinkstream.Model) -> None:
        self._alone = alone
        self._in_company = in_company

    @property
    def spec(self) -> Any:
        return self._alone.spec

    def stats(self) -> dict[str, Any]:
        one, other = self._alone.stats(), self._in_company.stats()
        names = ("running", "waiting", "steps", "generated_tokens", "evicted_tokens")
        return {name: one[name] + other[name] for name in names}

    def stream(self, prompt: Any, **options: Any) -> sinkstream.Stream:
        is_alone = self.stats()["running"] + self.stats()["waiting"] == 0
        return (self._alone if is_alone else self._in_company).stream(prompt, **options)


def test_a_model_that_rounds_otherwise_in_company_is_noticed(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    path = tiny.write_folder(tiny.build("llama"), tmp_path / "llama")
    options: dict[str, Any] = {"window": 60, "max_sequences": 8, "threads": 1, "dtype": "float32"}
    with (
        sinkstream.load(path, kv_dtype="float32", **options) as alone,
        sinkstream.load(path, kv_dtype="float16", **options) as in_company,
    ):
        model = OtherwiseInCompany(alone, in_company)
        asks = draw_asks(model.spec.vocab_size, 20, draw, longest=300)
        tally = compare_in_company(model, asks, 60, draw, most=8)
    assert tally.different
