"""Draws a terminal session as one animated SVG: CSS steps, no scripts, no fonts from elsewhere.

Lines that no longer change are written once, on a long sheet that scrolls. What still changes is
drawn over it, in a strip of frames that moves by one frame at a time. Both animations change only
in steps, so every picture that is visible is a screen that the terminal showed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

CELL, LINE = 8.43, 19  # of a character, at 14 pixels: every system's monospace font fits in it
MARGIN, PAD = 16, 8
TITLE, GAUGE = 34, 50  # heights above and below the screen
BAR = 232  # width of a full cache
HOLD_S = 4.0  # how long the last frame stays

# Dark on light and on dark pages, as a terminal is.
STYLE = """
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  fill: #e6edf3; white-space: pre; }
.page { fill: #0d1117; stroke: #4d555e; } .cover { fill: #0d1117; }
.rule { stroke: #3d444d; } .quiet { fill: #9198a1; }
.free { fill: #1c222a; } .sink { fill: #8957e5; } .window { fill: #1f6feb; }
.on-green { fill: #3fb950; } .black { fill: #0d1117; }
""".strip()


@dataclass(frozen=True)
class Run:
    """Neighboring characters of one style; colors are classes of STYLE, "" the terminal's own."""

    text: str
    color: str = ""
    ground: str = ""


Row = tuple[Run, ...]


@dataclass(frozen=True)
class Frame:
    """What the terminal showed from a moment on, and what it said of the cache."""

    at_s: float
    scrolled: int  # lines that have left at the top
    rows: tuple[Row, ...]
    live: int
    evicted: int


@dataclass(frozen=True)
class Caption:
    """What is written around the screen."""

    title: str  # read by screen readers
    command: str
    note: str
    sinks: int
    capacity: int


def draw_film(frames: Sequence[Frame], caption: Caption, columns: int = 80) -> str:
    """Return the SVG file that plays the frames at their own times, in a loop."""
    frames = distinct(frames)
    sheet = finished_rows(frames)
    inside, lines = round(columns * CELL), len(frames[0].rows) * LINE
    width, height = inside + 2 * MARGIN, TITLE + PAD + lines + PAD + GAUGE
    # Without animations, a viewer shows the last frame.
    sheet_at = [(0, -LINE * frame.scrolled) for frame in frames]
    strip_at = [(-width * number, 0) for number in range(len(frames))]
    pictures = [
        f'<g transform="translate({width * number})">{changing_rows(frame, sheet)}'
        f'<g transform="translate(0,{lines + PAD})">{gauge(frame, caption, inside)}</g></g>'
        for number, frame in enumerate(frames)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-labelledby="title" '
            'xml:space="preserve">',
            f'<title id="title">{escape(caption.title)}</title>',
            f"<style>{STYLE}",
            animation("sheet", sheet_at, frames),
            animation("strip", strip_at, frames),
            "@media (prefers-reduced-motion: reduce) { .sheet, .strip { animation: none; } }",
            "</style>",
            "<defs>",
            f'<path id="cover" class="cover" d="M0 0h{inside}v{lines}H0z"/>',
            f'<g id="full">{bar(caption.capacity, caption)}</g>',
            f'<clipPath id="screen"><path d="M0 0h{inside}v{lines}H0z"/></clipPath>',
            f'<clipPath id="inside"><path d="M0 0h{inside}v{height - TITLE - PAD - 1}H0z"/>'
            "</clipPath>",
            "</defs>",
            f'<rect class="page" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>',
            f'<text x="{MARGIN}" y="22"><tspan class="quiet">$ </tspan>'
            f"{escape(caption.command)}</text>",
            f'<text class="quiet" x="{width - MARGIN}" y="22" text-anchor="end">'
            f"{escape(caption.note)}</text>",
            f'<g transform="translate({MARGIN},{TITLE + PAD})">',
            f'<g clip-path="url(#screen)"><g class="sheet" transform="{move(sheet_at[-1])}">',
            *(draw_row(row, number) for number, row in enumerate(sheet) if row),
            "</g></g>",
            f'<g clip-path="url(#inside)"><g class="strip" transform="{move(strip_at[-1])}">',
            *pictures,
            "</g></g>",
            "</g>",
            f'<path class="rule" d="M1 {TITLE}.5H{width - 1}M1 {height - GAUGE}.5H{width - 1}"/>',
            "</svg>",
            "",
        ]
    )


def distinct(frames: Sequence[Frame]) -> list[Frame]:
    """Return the frames without those that show the same as the frame before."""
    kept = [frames[0]]
    for frame in frames[1:]:
        before = kept[-1]
        if (frame.scrolled, frame.rows, frame.live, frame.evicted) != (
            before.scrolled,
            before.rows,
            before.live,
            before.evicted,
        ):
            kept.append(frame)
    return kept


def finished_rows(frames: Sequence[Frame]) -> list[Row]:
    """Return every line in its last state, from the first line of the session to its end."""
    sheet: dict[int, Row] = {}
    for frame in frames:
        for number, row in enumerate(frame.rows, start=frame.scrolled):
            sheet[number] = row
    return [sheet.get(number, ()) for number in range(max(sheet) + 1)]


def changing_rows(frame: Frame, sheet: Sequence[Row]) -> str:
    """Draw the rows of a frame from the first that differs from the sheet, over a cover."""
    final = sheet[frame.scrolled : frame.scrolled + len(frame.rows)]
    pairs = zip(frame.rows, final, strict=True)
    first = next((number for number, (now, then) in enumerate(pairs) if now != then), None)
    if first is None:
        return ""
    rows = (draw_row(row, number) for number, row in enumerate(frame.rows) if number >= first)
    return f'<use href="#cover" y="{first * LINE}"/>{"".join(rows)}'


def draw_row(row: Row, number: int) -> str:
    """Draw a row of the screen or of the sheet."""
    drawn, column = [], 0
    y = number * LINE
    for run in row:
        x, width = column * CELL, len(run.text) * CELL
        where = f' x="{x:.0f}"' if column else ""
        column += len(run.text)
        if run.ground:
            drawn.append(
                f'<rect class="{run.ground}"{where} y="{y}" width="{width:.0f}" height="{LINE}"/>'
            )
            where += f' textLength="{width:.0f}"'  # fills its ground in any font
        name = f' class="{run.color}"' if run.color else ""
        if run.text.strip():
            drawn.append(f'<text{name}{where} y="{y + 14}">{escape(run.text, quote=False)}</text>')
    return "".join(drawn)


def gauge(frame: Frame, caption: Caption, width: int) -> str:
    """Draw the cache as a bar, and the count of what has left it."""
    full = frame.live == caption.capacity
    return (
        '<use href="#full"/>' if full else bar(frame.live, caption)
    ) + f'<text x="{width}" y="30" text-anchor="end">evicted {frame.evicted:,}</text>'


def bar(live: int, caption: Caption) -> str:
    """Draw the bar: purple sinks, blue window, and what is still free."""
    left, scale = 54, BAR / caption.capacity
    sinks = min(live, caption.sinks) * scale
    rest = max(0, live - caption.sinks) * scale
    return (
        f'<text class="quiet" y="30">cache</text>'
        f'<rect class="free" x="{left}" y="19" width="{BAR}" height="14"/>'
        f'<rect class="sink" x="{left}" y="19" width="{sinks:.1f}" height="14"/>'
        f'<rect class="window" x="{left + sinks:.1f}" y="19" width="{rest:.1f}" height="14"/>'
        f'<text x="{left + BAR + 12}" y="30">{live} of {caption.capacity} tokens</text>'
    )


def animation(name: str, offsets: Sequence[tuple[int, int]], frames: Sequence[Frame]) -> str:
    """Return the CSS that moves the elements of a class to each offset when its frame begins."""
    begin = frames[0].at_s
    length_s = frames[-1].at_s - begin + HOLD_S
    steps = [
        f"{100 * (frame.at_s - begin) / length_s:.2f}%{{transform:{move(offset, 'px')}}}"
        for frame, offset, before in zip(frames, offsets, [None, *offsets[:-1]], strict=True)
        if offset != before
    ]
    return (
        f".{name} {{ animation: {name} {length_s:.2f}s step-end infinite; }}\n"
        f"@keyframes {name} {{{''.join(steps)}}}"
    )


def move(offset: tuple[int, int], unit: str = "") -> str:
    """Return the transform to an offset; CSS needs a unit, an attribute must not have one."""
    return f"translate({offset[0]}{unit},{offset[1]}{unit})"
