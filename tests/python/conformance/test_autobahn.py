"""What the conformance run makes of Autobahn's report."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from tests.conformance.autobahn import cases
from tests.conformance.sources import SourceError
from tests.conformance.verdict import judge, read_list

pytestmark = pytest.mark.full


def entry(behavior: str, close: str = "OK") -> dict[str, str]:
    return {"behavior": behavior, "behaviorClose": close}


def test_a_case_passes_if_it_and_its_close_are_fine() -> None:
    report = {
        "1.1.1": entry("OK"),
        "2.2": entry("NON-STRICT"),
        "3.3": entry("INFORMATIONAL", "INFORMATIONAL"),
        "4.4": entry("FAILED"),
        "5.5": entry("OK", "WRONG CODE"),
    }
    ended = cases.outcomes({"sinkstream": report})
    assert [name for name, outcome in ended.items() if outcome == "failed"] == ["4.4", "5.5"]


def test_the_list_is_complete_and_names_each_case_once() -> None:
    listed = read_list(Path(cases.__file__).parent / "listed.toml")
    assert all(entry.reason.endswith(".") for entry in listed)
    assert judge({"7.1.5": "failed"}, listed).faults == []


def test_it_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cases.PYTHON, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SourceError, match=r"needs Python 2\.7\. Set SINKSTREAM_"):
        cases.run(tmp_path)


def test_it_refuses_a_python_that_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cases.PYTHON, sys.executable)
    with pytest.raises(SourceError, match=r"is not Python 2\.7\. Set SINKSTREAM_"):
        cases._python()


def test_the_echo_answers(tmp_path: Path) -> None:
    connect = pytest.importorskip("websockets.sync.client").connect
    with cases._echoing() as address, connect(address.replace("http", "ws")) as socket:
        socket.send("text")
        assert socket.recv() == "text"
        socket.send(json.dumps([1]).encode())
        assert socket.recv() == b"[1]"
