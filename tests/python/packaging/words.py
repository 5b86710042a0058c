"""Finds phrases in texts, also where they are broken across lines, and in the names of tests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

# What stands for a space of a phrase: blanks; or a line's end, with what the next line begins with:
# the sign of a comment, a quotation mark of a string that continues, a bar of a table.
_SPACE = r"""(?:[ \t]*["']?[ \t]*\\?\n[ \t]*(?:(?://+|\#+|\*|>|\|)[ \t]*)?(?:[rf]?["'])?|[ \t]+)"""
_TEST = re.compile(
    r"\bdef (test_\w+)|\bTEST(?:_[FP])?\(\s*(\w+),\s*(\w+)|\bTYPED_TEST\w*\(\s*\w+,\s*(\w+)"
)


@dataclass(frozen=True)
class Phrase:
    """A regular expression, in which a space is any white space, and what to say instead.

    What `allowed` matches is no finding.
    """

    pattern: str
    instead: str
    allowed: str = ""

    def lines(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield line and words of each place where a text has the phrase."""
        if self.allowed:
            text = _compiled(self.allowed).sub(lambda found: re.sub(r"\S", " ", found[0]), text)
        for found in _compiled(self.pattern).finditer(text):
            yield text.count("\n", 0, found.start()) + 1, re.sub(_SPACE, " ", found[0])


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(" ", _SPACE), re.IGNORECASE)


def names_of_tests(text: str) -> str:
    """Return the text with nothing left but names of tests, as words, on their lines."""
    lines = [""] * (text.count("\n") + 1)
    for found in _TEST.finditer(text):
        words = " ".join(name for name in found.groups() if name)
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_", " ", words)
        lines[text.count("\n", 0, found.start())] += f" ; {words}"
    return "\n".join(lines)


def sources_of_notebook(text: str) -> str:
    """Return a notebook's text without outputs, each line where the file has it."""
    kept = {
        line
        for cell in json.loads(text)["cells"]
        for source in cell["source"]
        for line in (json.dumps(source), json.dumps(source, ensure_ascii=False))
    }
    lines = text.split("\n")
    return "\n".join(line if line.strip().rstrip(",") in kept else "" for line in lines)


def findings(file: str, text: str, phrases: tuple[Phrase, ...]) -> list[str]:
    """Return a sentence for each place where a file has a phrase."""
    if file.endswith(".ipynb"):
        text = sources_of_notebook(text)
    names = names_of_tests(text) if file.endswith((".py", ".cc")) else ""
    return [
        f"{file}:{line}: {words!r}: say {phrase.instead}"
        for phrase in phrases
        for part in (text, names)
        for line, words in phrase.lines(part)
    ]
