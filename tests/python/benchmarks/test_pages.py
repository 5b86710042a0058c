"""The pages of benchmarks are current: tables and chart say what the committed JSON says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BENCH = ROOT / "benchmarks"
RESULTS = BENCH / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
NOTEBOOK = ROOT / "docs" / "notebook"


@pytest.mark.parametrize("script", ["results_pages.py", "page_tables.py", "chart.py"])
def test_what_a_script_wrote_is_current(script: str) -> None:
    done = subprocess.run(
        [sys.executable, BENCH / script, "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_json_has_a_place_on_a_page() -> None:
    files = list(RESULTS.rglob("*.json"))
    assert len(files) > 80
    missing = [
        file
        for file in files
        if f"]({file.name})" not in (file.parent / "README.md").read_text(encoding="utf-8")
    ]
    assert missing == []


def test_the_figures_of_the_page_are_all_in_its_tables() -> None:
    prose = re.sub(
        r"<!-- (\w+) -->.*?<!-- end \1 -->|```.*?```|`[^`]*`|\]\([^)]*\)",
        "",
        PAGE.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    settings = r"^\d\. |SmolLM2|Zen [1345]|AVX2|AVX-512|-?\b(?:8|16)(?:-? and 4)?[ -]bits?"
    settings += r"|keeps 16\b|Qwen3-0\.6B|Llama-3\.2-1B|1B model|bfloat16|decision 5"
    assert re.findall(r".*\d.*", re.sub(settings, "", prose, flags=re.MULTILINE)) == []


def test_a_figure_that_differs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    from page_tables import differences

    text = "<!-- speed -->\n\n| x | a |\n| --- | --- |\n| decode | 2.75 |\n\n<!-- end speed -->"
    same, other = (f"| x | a |\n| --- | --- |\n| decode | {rate} |\n" for rate in (2.75, 2.76))
    assert list(differences("benchmarks.md", "speed", text, same)) == []
    assert list(differences("benchmarks.md", "speed", text, other)) == [
        "docs/benchmarks.md, table speed, decode: 2.75 instead of 2.76"
    ]
    assert list(differences("benchmarks.md", "speed", text, "| x | a |\n")) == [
        "docs/benchmarks.md, table speed: 3 lines instead of 1"
    ]


def test_every_page_of_the_notebook_is_in_its_index() -> None:
    index = (NOTEBOOK / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"\]\((\d{4}-\d\d-\d\d-[\w-]+\.md)\)", index)
    assert sorted(listed) == sorted(page.name for page in NOTEBOOK.glob("2*.md"))
