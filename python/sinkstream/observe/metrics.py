"""`prometheus_text()`: `Model.stats` in Prometheus' text format 0.0.4."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sinkstream import _build
from sinkstream.observe.open_models import OpenModel, is_model

Labels = dict[str, str]
Sample = tuple[str, Labels, float]  # suffix of the family's name, labels, value
Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class _Family:
    """One metric: its name, and how to take its samples from a model's stats."""

    name: str
    kind: Kind
    help: str
    samples: Callable[[OpenModel, Mapping[str, Any]], Iterator[Sample]]


def prometheus_text(models: OpenModel | Mapping[str, OpenModel]) -> str:
    """Return the counters, gauges and histograms of one or more models, for Prometheus to scrape.

    Serve it as `text/plain; version=0.0.4`. Base units are seconds and bytes; all counters of a
    model are taken at the same moment.

    Args:
        models: A model, or several by name; then each sample has the label `model`.

    Raises:
        TypeError: `models` is neither a model nor a mapping of names to models.
        ForkError: A model was loaded before this process was forked.

    Example:
        >>> print(sinkstream.prometheus_text(model))
    """
    named = _as_named(models)
    taken = [(labels, model, model.stats()) for labels, model in named]
    return "".join(
        family_text(
            family.name,
            family.kind,
            family.help,
            (
                (suffix, {**labels, **own}, value)
                for labels, model, stats in taken
                for suffix, own, value in family.samples(model, stats)
            ),
        )
        for family in _FAMILIES
    )


def family_text(name: str, kind: Kind, text: str, samples: Iterable[Sample]) -> str:
    """Return one metric in Prometheus' text format, with its help and type."""
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    lines += [f"{name}{suffix}{_as_text(labels)} {value!r}" for suffix, labels, value in samples]
    return "\n".join(lines) + "\n"


def histogram_samples(times: Mapping[str, Any]) -> Iterator[Sample]:
    """Yield the samples of a histogram with the keys that those of `Model.stats` have."""
    for bound, count in zip(times["bounds_s"], times["cumulative"], strict=True):
        yield "_bucket", {"le": f"{bound:g}"}, count
    yield "_bucket", {"le": "+Inf"}, times["count"]
    yield "_sum", {}, times["sum_s"]
    yield "_count", {}, times["count"]


def _as_named(models: OpenModel | Mapping[str, OpenModel]) -> list[tuple[Labels, OpenModel]]:
    if is_model(models):
        return [({}, models)]
    if not isinstance(models, Mapping) or not all(
        isinstance(name, str) and is_model(model) for name, model in models.items()
    ):
        raise TypeError(
            "prometheus_text: `models` must be a sinkstream.Model or map names to models, but is "
            f"of type {type(models).__name__}."
        )
    return [({"model": name}, model) for name, model in models.items()]


