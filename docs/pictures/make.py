"""Draws the pictures of concepts.md: `python docs/pictures/make.py` writes the four SVG files.

Nothing is placed by hand: the definition decides, with a few tokens instead of thousands, which are
sinks, in the window, or evicted.
"""

from __future__ import annotations

import sys
from pathlib import Path

from canvas import Canvas

FOLDER = Path(__file__).parent
SIDE = 26  # of a token's square


def first(t: int, sinks: int, window: int) -> int:
    """Return the oldest index in the window of token t."""
    return max(sinks, t - window + 1)


def kind(i: int, t: int, sinks: int, window: int) -> str:
    """Return what token i is to token t: current, sink, window, gone or empty (not yet written)."""
    if i == t:
        return "current"
    if i > t:
        return "empty"
    if i < sinks:
        return "sink"
    return "window" if i >= first(t, sinks, window) else "gone"


def position(i: int, t: int, sinks: int, window: int) -> int:
    """Return the rank of live token i among the live tokens at token t."""
    return i if i < sinks else sinks + i - first(t, sinks, window)


def draw_sink() -> Canvas:
    """Draw which keys each query sees: all of them, a window, or sinks and a window."""
    tokens, side, step = 14, 15, 17
    canvas = Canvas(820, 348, "What a query sees: everything, a window, or sinks and a window")
    for column, (title, note, sinks, window) in enumerate(
        [
            ("Dense", "grows without end", 0, tokens),
            ("Window only", "loses the first tokens", 0, 5),
            ("Sinks + window", "keeps S = 2 sinks and W = 5", 2, 5),
        ]
    ):
        left, top = 36 + column * 264, 70
        canvas.text(left, 32, title, size=16)
        canvas.text(left, 51, note, kind="quiet")
        for t in range(tokens):
            for i in range(t + 1):
                seen = kind(i, t, sinks, window)
                x, y = left + i * step, top + t * step
                canvas.box(x, y, side, side, "unseen" if seen == "gone" else seen)
    canvas.text(36, 330, "One row for each query, one column for each key.", kind="quiet")
    legend(canvas, 420, 318, ["sink", "window", "current", "unseen"])
    return canvas


def legend(canvas: Canvas, x: float, y: float, kinds: list[str]) -> None:
    """Draw small squares with their meaning."""
    words = {
        "sink": "sink",
        "window": "window",
        "current": "the token itself",
        "unseen": "not seen",
        "gone": "evicted",
    }
    for name in kinds:
        canvas.box(x, y, 13, 13, name)
        canvas.text(x + 19, y + 11.5, words[name])
        x += 44 + 6.6 * len(words[name])


def draw_window() -> Canvas:
    """Draw the live tokens at four moments of one stream."""
    sinks, window, shown, step = 2, 6, 20, 30
    moments = (1, 7, 11, 18)
    canvas = Canvas(820, 330, "The live tokens at four moments of a stream")
    canvas.text(28, 32, "Sinks stay, the window moves along", size=16)
    canvas.text(
        28, 51, f"S = {sinks} sinks, W = {window}: never more than 8 live tokens", kind="quiet"
    )
    left = 150
    for row, t in enumerate(moments):
        y = 74 + row * 46
        live = min(t + 1, sinks + window)
        canvas.text(28, y + 12, f"token {t}")
        canvas.text(28, y + 27, f"{live} live", kind="quiet", size=12)
        for i in range(shown):
            canvas.cell(left + i * step, y, SIDE, kind(i, t, sinks, window), str(i))
    t = moments[-1]
    bottom = 74 + (len(moments) - 1) * 46 + SIDE + 6
    begin = first(t, sinks, window)
    canvas.brace(left, left + (sinks - 1) * step + SIDE, bottom, "sinks")
    canvas.brace(left + sinks * step, left + (begin - 1) * step + SIDE, bottom, "evicted")
    canvas.brace(left + begin * step, left + t * step + SIDE, bottom, "window")
    legend(canvas, left, 294, ["sink", "window", "current", "gone"])
    return canvas


