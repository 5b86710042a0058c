"""Draws the charts of docs/benchmarks.md: rates by model, and an endless text over time.

python benchmarks/chart.py           # writes speed.svg and endurance.svg in docs/pictures
python benchmarks/chart.py --check   # says whether these files are what the figures give
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

from goals import LLAMA_CPP, OURS, decode_at
from machine import ROOT
from side_by_side_table import ENGINES, TITLES, rate

sys.path.append(str(ROOT / "docs" / "pictures"))
from canvas import Canvas

RESULTS = ROOT / "benchmarks" / "results"
PICTURES = ROOT / "docs" / "pictures"
MEASURE = decode_at(1024)
MODELS = (
    "smollm2",
    "qwen3-0.6b-Q4_0",
    "qwen3-0.6b-Q8_0",
    "llama-3.2-1b-Q4_0",
    "llama-3.2-1b-BF16",
)
LABELS = {
    OURS: OURS,
    LLAMA_CPP: LLAMA_CPP,
    ENGINES["OpenVINO"]: "OpenVINO",
    ENGINES["transformers"]: "transformers",
}

# Narrow and tall, so that the words stay legible when a phone shrinks the picture.
_WIDTH, _LEFT, _BAR, _STEP, _HEAD = 440, 118, 18, 22, 30
_LONGEST = 240  # of a group's fastest engine
_STYLE = """
  .ours { fill: #0969da; } .other { fill: #afb8c1; } .bold { font-weight: 600; }
  @media (prefers-color-scheme: dark) { .ours { fill: #2f81f7; } .other { fill: #57606a; } }
"""


def rates(figures: dict[str, Any]) -> dict[str, float | None]:
    """Return the rate of each engine, llama.cpp in its faster mode; None if it cannot run."""
    medians = figures["tokens/s, medians"][MEASURE]
    found: dict[str, float | None] = {name: medians.get(name) for name in LABELS}
    found[LLAMA_CPP] = max(rate for name, rate in medians.items() if name.startswith(LLAMA_CPP))
    return found


def read(file: str) -> Any:
    """Return the figures of one file below RESULTS."""
    return json.loads((RESULTS / file).read_text(encoding="utf-8"))


def speed() -> str:
    """Return the chart of rates."""
    group = _HEAD + len(LABELS) * _STEP + 10
    height = 66 + len(MODELS) * group + 22
    canvas = Canvas(_WIDTH, height, f"Tokens per second of each engine: {MEASURE} cached tokens")
    canvas.text(16, 30, "Decoding, tokens per second", kind="bold", size=17)
    canvas.text(16, 52, "1,024 cached tokens, Zen 4, 2 threads", kind="quiet", size=14)
    for index, model in enumerate(MODELS):
        found = rates(read(f"zen4/side_by_side-{model}-2.json"))
        fastest = max(rate for rate in found.values() if rate is not None)
        top = 66 + index * group
        canvas.text(16, top + 20, TITLES[model], kind="bold", size=15)
        for row, (name, value) in enumerate(found.items()):
            y = top + _HEAD + row * _STEP
            canvas.text(_LEFT - 8, y + 14, LABELS[name], size=14, at="end")
            width = 0 if value is None else round(_LONGEST * value / fastest, 1)
            if value is not None:
                canvas.box(_LEFT, y, width, _BAR, "ours" if name == OURS else "other")
            words = "cannot read this file" if value is None else rate(value)
            canvas.text(_LEFT + width + 7, y + 14, words, kind="" if value else "quiet", size=14)
    canvas.text(16, height - 14, "Each model has a scale of its own.", kind="quiet", size=13)
    return canvas.svg().replace("</style>", f"{_STYLE}</style>")


# Panels of an endless text: field of its stretches -> heading.
_PANELS = {
    "tokens": "Tokens written",
    "memory_mib": "Memory of the server, MiB",
    "longest_wait_ms": "Longest wait for text, ms",
    "perplexity": "Perplexity of the text",
}
_PLOT, _PANEL, _RIGHT = 96, 154, 424  # height of a plot; of a panel; where plots end
_ENGINES = ("sinkstream", "llama.cpp", "llama.cpp, context shift", "transformers", "vLLM", "Ollama")
_LINES = """
  .grid { stroke: #d1d9e0; } .bold { font-weight: 600; }
  .e0, .e1, .e2, .e3, .e4, .e5 { fill: none; stroke-width: 2; stroke-linejoin: round; }
  .e0 { stroke: #0969da; stroke-width: 3; } .e1 { stroke: #bc4c00; }
  .e2 { stroke: #bc4c00; stroke-dasharray: 5 3; } .e3 { stroke: #1a7f37; }
  .e4 { stroke: #8250df; } .e5 { stroke: #59636e; }
  @media (prefers-color-scheme: dark) {
    .grid { stroke: #3d444d; } .e0 { stroke: #58a6ff; } .e1, .e2 { stroke: #f0883e; }
    .e3 { stroke: #56d364; } .e4 { stroke: #bc8cff; } .e5 { stroke: #9198a1; }
  }
"""


def round_up(value: float) -> float:
    """Return the next number of 1, 2, 3, 4, 5 or 8 times a power of ten that is not smaller."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 3, 4, 5, 8, 10) if step * power >= value)


def endurance(figures: dict[str, Any]) -> str:
    """Return the chart of an endless text on several servers."""
    runs: dict[str, list[dict[str, Any]]] = figures["stretches"]
    top = 70 + 22 * len(runs)
    height = top + _PANEL * len(_PANELS) + 28
    canvas = Canvas(_WIDTH, height, "An endless text over time: tokens, memory, waits, perplexity")
    canvas.text(16, 30, "A text without end", kind="bold", size=17)
    threads = "1 thread" if figures["threads"] == 1 else f"{figures['threads']} threads"
    note = f"{figures['context']:,} tokens of context, {threads}"
    canvas.text(16, 52, note, kind="quiet", size=14)
    for row, name in enumerate(runs):
        y = 76 + row * 22
        canvas.through([(16, y - 5), (48, y - 5)], f"e{_ENGINES.index(name)}")
        canvas.text(58, y, name, size=14)
    for number, (field, title) in enumerate(_PANELS.items()):
        y = top + number * _PANEL
        canvas.text(16, y + 20, title, kind="bold", size=15)
        lines = {name: points(rows, field) for name, rows in runs.items()}
        panel(canvas, y + 38, lines, figures["minutes of each"])
    canvas.text(_RIGHT, height - 14, "minutes of each server", kind="quiet", size=13, at="end")
    return canvas.svg().replace("</style>", f"{_LINES}</style>")


def points(rows: Sequence[dict[str, Any]], field: str) -> list[tuple[float, float]]:
    """Return the minutes and values of the stretches that have a value."""
    return [(row["minutes"], row[field]) for row in rows if row[field] is not None]


def panel(
    canvas: Canvas, y: float, lines: dict[str, list[tuple[float, float]]], minutes: float
) -> None:
    """Draw one plot: its scale begins at 0, and its top is a round number."""
    highest = round_up(max((value for line in lines.values() for _, value in line), default=1))
    left = 70
    for share in (0, 0.5, 1):
        at = y + _PLOT * (1 - share)
        canvas.through([(left, at), (_RIGHT, at)], "grid")
        canvas.text(left - 8, at + 4.5, f"{share * highest:,g}", kind="quiet", size=13, at="end")
        x = left + share * (_RIGHT - left)
        side = "middle" if share < 1 else "end"
        canvas.text(x, y + _PLOT + 16, f"{share * minutes:g}", kind="quiet", size=13, at=side)
    for name, line in lines.items():
        placed = [
            (left + (_RIGHT - left) * at / minutes, y + _PLOT * (1 - value / highest))
            for at, value in line
        ]
        if placed:
            canvas.through(placed, f"e{_ENGINES.index(name)}")


CHARTS = {
    PICTURES / "speed.svg": speed,
    PICTURES / "endurance.svg": lambda: endurance(read("amx-207/endurance.json")),
}


def main() -> int:
    """Write the pictures; with `--check`, only say which differ."""
    found = {path: make() for path, make in CHARTS.items()}
    if "--check" not in sys.argv[1:]:
        for path, picture in found.items():
            path.write_text(picture, encoding="utf-8")
        return 0
    stale = [
        path
        for path, picture in found.items()
        if not path.exists() or path.read_text(encoding="utf-8") != picture
    ]
    for path in stale:
        print(f"{path.relative_to(ROOT)} differs. Run: python benchmarks/chart.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
