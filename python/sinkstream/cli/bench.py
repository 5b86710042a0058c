"""`sinkstream bench`: a model's prefill and decode speed on this machine, and its limit."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sinkstream import _core
from sinkstream.cli import common_options
from sinkstream.cli.common_options import load_model, with_model
from sinkstream.cli.terminal import is_terminal, progress_bar
from sinkstream.devices import processor_name
from sinkstream.errors import InvalidArgument, warn_caller
from sinkstream.model import Model
from sinkstream.streams.events import Token

_PROBE_BYTES = 512 << 20  # larger than any CPU cache
_PROMPT = 512
_FIRST_TOKEN_PROMPT = 16
_CACHED = (16, 1024)
_TOKENS = 64  # decoded in one measurement
_STEADY = 2  # the largest of all rounds over the smallest


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table: the median of all rounds, with the smallest and the largest."""

    name: str
    unit: str
    median: float
    smallest: float
    largest: float
    share_of_read: float | None = None
    """Weights and cache read per second, as a share of the plain read in the same rounds."""


@common_options.takes_bundles
def bench(
    model: common_options.ModelArgument = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object.")] = False,
    rounds: Annotated[int, typer.Option(help="Rounds; each round measures everything once.")] = 5,
    model_option: common_options.ModelPath = None,
    *,
    loading: common_options.Loading,
) -> int:
    """Measure prefill, decode and memory bandwidth. Close other programs first."""
    if rounds < 1:
        raise InvalidArgument(f"bench: `rounds` must be at least 1, but is {rounds}.")
    with load_model(with_model("bench", loading, model, model_option)) as loaded:
        with progress_bar("Rounds") as show:
            figures = measure(loaded, rounds, show)
        setting = {
            "model": loaded.path,
            "weight_bytes": loaded.capacity.weight_bytes,
            "weight_bytes_per_token": loaded.capacity.weight_bytes_per_token,
            "processor": processor_name(),
            **{key: value for key, value in loaded.runtime.items() if key != "served_by"},
            "evicted_tokens": loaded.stats()["evicted_tokens"],
        }
    warn_of_noise(figures)
    if as_json:
        found = {**setting, "rounds": rounds, "figures": [asdict(figure) for figure in figures]}
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        write(figures, setting)
    return 0


def prompt(model: Model, tokens: int) -> list[int]:
    """Return a prompt of `tokens` ids that are not all the same."""
    some = min(400, model.spec.vocab_size)
    return [i % some for i in range(tokens)]


def prefill_seconds(model: Model, ids: list[int]) -> float:
    """Return the seconds from submitting a prompt to its first generated token."""
    started = time.perf_counter()
    with model.stream(ids, max_tokens=1, temperature=0) as stream:
        stream.result()
    return time.perf_counter() - started


def decode_seconds(model: Model, ids: list[int], tokens: int) -> float:
    """Return the mean seconds per token, including sampling and delivery.

    Each token has a step of its own: what was measured before would be guessed. At least one token
    is decoded. The model must not run any other stream.
    """
    stamps = []
    with model.stream(
        ids, max_tokens=tokens + 1, ignore_eos=True, temperature=0, speculation=0
    ) as stream:
        for event in stream.events():
            if isinstance(event, Token):
                stamps.append(time.perf_counter())
    return (stamps[-1] - stamps[0]) / tokens


def _decode_rate(model: Model, ids: list[int]) -> float:
    return 1 / decode_seconds(model, ids, _TOKENS)


def warn_of_noise(figures: list[Figure]) -> None:
    """Warn if the rounds of a figure differ by more than a factor of two."""
    worst = max(figures, key=lambda figure: figure.largest / figure.smallest)
    if worst.largest > _STEADY * worst.smallest:
        warn_caller(
            f"bench: rounds should agree, but {worst.name} ranges from {worst.smallest:,.1f} to "
            f"{worst.largest:,.1f} {worst.unit}. Close other programs, and measure again."
        )


def measure(
    model: Model, rounds: int, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Figure]:
    """Measure everything `rounds` times, interleaved, so that a slow moment affects all equally.

    The model must not run any other stream. `progress` is called with (rounds done, all rounds).
    """
    threads = model.runtime["threads"]
    short, long = prompt(model, _FIRST_TOKEN_PROMPT), prompt(model, _PROMPT)
    first = f"time to first token, {_FIRST_TOKEN_PROMPT}-token prompt"
    prefill = f"prefill, {_PROMPT}-token prompt"
    read_rate = _core.probes.read_rate
    runs: dict[tuple[str, str], Callable[[], float]] = {
        ("plain read of memory", "GB/s"): lambda: read_rate(_PROBE_BYTES, threads) / 1e9,
        (first, "ms"): lambda: 1000 * prefill_seconds(model, short),
        (prefill, "tokens/s"): lambda: _PROMPT / prefill_seconds(model, long),
    }
    gigabytes: dict[str, float] = {}
    for cached in (min(cached, model.capacity.tokens) for cached in _CACHED):
        name = f"decode, {cached:,} cached tokens"
        runs[name, "tokens/s"] = partial(_decode_rate, model, prompt(model, cached))
        live = min(cached + _TOKENS // 2, model.capacity.tokens)
        gigabytes[name] = model.bytes_read_per_token(live) / 1e9
    found: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    prefill_seconds(model, short)  # warm-up: loads the program's own pages
    for done in range(rounds):
        progress(done, rounds)
        for key, run in runs.items():
            found[key].append(run())
    progress(rounds, rounds)
    read = statistics.median(found["plain read of memory", "GB/s"])
    return [
        Figure(
            name,
            unit,
            statistics.median(values),
            min(values),
            max(values),
            statistics.median(values) * gigabytes[name] / read if name in gigabytes else None,
        )
        for (name, unit), values in found.items()
    ]


def write(figures: list[Figure], setting: dict[str, object]) -> None:
    """Write a table to a terminal, or `name: value` lines elsewhere."""
    rows = [
        (
            figure.name,
            f"{figure.median:,.1f} {figure.unit}",
            f"{figure.smallest:,.1f} to {figure.largest:,.1f}",
            ""
            if figure.share_of_read is None
            else f"{figure.share_of_read:.0%} of memory bandwidth",
        )
        for figure in figures
    ]
    if not is_terminal(sys.stdout):
        sys.stdout.writelines(f"{name}: {value}\n" for name, value in setting.items())
        sys.stdout.writelines(
            f"{name}: {median} ({between}){share and ', ' + share}\n"
            for name, median, between, share in rows
        )
        return
    table = Table(title=" · ".join(str(value) for value in setting.values()), show_header=False)
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False, emoji=False).print(table)
