"""`benchmarks/endurance_bench.py`: how its client goes on after an end; its figures of a text."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from benchmarks.server.endless import Endless, Piece

pytestmark = pytest.mark.full

BENCH = str(Path(__file__).parents[3] / "benchmarks")


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)


def event(text: str, reason: str | None = None, **more: Any) -> str:
    """Return an event of a completion."""
    choice = {"index": 0, "text": text, "finish_reason": reason}
    return f"data: {json.dumps({'choices': [choice], **more})}\n\n"


class Scripted(HTTPServer):
    """Answers each request with the next script: a status and a body."""

    def __init__(self, scripts: Sequence[tuple[int, str]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.scripts = list(scripts)
        self.asked: list[dict[str, Any]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Scripted

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(json.loads(body))
        status, answer = self.server.scripts.pop(0)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def run(scripts: Sequence[tuple[int, str]], tokens: int, context: int = 8) -> tuple[Endless, Any]:
    """Read an endless text from a scripted server; return it and the requests."""
    from server.endless import Endless

    server = Scripted(scripts)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
    text = Endless(server.server_port, "Once", context, {"seed": 1}, tokens)
    try:
        for piece in text.pieces():
            text.add(piece)
    finally:
        server.shutdown()
        server.server_close()
    return text, server.asked


def words(first: int, last: int, reason: str | None = "length") -> str:
    """Return a reply of one event for each number from `first` to `last`."""
    return "".join(event(f" {i}") for i in range(first, last + 1)) + event("", reason)


def test_a_reply_that_ends_is_continued_with_the_last_half_of_the_context() -> None:
    text, asked = run([(200, words(1, 6)), (200, words(7, 10))], 10)
    assert "".join(piece.text for piece in text.text) == "".join(f" {i}" for i in range(1, 11))
    assert [body["prompt"] for body in asked] == ["Once", "Once 3 4 5 6"]
    assert [body["max_tokens"] for body in asked] == [10, 4]
    assert all(body["seed"] == 1 and body["stream"] for body in asked)
    (end,) = text.ends
    assert (end.at_tokens, end.reason, end.resent_tokens) == (6, 'finish reason "length"', 4)
    assert end.gap_s > 0


def test_after_a_refusal_half_as_much_is_sent() -> None:
    refusal = json.dumps({"error": {"message": "the context is full"}})
    scripts = [(200, words(1, 6)), (400, refusal), (400, refusal), (200, words(7, 7))]
    text, asked = run(scripts, 7)
    assert [body["prompt"] for body in asked[1:]] == ["Once 3 4 5 6", "Once 5 6", "Once 6"]
    (end,) = text.ends  # one end, until text arrives again
    assert end.reason.split("; ")[1:] == ["status 400: the context is full"] * 2
    assert end.resent_tokens == 1


def test_an_error_in_the_stream_and_a_stream_cut_off_are_ends() -> None:
    error = 'data: {"error": {"message": "compute error"}}\n\n'
    scripts = [(200, event(" 1") + error), (200, event(" 2")), (200, words(3, 3))]
    text, _ = run(scripts, 3)
    assert [end.reason for end in text.ends] == [
        "an error in the stream: compute error",
        "the stream ended without a finish reason",
    ]


def test_a_server_without_text_is_given_up() -> None:
    from server.endless import GaveUp

    with pytest.raises(GaveUp, match="status 500: broken"):
        run([(500, "broken")] * 5, 3)


@pytest.mark.parametrize(
    "counted",
    [
        lambda total: {"usage": {"completion_tokens": total}},
        lambda total: {"timings": {"predicted_n": total}},
    ],
)
def test_tokens_are_those_that_the_server_counts(counted: Any) -> None:
    reply = event(" a b", **counted(2)) + event(" c d e", **counted(5))
    text, _ = run([(200, reply)], 5)
    assert [piece.tokens for piece in text.text] == [2, 3]


def a_text(count: int, per_s: float) -> Iterator[Piece]:
    """Yield pieces of one token and one word, `per_s` in a second."""
    from server.endless import Piece

    for i in range(count):
        yield Piece(f" {i}", 1, i / per_s, None if i == 0 else 1 / per_s)


def test_stretches_have_equal_times_and_their_own_figures() -> None:
    from endurance_bench import Writer, stretches, summary

    text = SimpleNamespace(text=list(a_text(3000, 100)), tokens=3000, ends=[], usage={})
    text.pieces = lambda: iter(())
    writer = Writer(SimpleNamespace(), text)  # type: ignore[arg-type]
    writer.seconds = 30.0
    writer.memory = [(0.0, 1024), (19.9, 2048), (20.1, 4096)]
    rows = stretches(writer, 20.0, lambda so_far: float(len(so_far.split())))
    assert [row["tokens"] for row in rows] == [2000, 3000]
    assert [row["tokens_per_s"] for row in rows] == [100.0, 100.0]  # the second one was cut short
    assert [row["memory_mib"] for row in rows] == [2.0, 4.0]
    assert [row["distinct_4_grams"] for row in rows] == [1.0, 1.0]
    whole = summary(writer, rows)
    assert (whole["memory_first_mib"], whole["memory_last_mib"]) == (2.0, 4.0)
    assert whole["median_wait_ms"] == whole["longest_wait_ms"] == 10.0
    assert (whole["ends"], whole["end"], whole["gap_at_an_end_s"]) == (0, None, None)


def test_repetition_is_seen() -> None:
    from figures import compression, distinct

    assert distinct(list("abcdefg"), 4) == 1.0
    assert distinct(list("abababab"), 4) == 2 / 5
    assert compression("the sea " * 500) > 20 > compression("".join(map(str, range(999))))


def test_a_text_that_is_too_short_has_no_quality() -> None:
    from endurance_bench import quality

    assert set(quality("a few words", lambda _: None).values()) == {None}


@pytest.mark.parametrize("value", [1, 1.1, 3.5, 6, 81, 99, 100, 0.03, 12345])
def test_a_scale_ends_at_a_round_number_just_above(value: float) -> None:
    from chart import round_up

    top = round_up(value)
    assert value <= top <= 2 * value
    assert top / 10 ** math.floor(math.log10(top)) == pytest.approx(int(f"{top:e}"[0]))
