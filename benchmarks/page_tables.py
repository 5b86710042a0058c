"""Writes the tables of docs pages, between markers, from committed figures.

python benchmarks/page_tables.py           # rewrites the tables
python benchmarks/page_tables.py --check   # prints each figure that differs from its JSON
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from goals import BATCH_8, BATCH_32, PREFILL, decode_at
from machine import ROOT
from results_pages import title
from side_by_side_table import (
    ENGINES,
    TITLES,
    Row,
    best_comparison,
    markdown,
    rate,
    results,
    times,
)

DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks" / "results"
ZEN4 = RESULTS / "zen4"
# Folder -> name, the machine of the page first.
MACHINES = {
    "zen4": "Zen 4",
    "zen5": "Zen 5",
    "amx-167": "Xeon, AMX",
    "zen3": "Zen 3",
    "zen1": "Zen 1",
}
MEASURES = {
    PREFILL: "prefill of 512",
    decode_at(16): "decode at 16",
    decode_at(1024): "decode at 1,024",
    BATCH_8: "batch of 8",
    BATCH_32: "batch of 32",
}


def read(file: str) -> Any:
    """Return the figures of one file below RESULTS."""
    return json.loads((RESULTS / file).read_text(encoding="utf-8"))


def speed() -> str:
    """Return our rate over the best other engine's, for each model of one machine."""
    found = dict(results(ZEN4, 2))
    body = []
    for measure, name in MEASURES.items():
        best = [best_comparison(figures, measure) for figures in found.values()]
        body.append((name, *(times(row["ratio"]) if row else "" for row in best)))
    return markdown(("2 threads", *(TITLES[model] for model in found)), body)


def machines() -> str:
    """Return SmolLM2 on each machine: our rate, and the ratio to the best other engine."""
    body: list[Row] = []
    for folder, name in MACHINES.items():
        figures = dict(results(RESULTS / folder, 2))["smollm2"]
        row = [f"[{name}](../benchmarks/results/{folder}/README.md)"]
        for measure in (PREFILL, decode_at(16), decode_at(1024)):
            best = best_comparison(figures, measure)
            assert best is not None
            ours = figures["tokens/s, medians"][measure]["sinkstream"]
            row.append(f"{rate(ours)} ({times(best['ratio'])})")
        body.append(tuple(row))
    return markdown(("SmolLM2, 2 threads", *list(MEASURES.values())[:3]), body)


def streams() -> str:
    """Return the latency and the memory of long streams."""
    latency = read("zen1/latency.json")
    memory = read("zen4/memory.json")
    session = read("zen4/session.json")["histories"]
    before = latency["median_ms_of_100_before_the_fill"]
    body = [
        ("median time of a token, before the cache fills", f"{before:.2f} ms", "Zen 1"),
        ("the same, last tenth", f"{latency['median_ms_of_the_last_tenth']:.2f} ms", "Zen 1"),
        ("99th percentile over median", f"{latency['p99_over_p50']:.2f}", "Zen 1"),
        (
            "growth of memory, for each 1,000 tokens",
            f"{memory['slope_bytes_per_1000_tokens']:.1f} bytes",
            "Zen 4",
        ),
        *(
            (
                f"first token of a turn, history of {int(history):,}",
                f"{session[history]['turn_ms']['median']:.1f} ms",
                "Zen 4",
            )
            for history in ("1024", "100000")
        ),
    ]
    return markdown((f"{latency['tokens']:,} tokens", "", "machine"), body)


def server() -> str:
    """Return what a server costs its clients, and what they cost it."""
    figures = read("amx-207/server.json")
    soak = read("amx-207/server_soak.json")
    turns, crowd = of_rows(figures["turns"]), of_rows(figures["crowd"])
    compared = of_rows(read("amx-207/server-streams-llama-server.json")["streams"])
    speedup = compared["tokens/s over llama-server's"]
    body = [
        (
            "SmolLM2, first byte of a turn: the last 10 of 200 turns, over turns 2 to 11",
            f"{turns['first byte, last turns over first ones']:.2f}",
        ),
        (
            "SmolLM2, 32 streams: tokens/s over those of llama.cpp's server",
            f"{speedup:.2f}",
        ),
        (
            "tiny model, 1,000 streams and 200 sockets: event-loop delays of at most 20 ms",
            f"{crowd['loop delays of at most 20 ms']:.1f} %",
        ),
        (
            "tiny model, memory for a client that does not read",
            f"{crowd['memory per client that does not read']:.0f} KiB",
        ),
        (
            f"tiny model, {soak['requests']:,} requests: growth of memory in the second half, per "
            "1,000 requests",
            f"{soak['slope_kib_per_1000_requests']:.1f} KiB",
        ),
    ]
    return markdown(("`sinkstream serve`, Xeon, AMX", "measured"), body)


