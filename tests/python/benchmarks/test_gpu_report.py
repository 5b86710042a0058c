"""`tests/gpu/bench/`: what a report says about figures and goals, and how it is assembled."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from sinkstream.checkpoint.spec import (
    Attention,
    Block,
    DecoderSpec,
    Dense,
    Norm,
    RopeSpec,
    usual_scale,
    weight_slots,
)
from tests.gpu.bench import notes, report
from tests.gpu.bench.flops import pairs, prefill_flops
from tests.gpu.bench.goals import GOALS
from tests.gpu.bench.sizes import FULL, GPU, SHORT, Rate

pytestmark = pytest.mark.full

LARGE = "llama-3.1-8b BF16"


Report = dict[str, Any]


def bench(figures: Report, gpu: str = "NVIDIA H100 80GB HBM3") -> Report:
    return {
        "commit": "abc",
        "is_rehearsal": False,
        "figures": {"gpu": {"gpu": {"name": gpu}}, **figures},
        "left_out": {},
    }


def rate(tokens_per_s: float, streams: int = 1) -> Report:
    return {
        "tokens_per_s": tokens_per_s,
        "steps_per_s": tokens_per_s / streams,
        "bytes_per_step": 16e9,
        "live_tokens": 256.0,
        "prompts_tokens_per_s": 1000.0,
    }


def verdict(found: Report, goal: str) -> dict[str, str]:
    (one,) = [each for each in report.verdicts(found) if each["goal"] == goal]
    return one


def test_a_share_is_of_whichever_moved_more_bytes() -> None:
    found = bench({LARGE: {"rate 1 at 256": rate(180)}})
    found["figures"]["gpu"] |= {"copy": {"bytes_per_s": 3.0e12}, "read": {"bytes_per_s": 3.2e12}}
    assert report.numbers(found)[f"{LARGE}: rate 1 at 256: share"] == pytest.approx(0.9)
    goal = "8B bf16, one stream, of bandwidth"
    assert verdict(found, goal) == {
        "goal": goal,
        "wanted": "≥ 90 %",
        "found": "90 %",
        "verdict": "reached",
    }
    found["figures"]["gpu"]["copy"]["bytes_per_s"] = 3.3e12
    assert verdict(found, goal)["verdict"] == "missed"


def test_without_a_ceiling_there_is_no_share() -> None:
    found = bench({LARGE: {"rate 1 at 256": rate(180)}})
    assert f"{LARGE}: rate 1 at 256: share" not in report.numbers(found)


def test_growth_is_relative_to_as_many_single_streams() -> None:
    figures = {"rate 1 at 256": rate(100), "rate 16 at 256": rate(1200, 16)}
    found = bench({f"{LARGE} batches": figures | {"rate 16 at 1024": rate(1200, 16)}})
    numbers = report.numbers(found)
    assert numbers[f"{LARGE} batches: rate 16 at 256: growth"] == pytest.approx(0.75)
    assert f"{LARGE} batches: rate 16 at 1024: growth" not in numbers  # nothing to compare it with
    assert verdict(found, "8B bf16, 16 streams, of 16 times one")["verdict"] == "missed"


def test_ratios_are_of_the_same_live_tokens() -> None:
    peer = {"recomputed at 4096": {"tokens_per_s": 5.0, "ms_per_token": 200.0}}
    ours = {"rate 1 at 256": rate(180), "rate 1 at 4096": rate(150)}
    found = bench({LARGE: ours, "transformers llama-3.1-8b": peer})
    numbers = report.numbers(found)
    assert numbers["transformers llama-3.1-8b: recomputed at 4096: ratio"] == pytest.approx(30)
    assert verdict(found, "8B bf16, over a window recomputed")["verdict"] == "reached"


def test_a_prompt_is_relative_to_a_product() -> None:
    found = bench({LARGE: {"prefill 4096": {"tokens_per_s": 2e4, "flops_per_s": 300e12}}})
    found["figures"]["gpu"]["product"] = {"flops_per_s": 750e12}
    numbers = report.numbers(found)
    assert numbers[f"{LARGE}: prefill 4096: share"] == pytest.approx(0.4)
    assert numbers["gpu: product: share of nominal"] == pytest.approx(750 / 989)


def test_a_variant_is_relative_to_the_model_itself() -> None:
    figures = {
        "qwen3-0.6b BF16": {"rate 1 at 256": rate(200)},
        "qwen3-0.6b BF16 window 131072": {"rate 1 at 256": rate(180)},
    }
    goal = verdict(bench(figures), "0.6B bf16, window of 131,072, of one of 4,096")
    assert (goal["found"], goal["verdict"]) == ("90 %", "missed")


def test_seventeen_streams_are_relative_to_sixteen_of_the_same_lengths() -> None:
    found = bench(
        {
            f"{LARGE} batches": {
                "rate 16 at 256": rate(1600, 16),
                "rate 17 at 256": rate(1500, 17),
                "rate 16 at 256 to 4096": rate(1000, 16),
                "rate 17 at 256 to 4096": rate(1100, 17),
            }
        }
    )
    assert verdict(found, "8B bf16, 17 streams over 16")["found"] == "0.938 ×"
    uneven = verdict(found, "8B bf16, 17 streams of unequal length over 16")
    assert (uneven["found"], uneven["verdict"]) == ("1.1 ×", "reached")


def test_a_prompt_next_to_a_stream_is_relative_to_one_alone() -> None:
    alone = {"tokens_per_s": 2e4, "flops_per_s": 300e12}
    with_one = {"tokens_per_s": 1.5e4, "flops_per_s": 225e12, "decoded": [70, 71, 72]}
    found = bench({LARGE: {"prefill 4096": alone, "prefill 4096 next to 1": with_one}})
    assert report.numbers(found)[f"{LARGE}: prefill 4096 next to 1: of one alone"] == 0.75
    assert "[70, 71, 72] tokens decoded meanwhile" in "\n".join(report.lines(found))


def test_gaps_and_sampling_are_relative_to_torchs_graphs() -> None:
    trace = {"gap_p50_us": 6.0, "sampling_p50_us": 20.0}
    found = bench({LARGE: {"trace greedy": trace}})
    found["figures"]["gpu"] |= {"replay": {"us": 2.5}, "argmax": {"us": 8.0}}
    numbers = report.numbers(found)
    assert numbers[f"{LARGE}: trace greedy: gap of replay"] == pytest.approx(2.4)
    assert numbers[f"{LARGE}: trace greedy: sampling of argmax"] == pytest.approx(2.5)
    assert verdict(found, "8B bf16, gap between graphs, of a replay")["verdict"] == "missed"


def test_no_goal_depends_on_which_gpu_it_is() -> None:
    assert {goal.unit for goal in GOALS} == {"%", "×"}


def test_unequal_lengths_are_spread_evenly() -> None:
    assert Rate(3, 4096, shortest=256).lives == [256, 2176, 4096]
    assert Rate(2, 256).lives == [256, 256]


def test_every_figure_belongs_to_one_call() -> None:
    for jobs in (FULL, SHORT):
        assert {job.call for job in jobs if job.subject != GPU} == {2, 3}
        for job in jobs:
            kept = [call for call in (2, 3) if job.in_call(call).figures]
            assert kept == ([2, 3] if job.subject == GPU else [job.call])
            assert job.in_call(0) == job


def test_what_is_not_measured_says_why() -> None:
    goal = "8B bf16, one stream, of bandwidth"
    found = bench({})
    assert verdict(found, goal)["verdict"] == "not measured"
    found["left_out"][f"{LARGE}: rate 1 at 256"] = "no time left"
    assert verdict(found, goal)["verdict"] == "not measured: no time left"
    found["figures"][LARGE] = {"rate 1 at 256": {"error": "its process ended with -11"}}
    assert verdict(found, goal)["verdict"] == "not measured: its process ended with -11"
    assert "its process ended with -11" in "\n".join(report.lines(found))


def test_a_rehearsal_reaches_and_misses_nothing() -> None:
    found = bench({LARGE: {"rate 64 at 4096": rate(9999, 64)}}) | {"is_rehearsal": True}
    assert {each["verdict"] for each in report.verdicts(found)} == {"not measured"}


def test_every_goal_is_about_a_figure_that_is_measured() -> None:
    names = {f"{job.subject}: {figure.name}" for job in FULL for figure in job.figures}
    assert {goal.number.rpartition(": ")[0] for goal in GOALS} <= names


def test_figures_are_told_apart_by_their_names() -> None:
    for jobs in (FULL, SHORT):
        names = [f"{job.subject}: {figure.name}" for job in jobs for figure in job.figures]
        assert len(names) == len(set(names))


def test_words_choose_figures_and_the_gpus_stay() -> None:
    chosen = [job.only("8b BF16 batches: rate 64, recomputed") for job in FULL]
    names = {f"{job.subject}: {figure.name}" for job in chosen for figure in job.figures}
    assert chosen[0] == FULL[0]
    assert {name for name in names if not name.startswith(GPU)} == {
        f"{LARGE} batches: rate 64 at 1024",
        f"{LARGE} batches: rate 64 at 4096",
        "transformers qwen3-0.6b: recomputed at 4096",
        "transformers llama-3.1-8b: recomputed at 4096",
    }


def test_a_figure_in_progress_when_its_process_ends_has_an_error(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    job = notes.Notes(path, "a model")
    job.add("begun", "one")
    job.add("found", "one", {"tokens_per_s": 3.0})
    job.add("begun", "two")
    job.add("left out", "two", "there is no GPU")
    job.add("begun", "three")
    with path.open("a") as file:
        file.write('{"kind": "found", "fig')  # it was killed here
    found: Report = {"figures": {}, "left_out": {}}
    notes.add_to_report(found, "a model", notes.read(path), "")
    assert found["figures"]["a model"] == {"one": {"tokens_per_s": 3.0}}
    notes.add_to_report(found, "a model", notes.read(path), "it was killed after 9 s")
    assert found["figures"]["a model"]["three"] == {"error": "it was killed after 9 s"}
    assert found["left_out"] == {"a model: two": "there is no GPU"}
    json.dumps(found)


def test_a_process_that_ends_badly_between_figures_is_an_error_too(tmp_path: Path) -> None:
    found: Report = {"figures": {}, "left_out": {}}
    notes.add_to_report(found, "a model", notes.read(tmp_path / "none"), "its process ended with 1")
    assert found["figures"] == {"a model": {"process": {"error": "its process ended with 1"}}}


ROPE = RopeSpec(tuple(10_000.0 ** (-i / 16) for i in range(16)), "half")
NORM = Norm("rms", 1e-6)
SPEC = DecoderSpec.of_layers(
    [Block(Attention(6, 2, 32, ROPE, usual_scale(32)), Dense(160), NORM)] * 3,
    family="llama",
    vocab_size=1000,
    hidden_size=96,
    trained_length=512,
    final_norm=NORM,
)


@pytest.mark.parametrize(("tokens", "capacity"), [(1, 8), (8, 8), (9, 8), (50, 8)])
def test_operations_of_a_prompt_are_those_of_every_weight_and_pair(
    tokens: int, capacity: int
) -> None:
    weights = sum(
        s.rows * s.cols for s in weight_slots(SPEC) if s.cols > 1 and s.name != "embedding"
    )
    seen = [min(t + 1, capacity) for t in range(tokens)]
    assert pairs(tokens, capacity) == sum(seen)
    scores_and_values = sum(
        2 * SPEC.head_dim * keys
        for keys, _, _ in itertools.product(seen, range(SPEC.heads), range(SPEC.layers))
    )
    embedding = SPEC.vocab_size * SPEC.hidden_size
    in_layers = weights - (0 if SPEC.tie_embeddings else embedding)
    expected = 2 * (tokens * in_layers + scores_and_values + embedding)
    assert prefill_flops(SPEC, tokens, capacity) == expected
