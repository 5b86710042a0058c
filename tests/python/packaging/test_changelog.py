"""The changelog has the form of Keep a Changelog, and its newest release is this version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
SECTIONS = ["Added", "Changed", "Performance", "Fixed", "Removed"]


def headings(level: int, text: str) -> list[str]:
    return re.findall(rf"^{'#' * level} (.*)$", text, re.MULTILINE)


def test_the_newest_release_is_the_version_of_pyproject() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    unreleased, newest, *_ = headings(2, CHANGELOG)
    assert unreleased == "Unreleased"
    assert re.fullmatch(rf"{re.escape(project['version'])} - \d{{4}}-\d\d-\d\d", newest)


def test_a_release_has_known_sections_once_and_in_order() -> None:
    for release in CHANGELOG.split("\n## ")[1:]:
        found = headings(3, release)
        assert found == [name for name in SECTIONS if name in found], release.partition("\n")[0]


def test_what_was_released_has_one_line_for_a_change_and_no_commits() -> None:
    for release in CHANGELOG.split("\n## ")[2:]:
        assert re.findall(r"^ +\S.*$", release, re.MULTILINE) == []  # continued lines
        assert re.findall(r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}\b", release) == []