def _as_text(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _one(key: str) -> Callable[[OpenModel, Mapping[str, Any]], Iterator[Sample]]:
    def samples(model: OpenModel, stats: Mapping[str, Any]) -> Iterator[Sample]:
        yield "", {}, int(stats[key])

    return samples


def _capacity(field: str) -> Callable[[OpenModel, Mapping[str, Any]], Iterator[Sample]]:
    def samples(model: OpenModel, stats: Mapping[str, Any]) -> Iterator[Sample]:
        yield "", {}, getattr(model.capacity, field)

    return samples


def _histogram(key: str) -> Callable[[OpenModel, Mapping[str, Any]], Iterator[Sample]]:
    def samples(model: OpenModel, stats: Mapping[str, Any]) -> Iterator[Sample]:
        yield from histogram_samples(stats[key])

    return samples


def _finished(model: OpenModel, stats: Mapping[str, Any]) -> Iterator[Sample]:
    for reason, count in stats["finished"].items():
        yield "", {"reason": reason}, count


def _pages(model: OpenModel, stats: Mapping[str, Any]) -> Iterator[Sample]:
    yield "", {"state": "used"}, stats["used_pages"]
    yield "", {"state": "free"}, stats["free_pages"]


def _spare_cache(model: OpenModel, stats: Mapping[str, Any]) -> Iterator[Sample]:
    yield "", {}, model.spare_cache_bytes


def _info(model: OpenModel, stats: Mapping[str, Any]) -> Iterator[Sample]:
    runtime = model.runtime
    names = ("kernels", "dtype", "kv_dtype")
    own = {"version": _build.version(), "family": model.spec.family}
    yield "", {**own, **{name: str(runtime[name]) for name in names}}, 1


_FAMILIES = (
    _Family("sinkstream_info", "gauge", "Version and model as labels; always 1.", _info),
    _Family(
        "sinkstream_engine_dead",
        "gauge",
        "1 after the generation thread has failed, otherwise 0.",
        _one("is_dead"),
    ),
    _Family(
        "sinkstream_requests_total",
        "counter",
        "Requests that the engine has accepted.",
        _one("requests"),
    ),
    _Family(
        "sinkstream_finished_requests_total",
        "counter",
        "Finished requests, by finish reason.",
        _finished,
    ),
    _Family(
        "sinkstream_waiting_requests", "gauge", "Requests waiting for memory.", _one("waiting")
    ),
    _Family(
        "sinkstream_running_requests",
        "gauge",
        "Requests that hold memory, including parked ones.",
        _one("running"),
    ),
    _Family(
        "sinkstream_parked_requests",
        "gauge",
        "Running requests waiting for their consumers.",
        _one("parked"),
    ),
    _Family(
        "sinkstream_queue_lag_tokens",
        "gauge",
        "Tokens that are ready but not yet read, over all streams.",
        _one("queue_lag"),
    ),
    _Family("sinkstream_steps_total", "counter", "Engine steps.", _one("steps")),
    _Family(
        "sinkstream_prompt_tokens_total",
        "counter",
        "Prompt tokens processed.",
        _one("prompt_tokens"),
    ),
    _Family(
        "sinkstream_generated_tokens_total",
        "counter",
        "Tokens generated.",
        _one("generated_tokens"),
    ),
    _Family(
        "sinkstream_evicted_tokens_total",
        "counter",
        "Tokens evicted from the cache because the window moved on.",
        _one("evicted_tokens"),
    ),
    _Family(
        "sinkstream_draft_tokens_total",
        "counter",
        "Guessed tokens that steps have verified.",
        _one("draft_tokens"),
    ),
    _Family(
        "sinkstream_accepted_tokens_total",
        "counter",
        "Guessed tokens that were right: they had no step of their own.",
        _one("accepted_tokens"),
    ),
    _Family("sinkstream_cache_pages", "gauge", "Cache pages, by state.", _pages),
    _Family(
        "sinkstream_shared_cache_pages",
        "gauge",
        "Used pages with more than one owner.",
        _one("shared_pages"),
    ),
    _Family(
        "sinkstream_cache_bytes",
        "gauge",
        "Memory reserved for the cache.",
        _capacity("cache_bytes"),
    ),
    _Family(
        "sinkstream_spare_cache_bytes",
        "gauge",
        "GPU memory of freed caches, kept for the next cache.",
        _spare_cache,
    ),
    _Family(
        "sinkstream_weight_bytes", "gauge", "Memory of the weights.", _capacity("weight_bytes")
    ),
    _Family(
        "sinkstream_scratch_bytes",
        "gauge",
        "Memory of one step's activations.",
        _capacity("scratch_bytes"),
    ),
    _Family("sinkstream_step_seconds", "histogram", "Duration of steps.", _histogram("step_times")),
    _Family(
        "sinkstream_first_token_seconds",
        "histogram",
        "Time from a request to its first token.",
        _histogram("first_token_times"),
    ),
)
