"""The pages: their links lead to files, their pictures are current, and their examples run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from sinkstream.checkpoint.families import FAMILIES
from tests.mutants.catalogue_cuda import NATIVE
from tests.mutants.catalogue_python import CATALOGUE_PYTHON

ROOT = Path(__file__).parents[3]
RELIABILITY = ROOT / "docs" / "internals" / "reliability.md"
NAME_OF_A_TEST = r"`(test_\w+|[A-Z]\w+\.[A-Z]\w+)`"
PAGES = sorted(
    page
    for pattern in (
        "*.md",
        "benchmarks/**/*.md",
        "csrc/**/*.md",
        "docs/**/*.md",
        "python/**/*.md",
        "tests/**/*.md",
    )
    for page in ROOT.glob(pattern)
    if not {".venv", "build"} & set(page.relative_to(ROOT).parts)
)


def links_of(text: str) -> list[str]:
    """Return where the links of a page lead that stay in this repository."""
    prose = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
    return re.findall(r"\]\((?!https://)([^)#]+)[^)]*\)", prose)


def test_every_link_leads_to_a_file() -> None:
    dead = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in PAGES
        for link in links_of(page.read_text(encoding="utf-8"))
        if not (page.parent / link).exists()
    ]
    assert dead == []


def test_links_of_a_page_are_found() -> None:
    text = "[a](b.md), [c](https://d), [e](f/g.md#h), `[i](j)`\n```\n[k](l)\n```\n"
    assert links_of(text) == ["b.md", "f/g.md"]


def test_no_page_has_a_gap_to_be_filled() -> None:
    gaps = [
        f"{page.relative_to(ROOT)}: {gap}"
        for page in PAGES
        for gap in re.findall(r"@[A-Z]+@|TODO|TBD", page.read_text(encoding="utf-8"))
    ]
    assert gaps == []


def test_every_test_that_reliability_names_exists() -> None:
    page = RELIABILITY.read_text(encoding="utf-8")
    named = set(re.findall(NAME_OF_A_TEST, page))
    assert len(named) > 40
    tests = ROOT / "tests"
    python = (path.read_text(encoding="utf-8") for path in (tests / "python").rglob("*.py"))
    cpp = (path.read_text(encoding="utf-8") for path in (tests / "cpp").rglob("*.cc"))
    there = set(re.findall(r"def (test_\w+)", "\n".join(python)))
    for suite, name in re.findall(
        r"^TEST(?:_[FP])?\((\w+),\s*(\w+)\)", "\n".join(cpp), re.MULTILINE
    ):
        there.add(f"{suite}.{name}")
    assert named - there == set()


def test_every_fault_that_reliability_lists_has_a_test() -> None:
    page = RELIABILITY.read_text(encoding="utf-8").partition("## Not shown yet")[0]
    faults = re.findall(r"^\| ([FTD]\d+) \|", page, re.MULTILINE)
    assert len(faults) > 20
    shown = {
        fault
        for fault, tests in re.findall(r"^- \*\*([FTD]\d+)\*\* (.*(?:\n  .*)*)", page, re.MULTILINE)
        if re.search(NAME_OF_A_TEST, tests)
    }
    assert [fault for fault in faults if fault not in shown] == []


def test_the_readme_names_models_of_the_families() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    heads = "Run|With experts|On CPUs only"
    rows = re.findall(rf"^- \*\*(?:{heads}):\*\* (.*)\.$", readme, re.MULTILINE)
    assert len(rows) == 3
    models = ", ".join(family.models for family in FAMILIES.values())
    listed = re.sub(r" and \[.*?\]\(.*?\)", "", "; ".join(rows))
    named = re.split(r"; |, | and ", listed)
    unknown = [name for name in named if not re.search(rf"\b{re.escape(name)}(?![.\w])", models)]
    assert unknown == []


def test_pages_count_the_planted_bugs() -> None:
    native, python = len(NATIVE), len(CATALOGUE_PYTHON)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"all {native + python} bugs that were planted" in readme
    users = (ROOT / "docs" / "exactness.md").read_text(encoding="utf-8")
    assert f"Each of {native + python} planted bugs" in users
    page = (ROOT / "docs" / "internals" / "exactness.md").read_text(encoding="utf-8")
    for count in (f"list {native} mistakes", f"lists {python} in", f"All {native + python} are"):
        assert count in page


def test_the_pictures_are_what_their_script_draws() -> None:
    script = ROOT / "docs" / "pictures" / "make.py"
    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