def endurance() -> str:
    """Return what an endless text cost on each server."""
    figures = read("amx-207/endurance.json")
    body = [
        (
            name,
            f"{run['tokens']:,}",
            rate(run["tokens_per_s"]),
            f"{run['longest_wait_ms'] / 1000:.2f} s",
            f"{run['memory_first_mib']:.0f} – {run['memory_last_mib']:.0f} MiB",
            f"{run['ends']:,}",
            f"{run['distinct_4_grams']:.2f}" if run["distinct_4_grams"] else "",
            f"{run['perplexity']:.1f}" if run["perplexity"] else "",
        )
        for name, run in figures["engines"].items()
    ]
    setting = f"SmolLM2, Xeon, AMX, {figures['minutes of each']:g} minutes of each"
    head = (setting, "tokens", "tokens/s", "longest wait", "memory, at first and last")
    return markdown((*head, "interruptions", "distinct 4-grams", "perplexity"), body)


def of_rows(part: dict[str, Any]) -> dict[str, float]:
    """Return the values of a part of the server's figures by their names."""
    return {row["figure"]: row["value"] for row in part["rows"]}


def effects() -> str:
    """Return what options change, as far as it was measured."""
    rates = read("zen4/side_by_side-smollm2-2.json")["tokens/s, medians"]
    ours = {measure: found["sinkstream"] for measure, found in rates.items()}
    pages = read("zen4/system.json")
    small, pinned = (pages[kind]["pace_over_the_first"][1] for kind in ("small pages", "pinned"))
    types = read("zen4/perplexity.json")
    wide, narrow = types["int16, cache float16"], types["int16, cache int8"]
    loss = 100 * (narrow["perplexity"] / wide["perplexity"] - 1)
    both = read("zen4/side_by_side-smollm2-2-int16.json")["tokens/s, medians"]
    int16 = both[decode_at(16)]
    cached = (16, 1024, 2048, 4096)
    body = [
        (
            "8 and 32 streams, together",
            f"{rate(ours[BATCH_8])} and {rate(ours[BATCH_32])} tokens/s",
        ),
        *(
            (f"1 stream, {live:,} tokens cached", f"{rate(ours[decode_at(live)])} tokens/s")
            for live in cached
        ),
        ('`kv_dtype="int8"`, perplexity', f"{loss:+.2f} %".replace("-", "−")),
        (
            '`dtype="int16"`, decode (separate run)',
            f"{rate(int16['sinkstream, int16 inputs'])} tokens/s, without it "
            f"{rate(int16['sinkstream'])}",
        ),
        ("without huge pages", f"{small:.3f} of the speed"),
        ("threads pinned to cores", f"{pinned:.3f} of the speed"),
    ]
    return markdown(("SmolLM2, Zen 4, 2 threads", "measured"), body)


def speculation(folder: Path = RESULTS) -> str:
    """Return how much faster replies are with drafts: a row for each task, a column for a run."""
    columns: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*/speculation-*.json")):
        figures = json.loads(path.read_text(encoding="utf-8"))
        model = path.stem.removeprefix("speculation-").rpartition("-")[0]
        kernels = figures.get("kernels")
        at = f"{title(path.parent)}, its {kernels} table" if kernels else title(path.parent)
        model = TITLES.get(model.removesuffix(f"-{kernels}"), model)
        columns[f"{model}, {at}"] = figures["tasks"]
    tasks = dict.fromkeys(task for found in columns.values() for task in found)
    body = (
        (
            task,
            *(
                _speeds(found[task]["ratios"]) if task in found else ""
                for found in columns.values()
            ),
        )
        for task in tasks
    )
    return markdown(("speed over that without drafts", *columns), body) if columns else ""


