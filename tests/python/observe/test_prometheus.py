"""`prometheus_text`, read by Prometheus' own parser, agrees with `Model.stats`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

import sinkstream
from tests.python.waiting import wait_until_idle

PROMPT = [5, 9, 17]


def parsed(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    (sample,) = [
        sample
        for family in families.values()
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    return float(sample.value)


@pytest.fixture
def busy(model: sinkstream.Model) -> sinkstream.Model:
    model.generate(PROMPT, max_tokens=100, ignore_eos=True)
    with model.stream(PROMPT, ignore_eos=True):
        pass
    wait_until_idle(model)
    return model


def test_it_parses_and_agrees_with_stats(busy: sinkstream.Model) -> None:
    busy._native.finish_step()  # a step is recorded slightly after its tokens are delivered
    families, stats = parsed(sinkstream.prometheus_text(busy)), busy.stats()
    for name, key in (
        ("requests_total", "requests"),
        ("waiting_requests", "waiting"),
        ("running_requests", "running"),
        ("parked_requests", "parked"),
        ("queue_lag_tokens", "queue_lag"),
        ("steps_total", "steps"),
        ("prompt_tokens_total", "prompt_tokens"),
        ("generated_tokens_total", "generated_tokens"),
        ("evicted_tokens_total", "evicted_tokens"),
        ("shared_cache_pages", "shared_pages"),
        ("engine_dead", "is_dead"),
    ):
        assert value(families, f"sinkstream_{name}") == stats[key], name
    for reason, count in stats["finished"].items():
        assert value(families, "sinkstream_finished_requests_total", reason=reason) == count
    assert value(families, "sinkstream_cache_pages", state="used") == stats["used_pages"]
    assert value(families, "sinkstream_cache_pages", state="free") == stats["free_pages"]
    assert value(families, "sinkstream_cache_bytes") == busy.capacity.cache_bytes
    assert stats["evicted_tokens"] > 0


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("sinkstream_step_seconds", "step_times"),
        ("sinkstream_first_token_seconds", "first_token_times"),
    ],
)
def test_histograms_are_cumulative_and_complete(
    busy: sinkstream.Model, name: str, key: str
) -> None:
    busy._native.finish_step()
    family, times = parsed(sinkstream.prometheus_text(busy))[name], busy.stats()[key]
    assert family.type == "histogram"
    buckets = [
        (float(sample.labels["le"]), sample.value)
        for sample in family.samples
        if sample.name == f"{name}_bucket"
    ]
    assert buckets == sorted(buckets)
    assert [bound for bound, _ in buckets] == [*times["bounds_s"], math.inf]
    assert [count for _, count in buckets] == [*times["cumulative"], times["count"]]
    assert value({name: family}, f"{name}_count") == times["count"] > 0
    assert value({name: family}, f"{name}_sum") == times["sum_s"] > 0


def test_every_family_has_help_and_type_and_is_documented(model: sinkstream.Model) -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "monitoring.md"
    documented = page.read_text(encoding="utf-8")
    text = sinkstream.prometheus_text(model)
    types = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            types[name] = kind
            assert f"`{name}`" in documented
    for family in parsed(text).values():
        assert family.documentation
        suffix = "_total" if family.type == "counter" else ""
        assert types[family.name + suffix] == family.type


def test_several_models_share_families_and_keep_their_names(folder: Path) -> None:
    odd = 'a "quoted" C:\\name\nof two lines'
    options: dict[str, Any] = {"sinks": 4, "window": 60, "threads": 1}
    with sinkstream.load(folder, **options) as one, sinkstream.load(folder, **options) as other:
        other.generate(PROMPT, max_tokens=5, ignore_eos=True)
        text = sinkstream.prometheus_text({"one": one, odd: other})
    families = parsed(text)
    assert text.count("# TYPE sinkstream_requests_total ") == 1
    assert value(families, "sinkstream_requests_total", model="one") == 0
    assert value(families, "sinkstream_requests_total", model=odd) == 1


@pytest.mark.parametrize("models", [None, "model", {1: 2}, ["model"], MagicMock()])
def test_what_is_not_a_model_is_refused(models: Any) -> None:
    with pytest.raises(TypeError, match=r"prometheus_text: `models` must be a sinkstream\.Model"):
        sinkstream.prometheus_text(models)
