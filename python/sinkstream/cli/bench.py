"""`sinkstream bench`: how fast a model reads and writes on this machine, and what bounds it."""

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
from sinkstream.cli import options
from sinkstream.cli.info import processor_name
from sinkstream.cli.loading import load_model
from sinkstream.cli.terminal import is_terminal
from sinkstream.errors import InvalidArgument
from sinkstream.model import Model
from sinkstream.streams.events import Token

_PROBE_BYTES = 512 << 20  # more than any cache holds
_PROMPT = 512
_FIRST_TOKEN_PROMPT = 16
_CACHED = (16, 1024)
_TOKENS = 64  # of one measurement


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table: medians of all rounds, with the smallest and the largest."""

    name: str
    unit: str
    median: float
    smallest: float
    largest: float
    share_of_read: float | None = None
    """Bytes of weights and cache that a token reads, by the plain read of the same rounds."""


@options.takes_loading
def bench(
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object.")] = False,
    rounds: Annotated[int, typer.Option(help="Rounds; each measures everything once.")] = 5,
    *,
    loading: options.Loading,
) -> int:
    """Measure prompts, tokens and the machine's memory; close other programs first."""
    if rounds < 1:
        raise InvalidArgument(f"bench: `rounds` must be at least 1, but is {rounds}.")
    with load_model(loading) as loaded:
        figures = measure(loaded, rounds)
        setting = {
            "model": loaded.path,
            "processor": processor_name(),
            **{key: value for key, value in loaded.runtime.items() if key != "served_by"},
            "evicted_tokens": loaded.stats()["evicted_tokens"],
        }
    if as_json:
        found = {**setting, "rounds": rounds, "figures": [asdict(figure) for figure in figures]}
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        write(figures, setting)
    return 0


def prompt(model: Model, tokens: int) -> list[int]:
    """Return so many ids that are not all the same."""
    some = min(400, model.spec.vocab_size)
    return [i % some for i in range(tokens)]


def prefill_seconds(model: Model, ids: list[int]) -> float:
    """Return the seconds from a prompt to the first token behind it."""
    started = time.perf_counter()
    with model.stream(ids, max_tokens=1, temperature=0) as stream:
        stream.result()
    return time.perf_counter() - started


def decode_seconds(model: Model, ids: list[int], tokens: int) -> float:
    """Return the seconds of one token, sampling and hand-over included: the mean of `tokens`.

    Args:
        model: Nothing else streams from it.
        ids: The prompt; it fills the cache up to its capacity.
        tokens: At least 1.
    """
    stamps = []
    with model.stream(ids, max_tokens=tokens + 1, ignore_eos=True, temperature=0) as stream:
        for event in stream.events():
            if isinstance(event, Token):
                stamps.append(time.perf_counter())
    return (stamps[-1] - stamps[0]) / tokens


def _decode_rate(model: Model, ids: list[int]) -> float:
    return 1 / decode_seconds(model, ids, _TOKENS)


def measure(model: Model, rounds: int) -> list[Figure]:
    """Measure everything `rounds` times, by turns, so that a slow moment hits all alike."""
    threads = model.runtime["threads"]
    short, long = prompt(model, _FIRST_TOKEN_PROMPT), prompt(model, _PROMPT)
    first, prefill = f"first token behind {_FIRST_TOKEN_PROMPT}", f"prompt of {_PROMPT}"
    read_rate = _core.probes.read_rate
    runs: dict[tuple[str, str], Callable[[], float]] = {
        ("plain read of memory", "GB/s"): lambda: read_rate(_PROBE_BYTES, threads) / 1e9,
        (first, "ms"): lambda: 1000 * prefill_seconds(model, short),
        (prefill, "tokens/s"): lambda: _PROMPT / prefill_seconds(model, long),
    }
    gigabytes: dict[str, float] = {}
    for cached in (min(cached, model.capacity.tokens) for cached in _CACHED):
        name = f"tokens behind {cached:,}"
        runs[name, "tokens/s"] = partial(_decode_rate, model, prompt(model, cached))
        live = min(cached + _TOKENS // 2, model.capacity.tokens)
        gigabytes[name] = model.bytes_read_per_token(live) / 1e9
    found: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    prefill_seconds(model, short)  # pages of the program itself
    for _ in range(rounds):
        for key, run in runs.items():
            found[key].append(run())
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
    """Write a table to a terminal, and `name: value` lines to anything else."""
    rows = [
        (
            figure.name,
            f"{figure.median:,.1f} {figure.unit}",
            f"{figure.smallest:,.1f} to {figure.largest:,.1f}",
            "" if figure.share_of_read is None else f"{figure.share_of_read:.0%} of memory's speed",
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
