"""The pages of benchmarks are current: tables and chart say what the committed JSON says."""

from __future__ import annotations

import json
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


def test_drafts_have_a_row_for_each_task_and_a_column_for_each_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    from page_tables import speculation

    assert speculation(tmp_path) == ""
    tasks = {
        "an edit": {"ratios": [2.0, 1.9, 2.25], "drafted": 200, "accepted": 150},
        "prose": {"ratios": [1.0], "drafted": 0, "accepted": 0},
    }
    file = tmp_path / "zen4" / "speculation-smollm2-1.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"threads": 1, "tasks": tasks}), encoding="utf-8")
    other = {"threads": 1, "kernels": "avx2", "tasks": {"prose": {"ratios": [1.25]}}}
    file.with_stem("speculation-smollm2-avx2-1").write_text(json.dumps(other), encoding="utf-8")
    head, _, *rows = speculation(tmp_path).splitlines()
    assert head.endswith("| SmolLM2 Q4_1, Zen 4 | SmolLM2 Q4_1, Zen 4, its avx2 table |")
    assert rows == [
        "| an edit | 2.00 (1.90 – 2.25) |  |",
        "| prose | 1.00 (1.00 – 1.00) | 1.25 (1.25 – 1.25) |",
    ]


def test_every_page_of_the_notebook_is_in_its_index() -> None:
    index = (NOTEBOOK / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"\]\((\d{4}-\d\d-\d\d-[\w-]+\.md)\)", index)
    assert sorted(listed) == sorted(page.name for page in NOTEBOOK.glob("2*.md"))
