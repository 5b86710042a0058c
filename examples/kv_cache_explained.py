"""Why there is a KV cache, measured: the same tokens with and without it.

Without a cache, every new token recomputes all earlier ones: each step takes longer than the last,
and the total time grows with the square of the length. With a cache, a step reads the stored keys
and values, and the total time grows linearly.

    python examples/kv_cache_explained.py --tokens 200

prints a table and writes kv_cache_explained.png (which needs matplotlib).
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path
from typing import Any

import torch

import sinkstream
from sinkstream.basic import generate_text_basic, generate_text_basic_cache

PROMPT_IDS = [1, 2, 3, 4]  # any ids: the times do not depend on the text


class Stopwatch:
    """A model that records the time of each forward."""

    def __init__(self, model: sinkstream.Model) -> None:
        self.model = model
        self.seconds: list[float] = []

    def forward(self, ids: torch.Tensor, cache: Any = None) -> torch.Tensor:
        """Call the model's forward and record the time."""
        begin = time.perf_counter()
        logits = self.model.forward(ids, cache)
        self.seconds.append(time.perf_counter() - begin)
        return logits

    def new_cache(self, batch: int = 1) -> Any:
        """Return a new cache of the model."""
        return self.model.new_cache(batch)


def measure(model: sinkstream.Model, tokens: int) -> tuple[list[float], list[float]]:
    """Generate `tokens` tokens in both ways.

    Returns:
        The seconds of each step without a cache, and with one.
    """
    ids = torch.tensor([PROMPT_IDS])
    without, with_cache = Stopwatch(model), Stopwatch(model)
    expected = generate_text_basic(without, ids, tokens)
    found = generate_text_basic_cache(with_cache, ids, tokens)
    if not torch.equal(found, expected):
        sys.exit("kv_cache_explained: both ways must give the same tokens, but they differ.")
    return without.seconds, with_cache.seconds


def print_table(without: list[float], with_cache: list[float]) -> None:
    """Print the totals after 1, 2, 4, … tokens."""
    totals = list(zip(itertools.accumulate(without), itertools.accumulate(with_cache), strict=True))
    print("          without a cache        with a cache")
    print(" tokens   last step    total   last step    total   ratio of totals")
    shown = [2**power for power in range(len(totals).bit_length()) if 2**power < len(totals)]
    for count in [*shown, len(totals)]:
        slow, fast = totals[count - 1]
        print(
            f"{count:7,} {1e3 * without[count - 1]:8.1f} ms {slow:6.2f} s"
            f" {1e3 * with_cache[count - 1]:8.1f} ms {fast:6.2f} s {slow / fast:9.1f} x"
        )


def plot(without: list[float], with_cache: list[float], path: Path) -> None:
    """Plot the time per step and in total, and write a PNG file."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, (step, total) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for seconds, label in ((without, "everything recomputed"), (with_cache, "with a KV cache")):
        count = range(1, len(seconds) + 1)
        step.plot(count, [1e3 * second for second in seconds], label=label)
        total.plot(count, list(itertools.accumulate(seconds)), label=label)
    step.set(title="One step", xlabel="new tokens", ylabel="milliseconds", ylim=0)
    total.set(title="The whole text", xlabel="new tokens", ylabel="seconds", ylim=0)
    step.legend(loc="best")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """Load the model, measure, print, and plot."""
    parser = argparse.ArgumentParser(description="Measure generation with a KV cache and without.")
    parser.add_argument("model", nargs="?", help="a .gguf file, a folder or a name [smollm2]")
    parser.add_argument("--tokens", type=int, default=200, help="new tokens, at least 1 [200]")
    parser.add_argument("--png", type=Path, default=Path("kv_cache_explained.png"))
    options = parser.parse_args(arguments)
    if options.tokens < 1:
        parser.error(f"--tokens must be at least 1, but is {options.tokens}.")

    # The window holds everything: nothing is evicted, so both ways give the same tokens.
    window = len(PROMPT_IDS) + options.tokens
    with sinkstream.load(
        options.model, dtype="float32", kv_dtype="float32", window=window
    ) as model:
        without, with_cache = measure(model, options.tokens)
    print_table(without, with_cache)
    try:
        plot(without, with_cache, options.png)
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        print("No picture: matplotlib is missing. `pip install matplotlib` installs it.")
    else:
        print(f"The curves are in {options.png}.")


if __name__ == "__main__":
    main()