def _speeds(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f})"


def losses() -> str:
    """Return every comparison with another engine in which the other one is faster."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for folder, machine in MACHINES.items():
        for figures in dict(results(RESULTS / folder, 2)).values():
            for measure, rates in figures["tokens/s, medians"].items():
                best = best_comparison(figures, measure) if len(rates) > 1 else None
                if best and best["ratio"] < 1:
                    engine = engine_name(best["against"])
                    kind = measure.partition(" ")[0]
                    found.setdefault((machine, kind, engine), []).append(best["ratio"])
    return markdown(("machine", "measure", "faster engine", "our ratio", "cases"), loss_rows(found))


def loss_rows(found: dict[tuple[str, str, str], list[float]]) -> Iterator[Row]:
    """Yield a row for each machine, kind of measure and engine."""
    for (machine, kind, engine), ratios in found.items():
        least, most = times(min(ratios)), times(max(ratios))
        spread = least if least == most else f"{least} – {most}"
        yield (machine, kind, engine, spread, str(len(ratios)))


def engine_name(name: str) -> str:
    """Return an engine without its mode."""
    return next(c for c, engine in ENGINES.items() if engine == name).partition(",")[0]


KINDS_OF_WORK = {
    "products of weights": ("products of weights",),
    "attention": ("attention",),
    "handing out work and waiting": ("handing out work and waiting",),
    "laying out inputs of products": ("inputs of products",),
    "norms, rotation, activation, cache": (
        "norms",
        "rotation",
        "activation",
        "appending to the cache",
    ),
    "logits and sampling": ("logits and sampling",),
    "the system, and all else": ("the system", "all else", "embedding"),
}


def profile() -> str:
    """Return the shares of kinds of work in a token and in a prompt."""
    files = {
        "16 cached tokens": "token-16",
        "1,024": "token-1024",
        "prompts of 512": "prompt-512",
    }
    shares = [
        read(f"zen4/profile-smollm2-{file}-2.json")["share of the threads that compute"]
        for file in files.values()
    ]
    body = (
        (name, *(percent(sum(share[part] for part in parts)) for share in shares))
        for name, parts in KINDS_OF_WORK.items()
    )
    return markdown(("share of the time", *files), body)


def percent(share: float) -> str:
    """Return a share, with one decimal below 10 %."""
    return f"{100 * share:.{0 if share >= 0.0995 else 1}f} %"


TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "benchmarks.md": {
        "speed": speed,
        "machines": machines,
        "streams": streams,
        "endurance": endurance,
        "server": server,
        "effects": effects,
        "losses": losses,
    },
    "guides/speculation.md": {"speculation": speculation},
    "internals/profile.md": {"profile": profile},
}


def block(name: str) -> re.Pattern[str]:
    """Return the pattern of a table between its markers."""
    return re.compile(f"(<!-- {name} -->\n)(.*?)(<!-- end {name} -->)", re.DOTALL)


def differences(page: str, name: str, text: str, table: str) -> Iterator[str]:
    """Yield a line for each figure of a table that differs from its JSON."""
    found = block(name).search(text)
    shown = found[2].strip().splitlines() if found else []
    expected = table.splitlines()
    if len(shown) != len(expected):
        yield f"docs/{page}, table {name}: {len(shown)} lines instead of {len(expected)}"
        return
    for line, wanted in zip(shown, expected, strict=True):
        row = wanted.split("|")[1].strip()
        for cell, good in zip(line.split("|"), wanted.split("|"), strict=False):
            if cell != good:
                where = f"docs/{page}, table {name}, {row}"
                yield f"{where}: {cell.strip()} instead of {good.strip()}"


def main() -> int:
    """Rewrite the tables; with `--check`, only print the figures that differ."""
    stale = []
    for page, makers in TABLES.items():
        text = (DOCS / page).read_text(encoding="utf-8")
        for name, make in makers.items():
            table = make()
            stale += differences(page, name, text, table)
            text = block(name).sub(
                lambda found, table=table: f"{found[1]}\n{table}\n{found[3]}", text
            )
        if "--check" not in sys.argv[1:]:
            (DOCS / page).write_text(text, encoding="utf-8")
    if "--check" not in sys.argv[1:]:
        return 0
    for line in stale:
        print(line)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
