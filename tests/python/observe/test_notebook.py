"""What a notebook, `print` and `repr` show for the objects of the API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import sinkstream
from sinkstream.observe.notebook import cache_bar, counted, human_bytes, quotation

HOSTILE = '<script src="http://x">&"'


class Strict(HTMLParser):
    """Reads HTML; every tag must be closed, and nothing may come from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.widths: list[int] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("div", "span", "b"), tag
        assert {name for name, _ in attrs} <= {"style"}
        for _, value in attrs:
            assert "url" not in (value or "")
            if tag == "span" and value is not None:
                self.widths.append(int(value.removeprefix("flex:").split()[0]))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Strict:
    parser = Strict()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    with sinkstream.load(tiny_folder("llama"), sinks=4, window=28, threads=1) as loaded:
        yield loaded


def options(**others: Any) -> Any:
    return {"temperature": 0, "ignore_eos": True, **others}


@pytest.mark.parametrize(
    ("live", "evicted", "says"),
    [
        (0, 0, "0 of 4 sinks · 0 evicted · 0 of 28 window tokens"),
        (3, 0, "3 of 4 sinks · 0 evicted · 0 of 28 window tokens"),
        (10, 0, "4 of 4 sinks · 0 evicted · 6 of 28 window tokens"),
        (32, 117, "4 of 4 sinks · 117 evicted · 28 of 28 window tokens"),
        (32, 10**9, "4 of 4 sinks · 1,000,000,000 evicted · 28 of 28 window tokens"),
    ],
)
def test_a_bar_shows_sinks_gap_and_window(live: int, evicted: int, says: str) -> None:
    shown = read(cache_bar(4, 28, live, evicted))
    assert shown.text == says
    sinks, gap, window, free = shown.widths
    assert (sinks, window, free) == (min(4, live), max(0, live - 4), 32 - live)
    assert (gap > 0) == (evicted > 0)
    assert gap <= 0.35 * sum(shown.widths)


def test_a_text_cannot_become_html() -> None:
    assert read(quotation(HOSTILE)).text == HOSTILE


@pytest.mark.parametrize(
    ("count", "says"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (8847360, "8.8 MB"), (999_950, "1.0 MB"),
     (10**18, "1000000.0 TB")],
)  # fmt: skip
def test_sizes_have_units(count: int, says: str) -> None:
    assert human_bytes(count) == says


@pytest.mark.parametrize(
    ("number", "says"), [(0, "0 turns"), (1, "1 turn"), (2, "2 turns"), (1000, "1,000 turns")]
)
def test_only_one_is_singular(number: int, says: str) -> None:
    assert counted(number, "turn") == says


def test_a_model_for_one_sequence_says_so(model: sinkstream.Model) -> None:
    one = replace(model.capacity, max_sequences=1)
    assert " for 1 sequence of 4 sinks" in str(one)
    with model.session() as session:
        session.stream([5], **options(max_tokens=1)).result()
        assert repr(session).startswith("<sinkstream.Session 1 turn, ")


def test_a_result_shows_text_reason_and_speed_but_no_ids(model: sinkstream.Model) -> None:
    result = model.generate([5, 9], **options(max_tokens=40))
    assert repr(result).startswith("<sinkstream.Result length, 40 tokens, ")
    assert "tokens/s: '" in repr(result)
    assert len(repr(result)) < 200
    shown = read(result._repr_html_())
    assert result.text in shown.text
    assert "length" in shown.text
    assert str(result.token_ids[:3]) not in shown.text + repr(result)
    short = model.generate([5], **options(max_tokens=0))
    assert repr(short) == "<sinkstream.Result length, 0 tokens: ''>"
    read(short._repr_html_())


def test_a_stream_and_a_session_show_their_caches(model: sinkstream.Model) -> None:
    bar = "4 of 4 sinks · 10 evicted · 28 of 28 window tokens"
    with model.stream([5] * 40, **options(max_tokens=3)) as stream:
        stream.result()
        shown = read(stream._repr_html_()).text
        assert bar in shown
        assert "Stream" in shown
        assert "length" in shown
    with model.stream([5] * 20, sinks=8, **options(max_tokens=1)) as other:
        other.result()
        assert "8 of 8 sinks · 0 evicted · 12 of 24" in read(other._repr_html_()).text
    with model.session() as session:
        held = session.stats.tokens
        session.append([5] * (42 - held))
        assert bar in read(session._repr_html_()).text
        turn = session.stream([5], **options(max_tokens=1))
        turn.result()
        assert " 1 evicted" in read(turn._repr_html_()).text
    assert "closed" in read(session._repr_html_()).text


def test_a_cache_says_what_it_holds(model: sinkstream.Model) -> None:
    torch = pytest.importorskip("torch")
    cache = model.new_cache(2)
    model.forward(torch.full((2, 42), 5), cache)
    says = "2 rows, 32 live tokens each, 10 evicted"
    assert (
        repr(cache)
        == f"<sinkstream.Cache {says}, 4 sinks + 28 window, {human_bytes(cache.nbytes)}>"
    )
    assert "4 of 4 sinks · 10 evicted · 28 of 28" in read(cache._repr_html_()).text
    assert "9 of 9 sinks" in read(model.new_cache(sinks=9)._repr_html_()).text.replace(
        "0 of", "9 of"
    )
    copied = cache.copy()
    assert repr(copied) == repr(cache)


def test_a_capacity_is_written_for_people(model: sinkstream.Model) -> None:
    capacity = model.capacity
    total = capacity.weight_bytes + capacity.cache_bytes + capacity.scratch_bytes
    assert str(capacity) == (
        f"{human_bytes(total)}: {human_bytes(capacity.weight_bytes)} of weights "
        f"({human_bytes(capacity.weight_bytes_per_token)} read per token), "
        f"{human_bytes(capacity.cache_bytes)} of cache for 2 sequences of 4 sinks + 28 window, "
        f"{human_bytes(capacity.scratch_bytes)} of scratch"
    )
    assert repr(capacity).startswith("Capacity(sinks=4, window=28, ")
    assert str(capacity) in read(capacity._repr_html_()).text
    assert str(capacity) in read(model._repr_html_()).text


def test_a_spec_does_not_list_its_frequencies(model: sinkstream.Model) -> None:
    spec = model.spec
    rope = spec.blocks[0].attention.rope
    assert len(repr(spec)) < 1200
    assert str(rope.inverse_frequencies[1]) not in repr(spec)
    assert f"{len(rope.inverse_frequencies)} frequencies" in repr(spec)


def test_replies_say_how_far_they_are(model: sinkstream.Model) -> None:
    replies = model.generate_many([[5]] * 3, max_tokens=2)
    assert repr(replies) == "<sinkstream.Replies 0 running, 0 complete>"
    next(replies)
    assert repr(replies) != "<sinkstream.Replies 0 running, 0 complete>"