def draw_eviction() -> Canvas:
    """Draw how a new token overwrites one that has left the window."""
    sinks, window, rows = 2, 6, 4
    pages = -(-window // rows) + 1
    t = 21
    canvas = Canvas(820, 356, "A new token is written over one that has left the window")
    canvas.text(28, 32, "Eviction is one overwritten row", size=16)
    canvas.text(
        28,
        51,
        f"S = {sinks}, W = {window}, pages of {rows} rows here (64 in the product), "
        f"{pages} window pages",
        kind="quiet",
    )
    for column, now in enumerate((t, t + 1)):
        left, top = 28 + column * 410, 92
        canvas.text(left, top - 10, f"after token {now} was written", size=13)
        canvas.text(left, top + 18, "sinks")
        for i in range(sinks):
            canvas.cell(left + 90 + i * 32, top, SIDE, "sink", str(i))
        for page in range(pages):
            y = top + 46 + page * 40
            canvas.text(left, y + 18, f"page {page}")
            for row in range(rows):
                i = newest_in_row(now, page, row, sinks, rows, pages)
                canvas.cell(left + 90 + row * 32, y, SIDE, kind(i, now, sinks, window), str(i))
    new_page = (t + 1 - sinks) // rows % pages
    new_row = (t + 1 - sinks) % rows
    old = newest_in_row(t, new_page, new_row, sinks, rows, pages)
    y = 92 + 46 + new_page * 40 + SIDE / 2
    canvas.arrow(28 + 90 + rows * 32 + 4, y, 430, y)
    canvas.text(
        28 + 90 + rows * 32 + 8, y - 8, f"{t + 1} takes the row of {old}", kind="quiet", size=12
    )
    canvas.text(28, 292, "Everything else stays where it is. Nothing is moved or rotated again.")
    legend(canvas, 28, 318, ["sink", "window", "current", "gone"])
    return canvas


def newest_in_row(now: int, page: int, row: int, sinks: int, rows: int, pages: int) -> int:
    """Return the index of the last token up to `now` that was written to a row of a page."""
    return max(
        i
        for i in range(sinks, now + 1)
        if (i - sinks) % rows == row and (i - sinks) // rows % pages == page
    )


def draw_position() -> Canvas:
    """Draw the index in the stream above the position in the cache."""
    sinks, window, t, step = 2, 6, 18, 38
    canvas = Canvas(820, 330, "A token's index in the stream and its position in the cache")
    canvas.text(28, 32, "Positions count the live tokens, not the text", size=16)
    canvas.text(28, 51, f"S = {sinks}, W = {window}, token {t} is being computed", kind="quiet")
    left, top, below = 28, 96, 196
    canvas.text(left, top - 12, "index in the stream")
    for i in range(t + 1):
        canvas.cell(left + i * step, top, SIDE, kind(i, t, sinks, window), str(i))
    live = [i for i in range(t + 1) if kind(i, t, sinks, window) != "gone"]
    shift = first(t, sinks, window) - sinks
    for i in live:
        rank = position(i, t, sinks, window)
        from_x = left + i * step + SIDE / 2
        to_x = left + rank * step + SIDE / 2
        canvas.arrow(from_x, top + SIDE + 4, to_x, below - 4)
        canvas.cell(left + rank * step, below, SIDE, kind(i, t, sinks, window), str(rank))
    canvas.text(left + len(live) * step + 6, below + 18, "position in the cache")
    canvas.text(
        left,
        262,
        f"The whole window is shifted by the same {shift}, so differences inside it stay.",
    )
    canvas.text(
        left,
        283,
        f"Only the distance to the sinks changes: hence one query at index {t} for the window and "
        f"one at position {position(t, t, sinks, window)} for the sinks.",
        size=12,
    )
    legend(canvas, left, 302, ["sink", "window", "current", "gone"])
    return canvas


PICTURES = {
    "sink.svg": draw_sink,
    "window.svg": draw_window,
    "eviction.svg": draw_eviction,
    "position.svg": draw_position,
}


def main() -> int:
    """Write the pictures; with `--check`, only print the files that differ from them."""
    drawn = {name: draw().svg() for name, draw in PICTURES.items()}
    if "--check" not in sys.argv[1:]:
        for name, svg in drawn.items():
            (FOLDER / name).write_text(svg, encoding="utf-8")
        return 0
    stale = [n for n, svg in drawn.items() if (FOLDER / n).read_text(encoding="utf-8") != svg]
    for name in stale:
        print(f"{name} is not what make.py draws. Run: python docs/pictures/make.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
