"""Measure the cost of a bounded cache: perplexity over long texts, and recall by distance.

from sinkstream.evaluate import perplexity

for method in ("sinks", "window", "dense"):
    print(method, perplexity(model, text, method=method).perplexity)
"""

from __future__ import annotations

from sinkstream.evaluate.plan import METHODS
from sinkstream.evaluate.plots import plot_cost, plot_perplexity, plot_recall
from sinkstream.evaluate.recall import needle, stream_eval
from sinkstream.evaluate.recall_result import Answer, AtDistance, Recall, RecallResult
from sinkstream.evaluate.recall_tasks import Line, Question, stream_eval_lines
from sinkstream.evaluate.result import Difference, PerplexityResult, compare
from sinkstream.evaluate.scoring import perplexity

__all__ = [
    "METHODS",
    "Answer",
    "AtDistance",
    "Difference",
    "Line",
    "PerplexityResult",
    "Question",
    "Recall",
    "RecallResult",
    "compare",
    "needle",
    "perplexity",
    "plot_cost",
    "plot_perplexity",
    "plot_recall",
    "stream_eval",
    "stream_eval_lines",
]
