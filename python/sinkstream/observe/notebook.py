"""What a notebook shows for an object: a small, self-contained piece of HTML."""

from __future__ import annotations

from collections.abc import Iterable

# The colours of the documentation's pictures. Each part is also named in the line below the bar.
_SINKS, _WINDOW, _FREE = "#8250df", "#0969da", "transparent"
_EVICTED = "repeating-linear-gradient(135deg,#8c959f 0 2px,transparent 2px 6px)"

# Evicted tokens take at most this share of a bar: there may be millions of them.
_EVICTED_SHARE = 0.3


def escaped(text: str) -> str:
    """Return text as HTML shows it."""
    from html import escape  # its table of entities takes 0.2 MB, which only notebooks need

    return escape(text)


def summary(title: str, facts: Iterable[str], body: str = "") -> str:
    """Return a title, a line of facts, and further HTML below."""
    return f"<div><b>{escaped(title)}</b> {escaped(' · '.join(facts))}{body}</div>"


def quotation(text: str) -> str:
    """Return text as it is, with its line breaks."""
    return f'<div style="white-space:pre-wrap;margin:4px 0">{escaped(text)}</div>'


def cache_bar(sinks: int, window: int, live: int, evicted: int) -> str:
    """Return a bar for a sequence's cache: sinks, what was evicted after them, and the window."""
    held = min(live, sinks)
    recent = live - held
    capacity = sinks + window
    gap = min(evicted, int(capacity * _EVICTED_SHARE / (1 - _EVICTED_SHARE)) + 1)
    parts = [
        (held, _SINKS),
        (gap, _EVICTED),
        (recent, _WINDOW),
        (capacity - live, _FREE),
    ]
    blocks = "".join(
        f'<span style="flex:{width} 0 {"3px" if width else 0};background:{colour}"></span>'
        for width, colour in parts
    )
    names = (
        f"{held} of {sinks} sinks · {evicted:,} evicted · {recent:,} of {window:,} window tokens"
    )
    return (
        '<div style="display:flex;height:12px;max-width:480px;border:1px solid #8c959f;'
        f'border-radius:3px;overflow:hidden;margin:4px 0">{blocks}</div>'
        f'<div style="font-size:85%;opacity:.8">{names}</div>'
    )


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 turn", "2,000 turns"."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def human_bytes(count: int) -> str:
    """Return a number of bytes in decimal units, such as "8.8 MB"."""
    size, units = float(count), ["bytes", "kB", "MB", "GB", "TB"]
    while size >= 999.95 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.0f} bytes" if units[0] == "bytes" else f"{size:.1f} {units[0]}"
