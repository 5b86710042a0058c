"""Plots have their labels and marks, and name what is missing."""

from __future__ import annotations

import math
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sinkstream.errors import InvalidArgument, SinkstreamError
from sinkstream.evaluate import (
    Answer,
    Difference,
    RecallResult,
    plot_cost,
    plot_perplexity,
    plot_recall,
    plots,
)
from sinkstream.evaluate.result import level_of
from tests.python.evaluate.conftest import make_result

pytest.importorskip("matplotlib")

SINKS = make_result()
DENSE = make_result(
    "dense",
    block_mean_nll=(3.4, 2.9, 6.0),
    settings={**SINKS.settings, "sinks": 0, "window": 2499},
)
SAMPLED = make_result(
    "recompute",
    block_mean_nll=(None, 3.0, None),
    block_tokens=(0, 20, 0),
    tokens=20,
    settings={**SINKS.settings, "sinks": 0, "window": 1024, "sample": 20},
)
RECALL = RecallResult(
    "stream_eval",
    {"model": "a model", "sinks": 4, "window": 1020},
    tuple(
        Answer(back, 23 * back, "inside" if back < 45 else "outside", "<1>", "<1>"[: 99 // back])
        for back in (20, 40, 60, 80)
        for _ in range(5)
    ),
)

Draw = Callable[[Path], None]
DRAWINGS: dict[str, tuple[Draw, tuple[str, ...]]] = {
    "perplexity": (
        lambda path: plot_perplexity([SINKS, DENSE, SAMPLED], path),
        ("sinks, 4 + 1,020", "dense", "recompute, 0 + 1,024 (20 sampled tokens)",
         "capacity 1,024", "trained length 2,048", "position in the text (tokens)",
         "perplexity (block mean)", "a model"),
    ),
    "running": (
        lambda path: plot_perplexity([SINKS], path, mean="running", title="a title"),
        ("perplexity (running mean)", "a title"),
    ),
    "recall": (
        lambda path: plot_recall([RECALL], path),
        ("a model: StreamEval", "4 sinks + 1,020", "capacity 1,024",
         "distance to the answer (tokens)", "correct answers (%)"),
    ),
    "cost": (
        lambda path: plot_cost([SINKS, DENSE, SAMPLED], path),
        ("Time per scored token", "milliseconds", "Keys and values in memory", "MiB",
         "tokens read", "sinks, 4 + 1,020"),
    ),
}  # fmt: skip


def texts(path: Path) -> list[str]:
    """Return the texts of an SVG picture."""
    words = ET.parse(path).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(element.itertext()).strip() for element in words]


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_picture_is_labelled(name: str, tmp_path: Path) -> None:
    draw, labels = DRAWINGS[name]
    draw(tmp_path / "picture.svg")
    assert set(labels) <= set(texts(tmp_path / "picture.svg"))


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_picture_may_be_a_png(name: str, tmp_path: Path) -> None:
    DRAWINGS[name][0](tmp_path / "picture.png")
    content = (tmp_path / "picture.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 10_000


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_same_numbers_give_the_same_bytes(name: str, tmp_path: Path) -> None:
    for file in ("first.svg", "second.svg"):
        DRAWINGS[name][0](tmp_path / file)
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()


def test_each_task_has_a_panel_and_each_view_one_name(tmp_path: Path) -> None:
    dense = replace(RECALL, settings={**RECALL.settings, "window": 4096, "evicted_tokens": 0})
    needles = [replace(result, task="needle") for result in (RECALL, dense)]
    plot_recall([RECALL, dense, *needles], tmp_path / "picture.svg")
    written = texts(tmp_path / "picture.svg")
    for text in ("StreamEval", "needle", "4 sinks + 1,020", "dense (nothing evicted)"):
        assert written.count(text) == 1


def test_equal_answers_do_not_hide_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "write_figure", lambda figure, path: drawn.append(figure))
    dense = replace(RECALL, settings={**RECALL.settings, "evicted_tokens": 0})
    plot_recall([RECALL, dense], tmp_path / "picture.svg")
    positions = [
        container.lines[0].get_transform().transform(container.lines[0].get_xydata())
        for container in drawn[0].axes[0].containers
    ]
    apart = (positions[1] - positions[0]) * 72 / drawn[0].dpi
    assert apart == pytest.approx(np.tile([4.0, 0.0], (4, 1)))


def test_flat_costs_look_flat(tmp_path: Path) -> None:
    plot_cost([replace(SINKS, block_seconds=(2.9, 3.0, 3.1))], tmp_path / "picture.svg")
    written = texts(tmp_path / "picture.svg")
    # Values near 3 ms, on an axis of a decade.
    labels = written[written.index("tokens read") + 1 : written.index("milliseconds")]
    assert labels == ["2", "3", "5", "10"]


def compared_with_sinks(mean: float) -> Difference:
    return Difference(
        "sinks", "recompute", 20, mean, 0.01, of_sinks=4, of_window=1020, against_window=1024
    )


def test_a_sample_is_drawn_by_its_paired_difference_where_one_is_given() -> None:
    sampled = replace(SAMPLED, mean_nll=3.9, standard_error=0.4)
    paired = compared_with_sinks(mean=0.05)
    assert level_of(sampled, [SINKS, sampled], []) == (3.9, 0.4)
    assert level_of(sampled, [SINKS, sampled], [paired]) == pytest.approx((3.1 - 0.05, 0.01))
    for changed in ({"against": "window"}, {"of_window": 60}, {"of_sinks": 1}):
        other = replace(paired, **changed)
        assert level_of(sampled, [SINKS, sampled], [other]) == (3.9, 0.4)


def test_the_legend_has_the_number_that_is_drawn(tmp_path: Path) -> None:
    paired = compared_with_sinks(mean=0.05)
    path = tmp_path / "picture.svg"
    plot_perplexity([SINKS, SAMPLED], path, differences=[paired])
    drawn = math.exp(SINKS.mean_nll - 0.05)
    assert f"recompute, 0 + 1,024 (20 sampled tokens, paired: {drawn:.1f})" in texts(path)


@pytest.mark.parametrize("spread", [1.02, 1.3, 3.0, 20.0, 5000.0])
def test_an_axis_has_several_numbers_however_narrow_it_is(spread: float, tmp_path: Path) -> None:
    means = tuple(math.log(31 * spread**share) for share in (0.0, 0.5, 1.0))
    plot_perplexity([replace(SINKS, block_mean_nll=means)], tmp_path / "picture.svg")
    written = texts(tmp_path / "picture.svg")
    begin = written.index("position in the text (tokens)") + 1
    labels = written[begin : written.index("perplexity (block mean)")]
    assert 3 <= len(labels) <= 12
    assert len(set(labels)) == len(labels)
    for label in labels:
        float(label.replace(",", ""))


def test_a_picture_of_one_task_has_one_title(tmp_path: Path) -> None:
    plot_recall([RECALL], tmp_path / "picture.svg")
    written = texts(tmp_path / "picture.svg")
    assert "a model: StreamEval" in written
    assert not {"a model", "StreamEval"} & {*written}


def test_what_a_picture_does_not_reach_is_not_marked(tmp_path: Path) -> None:
    short = replace(SINKS, settings={**SINKS.settings, "trained_length": 8192})
    plot_perplexity([short], tmp_path / "picture.svg")
    assert not any("trained" in text for text in texts(tmp_path / "picture.svg"))


@pytest.mark.parametrize("name", ["picture.pdf", "picture", "picture.PNG.txt"])
def test_another_kind_of_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"plot: `path` must end with \.png or \.svg, but is"):
        plot_perplexity([SINKS], tmp_path / name)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="plot: `path` must be in a folder that exists"):
        plot_perplexity([SINKS], tmp_path / "missing" / "picture.png")


def test_nothing_to_draw_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="plot: `results` must not be empty"):
        plot_cost([], tmp_path / "picture.png")


def test_missing_matplotlib_is_said_with_the_extra_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "matplotlib.py").write_text(
        'raise ModuleNotFoundError("No module named matplotlib", name="matplotlib")'
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(SinkstreamError, match=r"`pip install 'matplotlib>=3.9'` installs it"):
        plot_perplexity([SINKS], tmp_path / "picture.png")
