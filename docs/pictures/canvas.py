"""A few shapes of SVG, readable on light and on dark pages; standard library only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

# Every picture has its own background, so that it stays readable if the page's color does not match
# the viewer's preference.
STYLE = """
  text { font-family: ui-sans-serif, system-ui, "DejaVu Sans", sans-serif; fill: #1f2328; }
  .page { fill: #ffffff; stroke: #d1d9e0; }
  .sink { fill: #8250df; } .window { fill: #0969da; } .current { fill: #1a7f37; }
  .gone { fill: #ffffff; stroke: #c2cad3; stroke-dasharray: 3 2; }
  .unseen { fill: #eef1f4; } .empty { fill: #ffffff; stroke: #c2cad3; }
  .on { fill: #ffffff; } .quiet { fill: #59636e; }
  .line { stroke: #59636e; fill: none; } .tip { fill: #59636e; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .page { fill: #0d1117; stroke: #3d444d; }
    .sink { fill: #8957e5; } .window { fill: #1f6feb; } .current { fill: #238636; }
    .gone { fill: #0d1117; stroke: #4d555e; } .unseen { fill: #1c222a; }
    .empty { fill: #0d1117; stroke: #4d555e; }
    .on { fill: #ffffff; } .quiet { fill: #9198a1; }
    .line { stroke: #9198a1; } .tip { fill: #9198a1; }
  }
""".strip()


class Canvas:
    """Collects shapes and writes them as one SVG file. Coordinates are pixels from the top left."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.shapes: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """Draw a rectangle; `kind` is a class of STYLE."""
        self.shapes.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" '
            f'width="{width:g}" height="{height:g}" rx="3"/>'
        )

    def text(
        self, x: float, y: float, words: str, *, kind: str = "", size: int = 13, at: str = "start"
    ) -> None:
        """Write words whose baseline starts, centers or ends (`at`) at a point."""
        name = f' class="{kind}"' if kind else ""
        self.shapes.append(
            f'<text{name} x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{at}">'
            f"{escape(words)}</text>"
        )

    def cell(self, x: float, y: float, side: float, kind: str, words: str = "") -> None:
        """Draw a square with a short word in its middle."""
        self.box(x, y, side, side, kind)
        if words:
            filled = kind in ("sink", "window", "current")
            self.text(
                x + side / 2,
                y + side / 2 + 4.5,
                words,
                kind="on" if filled else "quiet",
                size=12,
                at="middle",
            )

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """Draw a straight arrow."""
        self.shapes.append(f'<path class="line" d="M{x1:g} {y1:g}L{x2:g} {y2:g}"/>')
        angle = math.degrees(math.atan2(y2 - y1, x2 - x1))
        self.shapes.append(
            f'<path class="tip" d="M0 0l-8 -3.5v7z" '
            f'transform="translate({x2:g} {y2:g}) rotate({angle:.1f})"/>'
        )

    def through(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        """Draw a line through points; `kind` is a class without a fill."""
        corners = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self.shapes.append(f'<path class="{kind}" d="M{corners}"/>')

    def brace(self, x1: float, x2: float, y: float, words: str) -> None:
        """Draw a bracket below [x1, x2] at height y, with words under its middle."""
        self.shapes.append(f'<path class="line" d="M{x1:g} {y:g}v6H{x2:g}v-6"/>')
        self.text((x1 + x2) / 2, y + 22, words, size=13, at="middle")

    def svg(self) -> str:
        """Return the complete file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img">'
        )
        page = (
            f'<rect class="page" x="0.5" y="0.5" width="{self.width - 1}" '
            f'height="{self.height - 1}" rx="8"/>'
        )
        return "\n".join(
            [
                head,
                f"<title>{escape(self.title)}</title>",
                f"<style>{STYLE}</style>",
                page,
                *self.shapes,
                "</svg>",
                "",
            ]
        )
