"""Text and bars that grow: in a notebook they replace one output, elsewhere they are plain."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import sinkstream
from sinkstream.streams import live

HOSTILE = "<b>&\n"


class Outputs:
    """The outputs of a notebook cell, each with everything that it has shown."""

    def __init__(self) -> None:
        self.outputs: list[list[dict[str, str]]] = []

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        assert {*data} == {"text/plain", "text/html"}
        shown = [data]
        self.outputs.append(shown)

        def update(data: dict[str, str], *, raw: bool) -> None:
            assert raw
            shown.append(data)

        return SimpleNamespace(update=update)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Outputs:
    """Make this process look like a notebook's kernel."""
    found, package, display = Outputs(), ModuleType("IPython"), ModuleType("IPython.display")
    package.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    display.display = found.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return found


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_stream_is_one_output_of_a_notebook(
    model: sinkstream.Model, notebook: Outputs, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"max_tokens": 300, "ignore_eos": True, "seed": 1}
    with model.stream("the", **options) as stream:
        stream.show()
        text = stream.result().text
    (shown,) = notebook.outputs
    assert shown[-1]["text/plain"] == text
    assert all(text.startswith(data["text/plain"]) for data in shown)
    assert capsys.readouterr().out == ""


def test_elsewhere_a_stream_is_printed(
    model: sinkstream.Model, capsys: pytest.CaptureFixture[str]
) -> None:
    with model.stream("the", max_tokens=30, ignore_eos=True) as stream:
        stream.show()
        assert capsys.readouterr().out == stream.result().text + "\n"


def test_a_session_shows_its_reply(
    model: sinkstream.Model, capsys: pytest.CaptureFixture[str]
) -> None:
    with model.session() as session:
        stream = session.stream("the", max_tokens=9)
        stream.show()
        assert capsys.readouterr().out == stream.result().text + "\n"


def test_updates_are_few_and_the_last_is_complete(
    notebook: Outputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    text = live.GrowingText()
    for _ in range(1000):
        text.add(HOSTILE)
        now[0] += 0.001
    text.end()
    (shown,) = notebook.outputs
    assert 9 <= len(shown) <= 12
    assert shown[-1]["text/plain"] == HOSTILE * 1000
    assert "<b>&" not in shown[-1]["text/html"]
    assert "&lt;b&gt;&amp;\n" in shown[-1]["text/html"]


def test_an_endless_text_keeps_its_end(notebook: Outputs) -> None:
    text = live.GrowingText()
    for i in range(3000):
        text.add(f"{i} " * 20)
    text.end()
    kept = notebook.outputs[0][-1]["text/plain"]
    assert kept.startswith("…")
    assert kept.endswith("2999 2999 ")
    assert len(kept) == live.KEPT_CHARACTERS + 1


def test_a_load_and_a_batch_show_a_bar_in_a_notebook(folder: Path, notebook: Outputs) -> None:
    with sinkstream.load(folder, threads=1, progress=True) as model:
        model.generate([[5, 6]] * 3, max_tokens=2, progress=True)
    loading, replies = notebook.outputs
    assert loading[0]["text/plain"].startswith("Loading: ")
    assert loading[-1]["text/plain"] == "Loading: 100 %"
    assert replies[0]["text/plain"] == "Replies: 0 of 3"
    assert replies[-1]["text/plain"] == "Replies: 3 of 3"
    assert '<progress value="3" max="3"' in replies[-1]["text/html"]


def test_a_terminal_shows_a_line_that_disappears(
    model: sinkstream.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", Screen())
    monkeypatch.setenv("TERM", "dumb")  # it obeys no escape sequences
    model.generate([[5, 6]] * 3, max_tokens=2, progress=True)
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]
    monkeypatch.setenv("TERM", "xterm")
    model.generate([[5, 6]] * 3, max_tokens=2, progress=True)
    written = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert written.startswith("\r\x1b[KReplies: 0 of 3")
    assert written.endswith("\r\x1b[K")


@pytest.mark.parametrize("progress", [True, False, None])
def test_a_pipe_shows_nothing(
    model: sinkstream.Model, capsys: pytest.CaptureFixture[str], progress: bool | None
) -> None:
    model.generate([[5, 6]] * 3, max_tokens=2, progress=progress)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("progress", ["yes", 1])
def test_progress_is_a_function_or_a_bool(
    model: sinkstream.Model, folder: Path, progress: Any
) -> None:
    sentence = "`progress` must be a function or a bool, but is of type"
    with pytest.raises(TypeError, match=f"^generate: {sentence}"):
        model.generate([[5, 6]], progress=progress)
    with pytest.raises(TypeError, match=f"^load: {sentence}"):
        sinkstream.load(folder, progress=progress)
