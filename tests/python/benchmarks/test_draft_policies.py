"""`benchmarks/draft_policies.py`: the replay does what the engine does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import sinkstream

BENCH = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the program as a module."""
    monkeypatch.syspath_prepend(str(BENCH))
    import draft_policies

    return draft_policies


def test_a_replay_drafts_and_accepts_what_the_engine_did(
    bench: ModuleType, tiny_folder: Callable[[str], Path]
) -> None:
    with sinkstream.load(
        tiny_folder("llama"), window=60, threads=1, speculation=bench.RECORDED_DRAFTS
    ) as model:
        recorded = [
            bench.record_reply(model, [5, 9, 17], max_tokens=120, seed=seed, temperature=0.8)[0]
            for seed in (1, 2, 1)
        ]
    assert sum(reply["drafted"] for reply in recorded) > 100
    bench.check("tiny", recorded)
    recorded[1]["accepted"] += 1
    with pytest.raises(SystemExit, match="tiny: the engine has accepted"):
        bench.check("tiny", recorded)


def reply_of(ids: list[int]) -> dict[str, object]:
    return {"prompt": [1, 2, 3], "reply": ids, "max_tokens": len(ids)}


def test_what_repeats_itself_is_faster_and_what_does_not_is_not_slower(bench: ModuleType) -> None:
    repeated, new = reply_of(list(range(10, 30)) * 10), reply_of(list(range(10, 210)))
    for rows, least in ((lambda rows: 1 + (rows - 1) / 10, 3), (lambda rows: rows, 1)):
        assert bench.replay([repeated], bench.Policy(), rows).speed >= least
        assert bench.replay([new], bench.Policy(), rows).speed == 1


def test_a_small_pool_forgets(bench: ModuleType) -> None:
    text = reply_of(list(range(10, 1010)))
    pools = [bench.Policy(entries=1 << bits, takes_all=True) for bits in (6, 19)]
    small, large = (bench.replay([text, text], policy, lambda rows: 1) for policy in pools)
    assert sum(large.accepted) > 900 > 100 > sum(small.accepted)
