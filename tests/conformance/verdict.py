"""Compares how each test of a suite ended with how it is listed to end. Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

Outcome = Literal["passed", "failed", "skipped"]
KINDS = ("different", "waiting", "not_ours")
"""Why a test may fail: our answer differs on purpose, a feature has not been written, or the test
is about a feature of the other server that ours does not have."""


@dataclass(frozen=True, slots=True)
class Listed:
    """Tests that are expected to fail."""

    kind: str
    reason: str
    tests: tuple[str, ...]
    """Ids; * stands for any characters."""


@dataclass(slots=True)
class Verdict:
    """What a run has shown."""

    passed: int = 0
    skipped: int = 0
    by_kind: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    by_reason: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    """Sentences; none if all is as listed."""

    @property
    def run(self) -> int:
        """Return how many tests have run."""
        return self.passed + self.skipped + sum(self.by_kind.values())


def read_list(path: Path) -> list[Listed]:
    """Return what a file lists."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    unknown = set(content) - set(KINDS)
    if unknown:
        raise ValueError(f"{path.name}: {sorted(unknown)} are not among {KINDS}.")
    return [
        Listed(kind, entry["reason"], tuple(entry["tests"]))
        for kind in KINDS
        for entry in content.get(kind, [])
    ]


def judge(outcomes: Mapping[str, Outcome], listed: list[Listed]) -> Verdict:
    """Compare outcomes with the list.

    A fault is a failure that is not listed, a listed test that passes, and a listed test that does
    not exist or that another line lists as well.
    """
    verdict = Verdict()
    entries = {pattern: entry for entry in listed for pattern in entry.tests}
    unused = set(entries)
    for name, outcome in sorted(outcomes.items()):
        found = [pattern for pattern in entries if matches(name, pattern)]
        unused -= set(found)
        if len(found) > 1:
            verdict.faults.append(f"{name} is listed more than once: {', '.join(found)}.")
        if outcome == "failed" and found:
            entry = entries[found[0]]
            verdict.by_kind[entry.kind] += 1
            verdict.by_reason[entry.reason] = verdict.by_reason.get(entry.reason, 0) + 1
        elif outcome == "failed":
            verdict.faults.append(f"{name} fails and is not listed.")
        elif found and outcome == "passed":
            verdict.faults.append(f"{name} is listed as {entries[found[0]].kind}, but passes.")
        elif outcome == "skipped":
            verdict.skipped += 1
        else:
            verdict.passed += 1
    verdict.faults += [f"{pattern} is listed, but there is no such test." for pattern in unused]
    return verdict


def matches(name: str, pattern: str) -> bool:
    """Return whether a pattern means a test; brackets are the test's own, not a set."""
    return fnmatchcase(name, pattern.replace("[", "[[]"))
