"""How much faster replies are with guessed tokens, and that they are the same replies.

    python benchmarks/speculation_bench.py [--model smollm2] [--threads 2] [--rounds 3]

Each task is done with `speculation=0` and with the default, alternately, in one process; the ids
and the log-probabilities of the two must be equal. The rate is that of the reply's tokens after the
first one. Every task begins with a model that has seen nothing: what earlier rounds said would be
guessed otherwise. In the report: the median ratio of the rates, the smallest and the largest, and
the share of the guesses that were right. SINKSTREAM_KERNELS names another kernel table.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.row import Row, median_row, table
from machine import report

import sinkstream

PROSE = Path(__file__).resolve().parents[1] / "tests" / "data" / "prose.txt"
_LIST = {
    "type": "array",
    "minItems": 12,
    "maxItems": 12,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "country": {"type": "string", "maxLength": 20},
            "length_in_kilometres": {"type": "integer", "minimum": 1, "maximum": 9999},
            "flows_into": {"enum": ["sea", "lake", "river"]},
        },
        "required": ["name", "country", "length_in_kilometres", "flows_into"],
        "additionalProperties": False,
    },
}


@dataclass(frozen=True)
class Task:
    """What is asked, and the least ratio that drafts should reach."""

    ask: Callable[[str], str]
    options: dict[str, Any]
    at_least: float
    streams: int = 1
    predicts: bool = False
    """Whether the request says that the reply may be the text."""


_EDIT = Task(
    lambda text: f"Repeat this text with its spelling corrected:\n\n{text}",
    {"temperature": 0, "max_tokens": 400},
    2.0,
)
TASKS = {
    "prose, temperature 0.8": Task(
        lambda _: "Tell a long story about a lighthouse keeper who finds a logbook.",
        {"temperature": 0.8, "max_tokens": 400},
        0.98,
    ),
    "a summary": Task(
        lambda text: f"Summarize this text in its own words:\n\n{text}",
        {"temperature": 0.3, "max_tokens": 300},
        1.0,
    ),
    "an edit": _EDIT,
    "an edit with a prediction": replace(_EDIT, predicts=True),
    "JSON under a schema": Task(
        lambda _: "List twelve rivers as JSON.",
        {"temperature": 0.3, "max_tokens": 500, "schema": _LIST},
        1.5,
    ),
    "32 stories at once": Task(
        lambda _: "Tell a story about a river.",
        {"temperature": 0.8, "max_tokens": 60},
        0.99,
        streams=32,
    ),
}


@dataclass
class Found:
    """The rounds of a task."""

    ratios: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    draft_tokens: int = 0
    accepted_tokens: int = 0
    generated_tokens: int = 0


def run(model: sinkstream.Model, task: Task, text: str, seed: int, drafts: bool) -> Any:
    """Do a task; return its rate, and its results."""
    options = dict(task.options)
    if not drafts:
        options["speculation"] = 0
    elif task.predicts:
        options["prediction"] = text
    messages = [{"role": "user", "content": task.ask(text)}]
    streams = [
        model.stream(messages, seed=seed + i, ignore_eos="schema" not in options, **options)
        for i in range(task.streams)
    ]
    results, first = [], None
    for stream in streams:
        for _ in stream:
            first = first or time.perf_counter()
        results.append(stream.result())
    assert first is not None
    tokens = sum(len(result.token_ids) for result in results) - len(results)
    return tokens / (time.perf_counter() - first), results


def measure(given: argparse.Namespace, task: Task, text: str) -> Found:
    """Do a task with and without drafts, and compare."""
    found = Found()
    for number in range(given.rounds):
        outcomes = {}
        for drafts in ((False, True), (True, False))[number % 2]:
            with sinkstream.load(
                given.model, window=2044, threads=given.threads, max_sequences=task.streams
            ) as model:
                model.generate("Hello", max_tokens=20, speculation=0)
                outcomes[drafts] = run(model, task, text, 100 * number, drafts)
        (plain, without), (fast, guessed) = outcomes[False], outcomes[True]
        for one, other in zip(without, guessed, strict=True):
            if (one.token_ids, one.logprobs) != (other.token_ids, other.logprobs):
                raise SystemExit("a reply with drafts differs from the one without")
        found.ratios.append(fast / plain)
        found.rates.append(fast)
        for result in guessed:
            found.draft_tokens += result.stats.draft_tokens
            found.accepted_tokens += result.stats.accepted_tokens
            found.generated_tokens += result.stats.generated_tokens
    return found


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    given = parser.parse_args()
    text = PROSE.read_text()[:1500]
    rows: list[Row] = []
    figures = {}
    for name in given.tasks:
        found = measure(given, TASKS[name], text)
        rows.append(median_row(name, found.ratios, "×", at_least=TASKS[name].at_least))
        figures[name] = {
            "ratios": [round(ratio, 3) for ratio in found.ratios],
            "tokens/s": round(statistics.median(found.rates), 1),
            "tokens per step": round(
                found.generated_tokens / max(found.generated_tokens - found.accepted_tokens, 1), 2
            ),
            "drafted": found.draft_tokens,
            "accepted": found.accepted_tokens,
        }
        print(name, figures[name], file=sys.stderr, flush=True)
    print("\n".join(table(rows)), file=sys.stderr)
    kernels = os.environ.get("SINKSTREAM_KERNELS")
    model = Path(given.model).stem + (f"-{kernels}" if kernels else "")
    name = f"speculation-{model}-{given.threads}"
    facts = {"threads": given.threads, "rounds": given.rounds, "tasks": figures}
    facts |= {"kernels": kernels} if kernels else {}
    report(name, facts | {"rows": [row.as_dict() for row in rows]})


if __name__ == "__main__":
    main()
