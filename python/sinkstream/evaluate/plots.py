"""The plots of the StreamingLLM paper: perplexity by position, accuracy by distance, and cost."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

from sinkstream.errors import InvalidArgument
from sinkstream.evaluate.pictures import (
    check_picture,
    legend,
    log_ticks,
    mark,
    new_figure,
    shifted,
    span_a_decade,
    style_of,
    thousands,
    write_figure,
)
from sinkstream.evaluate.recall_result import RecallResult
from sinkstream.evaluate.result import (
    Z95,
    Difference,
    PerplexityResult,
    level_of,
    perplexity_of,
)
from sinkstream.request.checks import as_choice


def plot_perplexity(
    results: Sequence[PerplexityResult],
    path: str | os.PathLike[str],
    *,
    mean: Literal["block", "running"] = "block",
    differences: Sequence[Difference] = (),
    title: str | None = None,
) -> None:
    """Plot perplexity against the position in the text, one line per result.

    The trained length and the capacities are marked. A sampled result has too few tokens per block
    for a curve; it is one horizontal line with its 95 % interval.

    Args:
        results: At least one.
        path: A file name that ends with .png or .svg.
        mean: "block" plots each block's mean; "running" the mean of everything so far.
        differences: From `compare`, against sampled results. A sampled result is then drawn at
            the other result's mean minus their paired difference, because its own mean says more
            about which tokens were sampled than about the method. The legend has that number.
        title: If None, the model's name.

    Raises:
        InvalidArgument: There is nothing to draw, or the path is wrong.
        SinkstreamError: matplotlib is not installed.
    """
    as_choice("plot", "mean", mean, ("block", "running"))
    _check(results, path)
    figure = new_figure()
    axes = figure.subplots()
    axes.set_yscale("log")
    for number, result in enumerate(results):
        if result.settings["sample"] is None:
            axes.plot(*_points(result, mean), **_look(result, style_of(number)))
    axes.set_xlim(0, max(result.settings["text_tokens"] for result in results))
    for number, result in enumerate(results):
        if result.settings["sample"] is not None:
            _draw_sampled(axes, result, style_of(number), level_of(result, results, differences))
    thousands(axes.xaxis)
    mark(axes, {result.capacity: "capacity" for result in results if result.method != "dense"})
    mark(axes, {int(result.settings["trained_length"]): "trained length" for result in results})
    axes.set_xlabel("position in the text (tokens)")
    axes.set_ylabel(f"perplexity ({mean} mean)")
    axes.set_title(title or str(results[0].settings["model"]))
    log_ticks(axes)
    axes.grid(alpha=0.25)
    legend(figure, axes)
    write_figure(figure, path)


def plot_recall(
    results: Sequence[RecallResult], path: str | os.PathLike[str], *, title: str | None = None
) -> None:
    """Plot accuracy against the distance to the answer, with 95 % intervals, one panel per task.

    Args:
        results: At least one, from `stream_eval` or `needle`.
        path: A file name that ends with .png or .svg.
        title: If None, the model's name.

    Raises:
        InvalidArgument: There is nothing to draw, or the path is wrong.
        SinkstreamError: matplotlib is not installed.
    """
    _check(results, path)
    tasks = list(dict.fromkeys(result.task for result in results))
    labels = list(dict.fromkeys(map(_view, results)))
    figure = new_figure(width=8.0 if len(tasks) == 1 else 11.0)
    panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for axes, task in zip(panels, tasks, strict=True):
        shown = [result for result in results if result.task == task]
        for result in shown:
            number = labels.index(_view(result))
            # Shifted, so that equal accuracies do not hide each other.
            offset = shifted(figure, axes, points=4 * (number - (len(labels) - 1) / 2))
            _draw_recall(axes, result, {**style_of(number), "transform": offset})
        # Shifted points do not widen an axis by themselves.
        axes.set_xlim(0, 1.05 * max(at.distance for result in shown for at in result.by_distance))
        thousands(axes.xaxis)
        mark(axes, {result.capacity: "capacity" for result in shown})
        axes.set(title=_TASKS.get(task, task), xlabel="distance to the answer (tokens)")
        axes.grid(alpha=0.25)
    panels[0].set(ylim=(-4, 104), ylabel="correct answers (%)")
    legend(figure, *panels)
    name = title or str(results[0].settings["model"])
    if len(tasks) == 1:
        panels[0].set_title(f"{name}: {_TASKS.get(tasks[0], tasks[0])}")
    else:
        figure.suptitle(name)
    write_figure(figure, path)


def plot_cost(
    results: Sequence[PerplexityResult],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
) -> None:
    """Plot time per scored token, and memory of live keys and values, against tokens read.

    Args:
        results: At least one.
        path: A file name that ends with .png or .svg.
        title: If None, the model's name.

    Raises:
        InvalidArgument: There is nothing to draw, or the path is wrong.
        SinkstreamError: matplotlib is not installed.
    """
    _check(results, path)
    figure = new_figure(width=11)
    latency, memory = figure.subplots(1, 2)
    for number, result in enumerate(results):
        blocks = list(
            zip(
                _block_positions(result, at_end=True),
                result.block_seconds,
                result.block_tokens,
                strict=True,
            )
        )
        each = [(x, 1e3 * seconds / count) for x, seconds, count in blocks if count]
        size = result.settings["bytes_per_token"] / 2**20
        held = [(x, size * min(x, result.capacity)) for x, _, _ in blocks]
        look = _look(result, style_of(number))
        latency.plot(*zip(*each, strict=True), **look)
        memory.plot(*zip(*held, strict=True), **look)
    latency.set_yscale("log")
    span_a_decade(latency)
    log_ticks(latency)
    latency.set(title="Time per scored token", ylabel="milliseconds")
    highest = memory.get_ylim()[1]
    memory.set(title="Keys and values in memory", ylabel="MiB", ylim=(0, 1.05 * highest))
    for axes in (latency, memory):
        axes.set(xlabel="tokens read", xlim=0)
        thousands(axes.xaxis)
        axes.grid(alpha=0.25)
    legend(figure, latency)
    figure.suptitle(title or str(results[0].settings["model"]))
    write_figure(figure, path)


_TASKS = {"stream_eval": "StreamEval", "needle": "needle"}


def _check(results: Sequence[Any], path: str | os.PathLike[str]) -> None:
    if not results:
        raise InvalidArgument("plot: `results` must not be empty.", param="results")
    check_picture(path)


def _view(result: RecallResult) -> str:
    """Describe what the model saw."""
    # If nothing was evicted, attention was dense, whatever the size of the window.
    if result.settings.get("evicted_tokens") == 0:
        return "dense (nothing evicted)"
    sinks, window = result.settings["sinks"], result.settings["window"]
    return f"{sinks} sinks + {window:,}" if sinks else f"window {window:,}"


def _draw_recall(axes: Any, result: RecallResult, style: dict[str, Any]) -> None:
    points = result.by_distance
    shares = [100 * point.accuracy for point in points]
    bounds = [[100 * bound for bound in point.interval] for point in points]
    errors = [
        [share - low for share, (low, _) in zip(shares, bounds, strict=True)],
        [high - share for share, (_, high) in zip(shares, bounds, strict=True)],
    ]
    axes.errorbar(
        [point.distance for point in points],
        shares,
        yerr=errors,
        capsize=3,
        markersize=5,
        label=_view(result),
        **style,
    )


def _label(result: PerplexityResult) -> str:
    if result.method == "dense":
        return "dense"
    return f"{result.method}, {_window_words(result.settings)}"


def _look(result: PerplexityResult, style: dict[str, Any]) -> dict[str, Any]:
    # A dozen markers are enough to distinguish lines.
    every = max(1, len(result.block_tokens) // 12)
    return {**style, "label": _label(result), "markersize": 4, "markevery": every}


def _window_words(settings: dict[str, Any]) -> str:
    return f"{settings['sinks']} + {settings['window']:,}"


def _points(
    result: PerplexityResult, mean: Literal["block", "running"]
) -> tuple[list[float], list[float]]:
    """Return the positions and perplexities of the blocks with scored tokens."""
    means = result.block_mean_nll if mean == "block" else result.running_mean_nll
    positions = _block_positions(result, at_end=mean == "running")
    known = [(x, perplexity_of(y)) for x, y in zip(positions, means, strict=True) if y is not None]
    return [x for x, _ in known], [y for _, y in known]


def _draw_sampled(
    axes: Any, result: PerplexityResult, style: dict[str, Any], level: tuple[float, float]
) -> None:
    mean, error = level
    look = {name: style[name] for name in ("color", "linestyle")}
    level_words = "" if mean == result.mean_nll else f", paired: {perplexity_of(mean):.1f}"
    label = f"{_label(result)} ({result.tokens:,} sampled tokens{level_words})"
    axes.axhline(perplexity_of(mean), label=label, **look)
    # A wide interval must not squeeze the curves, so their limits are kept.
    limits = axes.get_ylim()
    low, high = (perplexity_of(mean + side * Z95 * error) for side in (-1, 1))
    axes.axhspan(low, high, color=style["color"], alpha=0.15, linewidth=0)
    axes.set_ylim(limits)


def _block_positions(result: PerplexityResult, *, at_end: bool) -> list[float]:
    """Return the middle or the end of each block, in tokens; the last block may be short."""
    size, total = result.block, int(result.settings["text_tokens"])
    begins = [size * i for i in range(len(result.block_mean_nll))]
    ends = [min(begin + size, total) for begin in begins]
    return [
        float(end) if at_end else (begin + end) / 2 for begin, end in zip(begins, ends, strict=True)
    ]
