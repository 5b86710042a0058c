"""The moving picture of `sinkstream demo`: drawn the same every time, small, and of one file."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import sinkstream
from sinkstream.cli import demo

PICTURES = Path(__file__).parents[3] / "docs" / "pictures"
sys.path.insert(0, str(PICTURES))
try:
    import film
    import record_demo
finally:
    sys.path.remove(str(PICTURES))

pytestmark = pytest.mark.full

ELEMENTS = {
    "clipPath",
    "defs",
    "g",
    "path",
    "rect",
    "style",
    "svg",
    "text",
    "title",
    "tspan",
    "use",
}
SVG = "{http://www.w3.org/2000/svg}"
CAPTION = film.Caption(
    title='A "title" & more', command="demo <x>", note="real time", sinks=2, capacity=8
)
STATUS = film.Run(" status ", "black", "on-green")


def row(text: str) -> film.Row:
    return (film.Run(text),) if text else ()


def frame(at_s: float, scrolled: int, *texts: str, live: int = 8, evicted: int = 0) -> film.Frame:
    rows = tuple((STATUS,) if text == "status" else row(text) for text in texts)
    return film.Frame(at_s, scrolled, rows, live, evicted)


# A line that grows, a status below it that moves down with the text, and a scroll.
SESSION = [
    frame(5.0, 0, "a", "status", "", live=1),
    frame(5.1, 0, "a < b & c", "status", "", live=5),
    frame(5.1, 0, "a < b & c", "status", "", live=5),
    frame(5.4, 0, "a < b & c", "", "status", evicted=1),
    frame(6.0, 1, "", "d", "status", evicted=1234),
    frame(6.5, 1, "", "d", "", evicted=1235),
]


def drawn() -> str:
    return film.draw_film(SESSION, CAPTION, columns=20)


def references(svg: str) -> list[str]:
    """Return what a file refers to, apart from its own parts and the name of its format."""
    svg = svg.replace('xmlns="http://www.w3.org/2000/svg"', "")
    found = re.findall(r'(?:href|src)\s*=\s*"([^"]*)"|url\(([^)]*)\)|(@import|https?:)', svg)
    return [name for names in found for name in names if name and not name.startswith("#")]


def check(svg: str) -> ElementTree.Element:
    """Check what a page's picture must be; return its elements."""
    root = ElementTree.fromstring(svg)
    names = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert names <= ELEMENTS
    assert references(svg) == []
    title = root.find(f"{SVG}title")
    assert title is not None
    assert title.text
    assert root.get("role") == "img"
    assert root.get("aria-labelledby") == title.get("id")
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    assert {used.removeprefix("#") for used in re.findall(r'href="([^"]*)"', svg)} <= set(ids)
    return root


# ---- as it is drawn ------------------------------------------------------------------------------


def test_a_film_is_a_valid_picture_and_the_same_every_time() -> None:
    check(drawn())
    assert drawn() == drawn()


def test_a_film_contains_every_state_of_every_line() -> None:
    texts = [element.text for element in check(drawn()).iter(f"{SVG}text")]
    assert texts.count("a") == 1  # while it grew
    assert texts.count("a < b & c") == 1  # final when it was first shown: on the sheet only
    assert texts.count(" status ") == 4  # the repeated frame is left out
    assert [text for text in texts if text and text.startswith("evicted")] == [
        "evicted 0",
        "evicted 0",
        "evicted 1",
        "evicted 1,234",
        "evicted 1,235",
    ]


def test_a_film_runs_at_the_speed_of_its_recording_and_holds_the_last_frame() -> None:
    length_s = 1.5 + film.HOLD_S
    svg = drawn()
    assert svg.count(f"{length_s:.2f}s step-end infinite") == 2
    moments = re.search(r"@keyframes strip \{(.*)\}$", svg, re.MULTILINE)
    assert moments is not None
    assert [float(at) for at in re.findall(r"([\d.]+)%", moments[1])] == [
        round(100 * at_s / length_s, 2) for at_s in (0, 0.1, 0.4, 1.0, 1.5)
    ]
    scrolls = re.search(r"@keyframes sheet \{(.*)\}$", svg, re.MULTILINE)
    assert scrolls is not None
    assert scrolls[1] == (
        "0.00%{transform:translate(0px,0px)}"
        f"{100 * 1.0 / length_s:.2f}%{{transform:translate(0px,-{film.LINE}px)}}"
    )


def test_rows_of_one_frame_are_those_of_the_screen() -> None:
    """For each frame, the sheet above the cover and the rows on the cover make the screen."""
    sheet = film.finished_rows(SESSION)
    for shown in SESSION:
        changing = film.changing_rows(shown, sheet)
        covered = re.search(r'<use href="#cover" y="(\d+)"/>', changing)
        first = int(covered[1]) // film.LINE if covered else len(shown.rows)
        assert tuple(sheet[shown.scrolled : shown.scrolled + first]) == shown.rows[:first]
        for number, content in enumerate(shown.rows[first:], start=first):
            assert film.draw_row(content, number) in changing


def test_a_reference_to_another_host_is_found() -> None:
    assert references('<a href="https://a.b/c"/>') == ["https://a.b/c"]
    assert references("<style>@import 'x'; a { b: url(x.woff) }</style>") == ["@import", "x.woff"]
    assert references('<use href="#x"/>') == []


# ---- what is read from the screen ----------------------------------------------------------------


@pytest.mark.parametrize("generated", [1, 1_234_567])
def test_the_recorder_reads_the_counts_that_the_demo_shows(generated: int) -> None:
    stats = sinkstream.Stats(
        request_id=1,
        prompt_tokens=50,
        generated_tokens=generated,
        cached_tokens=0,
        evicted_tokens=1_234_361,
        live_tokens=256,
        cache_bytes=8_800_000,
        time_to_first_token_s=0.1,
        tokens_per_s=123.45,
        token_p50_s=0.0071,
        token_p99_s=0.0123,
        consumer_lag=0,
    )
    assert record_demo.find_count(demo.status_line(stats)) == (256, 1_234_361)
    summary = demo.summary(stats, demo.Watch(0.0)).replace("\n", " ")
    assert record_demo.find_count(summary) == (256, 1_234_361)
    assert record_demo.find_count("The Long Voyage") is None


# ---- as it is stored -----------------------------------------------------------------------------


def test_the_stored_film_is_small_and_shows_a_full_cache_that_evicts() -> None:
    svg = (PICTURES / "demo.svg").read_text(encoding="utf-8")
    assert len(svg.encode()) < record_demo.LIMIT
    texts = [element.text or "" for element in check(svg).iter(f"{SVG}text")]
    capacity = demo.SINKS + demo.WINDOW
    assert f"{capacity} of {capacity} tokens" in texts
    evicted = [int(text[8:].replace(",", "")) for text in texts if text.startswith("evicted ")]
    assert evicted == sorted(evicted)
    assert evicted[0] == 0
    assert evicted[-1] > 4 * capacity
    tokens = int(record_demo.COMMAND[-1])
    assert any(text.startswith(f"{tokens:,} tokens in ") for text in texts)
    assert f"</tspan>{' '.join(record_demo.COMMAND)}</text>" in svg
