"""Turns a docstring in Google's style into Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Sections of entries, `name: text`, and sections of prose.
ENTRIES = {"Args": "Arguments", "Attributes": "Attributes", "Raises": "Raises", "Warns": "Warns"}
PROSE = ("Returns", "Yields")


def as_markdown(doc: str) -> str:
    """Return a docstring, as `inspect.getdoc` gives it, as Markdown."""
    return "\n\n".join(blocks(doc))


def first_line_of(doc: str) -> str:
    """Return the first paragraph in one line."""
    return with_backticks(" ".join(doc.partition("\n\n")[0].split()))


def blocks(doc: str) -> Iterator[str]:
    """Yield the paragraphs, lists and examples."""
    for title, lines in sections(doc):
        if title in ENTRIES:
            yield f"**{ENTRIES[title]}**\n\n" + "\n".join(map(item, entries(lines)))
        elif title in PROSE:
            yield f"**{title}** " + "\n\n".join(paragraphs(lines))
        elif title == "Example":
            yield "**Example**\n\n```pycon\n" + "\n".join(lines).strip("\n") + "\n```"
        elif text := "\n\n".join(paragraphs(lines)):
            yield text


def sections(doc: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the title of each section, "" for text without one, and its lines, not indented."""
    title, found = "", list[str]()
    for line in doc.splitlines():
        starts = re.fullmatch(r"(Args|Attributes|Raises|Warns|Returns|Yields|Example):", line)
        ends = title and line and not line.startswith(" ")
        if starts or ends:
            yield title, found
            title, found = (starts[1] if starts else ""), []
            if starts:
                continue
        found.append(line[4:] if title else line)
    yield title, found


def entries(lines: list[str]) -> Iterator[str]:
    """Yield each entry in one line, and each item of a list in it in another.

    Continuation lines are indented.
    """
    entry = ""
    for line in lines:
        if line and not line.startswith(" ") and entry:
            yield entry
            entry = ""
        text = line.strip()
        entry = f"{entry}\n  {text}" if text.startswith("- ") else f"{entry} {text}".strip()
    if entry:
        yield entry


def item(entry: str) -> str:
    """Return an entry, `name: text`, of a list."""
    name, _, text = entry.partition(": ")
    return f"- `{name}`: {with_backticks(text)}"


def paragraphs(lines: list[str]) -> Iterator[str]:
    """Yield paragraphs, each in one line; a list keeps its lines."""
    for paragraph in "\n".join(lines).split("\n\n"):
        if paragraph.strip():
            is_list = paragraph.lstrip().startswith("- ")
            text = paragraph.strip("\n") if is_list else " ".join(paragraph.split())
            yield with_backticks(text)


def with_backticks(text: str) -> str:
    """Escape what Markdown would take for markup, outside of code."""
    parts = re.split(r"(`[^`]*`)", text)
    parts[::2] = [re.sub(r"(\*|<|(?<!\w)_)(?=\S)", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)
