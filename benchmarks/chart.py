"""Draws the chart of docs/benchmarks.md: rates of the engines on one machine, model by model.

python benchmarks/chart.py           # writes docs/pictures/speed.svg
python benchmarks/chart.py --check   # says whether that file is what the figures give
"""

from __future__ import annotations

import json
import sys
from typing import Any

from goals import LLAMA_CPP, OURS, decode_at
from machine import ROOT
from side_by_side_table import ENGINES, TITLES, rate

sys.path.append(str(ROOT / "docs" / "pictures"))
from canvas import Canvas

FIGURES = ROOT / "benchmarks" / "results" / "zen4"
PICTURE = ROOT / "docs" / "pictures" / "speed.svg"
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


def draw() -> str:
    """Return the picture."""
    group = _HEAD + len(LABELS) * _STEP + 10
    height = 66 + len(MODELS) * group + 22
    canvas = Canvas(_WIDTH, height, f"Tokens per second of each engine: {MEASURE} cached tokens")
    canvas.text(16, 30, "Decoding, tokens per second", kind="bold", size=17)
    canvas.text(16, 52, "1,024 cached tokens, Zen 4, 2 threads", kind="quiet", size=14)
    for index, model in enumerate(MODELS):
        path = FIGURES / f"side_by_side-{model}-2.json"
        found = rates(json.loads(path.read_text(encoding="utf-8")))
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


def main() -> int:
    """Write the picture; with `--check`, only say whether it differs."""
    picture = draw()
    if "--check" not in sys.argv[1:]:
        PICTURE.write_text(picture, encoding="utf-8")
        return 0
    if PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == picture:
        return 0
    print(f"{PICTURE.relative_to(ROOT)} differs. Run: python benchmarks/chart.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
