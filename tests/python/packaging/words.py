"""Finds phrases in texts, also where they are broken across lines, and in the names of code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

# What stands for a space of a phrase: blanks; or a line's end, with what the next line begins with:
# the sign of a comment, a quotation mark of a string that continues, a bar of a table.
_SPACE = r"""(?:[ \t]*["']?[ \t]*\\?\n[ \t]*(?:(?://+|\#+|\*|>|\|)[ \t]*)?(?:[rf]?["'])?|[ \t]+)"""
_CODE = (".py", ".pyi", ".h", ".cc", ".inl", ".cu", ".cuh", ".js")
_NAME = re.compile(r"[A-Za-z_]\w*")
_JOINT = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_")
# Comments, strings, and tests, whose names are sentences: no variables, functions or types.
_STRING = r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
_TEST = r"\bdef test_\w+|\bTEST(?:_[FP])?\(\s*\w+,\s*\w+|\bTYPED_TEST\w*\(\s*\w+,\s*\w+"
_PROSE = {
    True: re.compile(rf"#[^\n]*|\"\"\".*?\"\"\"|'''.*?'''|{_STRING}|{_TEST}", re.DOTALL),
    False: re.compile(rf"//[^\n]*|/\*.*?\*/|{_STRING}|{_TEST}", re.DOTALL),
}


@dataclass(frozen=True)
class Phrase:
    """A regular expression, in which a space is any white space, and what to say instead.

    What `allowed` matches is no finding, nor is anything in the files and folders `allowed_in`.
    """

    pattern: str
    instead: str
    allowed: str = ""
    allowed_in: tuple[str, ...] = ()
    is_name: bool = False
    """Whether it is only forbidden as a word of the name of a variable, function or type."""

    def lines(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield line and words of each place where a text has the phrase."""
        if self.allowed:
            text = _compiled(self.allowed).sub(_blank, text)
        for found in _compiled(self.pattern).finditer(text):
            yield text.count("\n", 0, found.start()) + 1, re.sub(_SPACE, " ", found[0])


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern.replace(" ", _SPACE), re.IGNORECASE)


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"\S", " ", found[0])


def _one_of(phrases: tuple[Phrase, ...]) -> re.Pattern[str]:
    return _compiled("|".join(f"(?:{phrase.pattern})" for phrase in phrases))


class Phrases:
    """Phrases to look for in many files.

    Most files have none of them, so one expression for all is tried first; and most names have been
    seen before.
    """

    def __init__(self, *phrases: Phrase) -> None:
        self._for_text = tuple(phrase for phrase in phrases if not phrase.is_name)
        self._in_text, self._in_name = _one_of(self._for_text), _one_of(phrases)
        self._phrases = phrases
        self._names: dict[str, str] = {}  # the words of each name that may have a phrase, or ""

    def __iter__(self) -> Iterator[Phrase]:
        """Yield each phrase."""
        return iter(self._phrases)

    def findings(self, file: str, text: str) -> list[str]:
        """Return a sentence for each place where a file has a phrase."""
        if file.endswith(".ipynb"):
            text = sources_of_notebook(text)
        found = [
            *self._of_text(text),
            *(self._of_names(file, text) if file.endswith(_CODE) else ()),
        ]
        return [
            f"{file}:{line}: {words!r}: say {phrase.instead}"
            for phrase, line, words in found
            if not file.startswith(phrase.allowed_in)
        ]

    def _of_text(self, text: str) -> Iterator[tuple[Phrase, int, str]]:
        if self._in_text.search(text):
            for phrase in self._for_text:
                yield from ((phrase, *found) for found in phrase.lines(text))

    def _of_names(self, file: str, text: str) -> Iterator[tuple[Phrase, int, str]]:
        """Yield what names have: those of several words everywhere, those of one in code only."""
        if not any(map(self._words, set(_NAME.findall(text)))):
            return
        code = _PROSE[file.endswith((".py", ".pyi"))].sub(_blank, text)
        for source, is_name in ((text, False), (code, True)):
            for found in _NAME.finditer(source):
                words = self._words(found[0])
                if not words or (words == found[0] and not is_name):  # `_of_text` has seen it
                    continue
                line = text.count("\n", 0, found.start()) + 1
                for phrase in self._phrases:
                    if phrase.is_name == is_name:
                        yield from ((phrase, line, said) for _, said in phrase.lines(words))

    def _words(self, name: str) -> str:
        """Return the words of a name that may have a phrase; none of other names."""
        if name not in self._names:
            words = _JOINT.sub(" ", name)
            self._names[name] = words if self._in_name.search(words) else ""
        return self._names[name]


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
