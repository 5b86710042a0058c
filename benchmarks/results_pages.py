"""Writes the pages of `benchmarks/results` from the JSON files of each folder.

    python benchmarks/results_pages.py           # writes README.md in each folder, and the index
    python benchmarks/results_pages.py --check   # prints the pages that differ from their figures

A machine has one folder with one page, in which each of its files has a heading and its figures.
A new result replaces the one with its name; Git keeps the old ones.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from goals import MODELS
from json_tables import cell, tables, words
from machine import ROOT
from side_by_side_table import (
    TITLES,
    comparisons_table,
    markdown,
    rates_table,
    results,
    short_table,
)

RESULTS = ROOT / "benchmarks" / "results"

# Folder -> what the machine is.
MACHINES = {
    "h200": "H200: an NVIDIA GPU of compute capability 9.0 with 132 multiprocessors",
    "amx-167": "AMX, model 167: 8 bits and bfloat16, and AVX-512; 2 MB of L2 for each core",
    "amx-207": "AMX, model 207: 8 bits and bfloat16, and AVX-512; 2 MB of L2 for each core",
    "zen1": "Zen 1: AVX2 in two halves of 128 bits; 8 MB of L3",
    "zen3": "Zen 3: AVX2, no AVX-512",
    "zen4": "Zen 4: AVX-512 with BF16 and VNNI",
    "zen5": "Zen 5: AVX-512 with BF16 and VNNI, 1 MB of L2 for each core, 32 MB of L3",
}

GPUS = ("h200",)

# First part of a file's name -> heading, and the script with its usual options.
KINDS = {
    "cluster_calibration": ("Service times of a replica", "cluster_calibration.py"),
    "cluster_comparison": (
        "The simulated cluster compared with a real run of two servers",
        "cluster_comparison.py --sessions 24",
    ),
    "cluster_ray": ("Ray Serve while replicas come and go", "cluster_ray_bench.py"),
    "cluster_simulation": (
        "A simulated cluster of 100 replicas",
        "cluster_simulation.py --times cluster_calibration.json",
    ),
    "endurance": ("A text without end on several servers", "endurance_bench.py"),
    "engine": ("The engine around its kernels", "engine_bench.py"),
    "formats": (
        "Decode by block format, compared with llama.cpp",
        "formats_bench.py FILES",
    ),
    "first_token": ("First token, and a forward of M tokens", "first_token_bench.py"),
    "gpu": ("Speed on a GPU", "tests/gpu/run.sh --only bench"),
    "hostile_memory": (
        "A server's memory under hostile requests",
        "hostile_memory.py -- --store none",
    ),
    "latency": ("Time between tokens", "latency_bench.py --tokens 100000"),
    "load": ("Load", "load_bench.py"),
    "memory": ("Memory", "memory_bench.py --tokens 100000"),
    "million": ("Perplexity over a million tokens", "picture_bench.py BOOKS --only million"),
    "noise": ("Late tokens: the engine's and the machine's", "noise_bench.py"),
    "overhead": ("Overhead around a forward", "overhead_bench.py"),
    "package_duel": ("Two builds on a whole model", "package_duel.py BASE NEW"),
    "perplexity": ("Perplexity of the types", "perplexity_bench.py"),
    "picture": ("Perplexity over whole books", "picture_bench.py BOOKS"),
    "process_start": ("The start of a process", "process_start_bench.py"),
    "profile": ("Where the time goes", "profile_bench.py"),
    "protocol": ("The original protocol", "protocol_bench.py"),
    "quantize": ("Types of `quantize`", "quantize_bench.py"),
    "recall": ("Recall", "recall_bench.py"),
    "server": ("The server", "server_bench.py"),
    "server_soak": (
        "The server's memory over mixed requests",
        "server_soak.py --model FOLDER/llama",
    ),
    "session": ("Turns of a session", "session_bench.py"),
    "speculation": ("Replies with guessed tokens", "speculation_bench.py"),
    "system": ("Pages and pinned threads", "system_bench.py"),
    "takeover": (
        "A server continues the conversations of one that was killed",
        "takeover_bench.py --kills 100",
    ),
    "timeline": ("Overlap", "timeline_bench.py"),
    "vocabulary": ("The tokenizer of a large vocabulary", "vocabulary_bench.py"),
}
_SETTINGS = ("dtype", "kv_dtype", "sinks", "window", "threads")
_BOOK_FIELDS = ("kind", "book", "method", "tokens", "perplexity", "standard_error", "commit")


def kind_of(name: str) -> str:
    """Return the first part of a file's name."""
    return name.partition("-")[0]


def command(name: str, figures: dict[str, Any]) -> str:
    """Return the command that measures these figures."""
    kind = kind_of(name)
    if kind == "side_by_side":
        options = f"--model {figures['model']} --threads {figures['threads']}"
        return f"python benchmarks/side_by_side_bench.py {options} --rounds {figures['rounds']}"
    before = options = ""
    if kind in ("engine", "server"):
        options = "".join(f" --only {part}" for part in name.split("-")[1:])
    if kind == "endurance":
        options = f" --minutes {figures['minutes of each']:g} --context {figures['context']}"
        options += f" --threads {figures['threads']}"
    if kind == "formats":
        options = f" --threads {figures['threads']}"
    if kind == "load" and "-" in name:
        options = " --path FILE"
    if kind == "memory" and "-" in name:
        options = " --window 508 --path FILE"
    if kind == "profile":
        work = "prompt" if "-prompt-" in name else "live"
        cached = re.search(r"-batch-\d+-(\d+)-", name)
        options = f" --{work} {cached[1] if cached else figures['tokens']}"
        options += f" --batch {figures['sequences']}" if figures["sequences"] > 1 else ""
        options += f" --threads {figures['threads']}"
        options += "" if "smollm2" in name else " --path MODEL"
    if kind == "server" and "llama-server" in json.dumps(figures):
        options = " --llama-server BINARY"
    if kind == "speculation":
        model = name.removeprefix("speculation-").rpartition("-")[0]
        kernels = figures.get("kernels")
        before = f"SINKSTREAM_KERNELS={kernels} " if kernels else ""
        model = model.removesuffix(f"-{kernels}")
        options = f" --model {model} --threads {figures['threads']} --rounds {figures['rounds']}"
    if kind == "server_soak":
        options = f" --requests {figures['requests']}"
    script = KINDS[kind][1]
    return script if kind == "gpu" else f"{before}python benchmarks/{script}{options}"


def origin(name: str, figures: dict[str, Any]) -> str:
    """Return a line with the file, its commit and its command."""
    run = command(name, figures)
    return f"[{name}.json]({name}.json), commit {figures['commit']}: `{run}`\n"


def comparison_sections(path: Path) -> Iterator[str]:
    """Yield the tables of one comparison with other engines."""
    figures = json.loads(path.read_text())
    threads = "1 thread" if figures["threads"] == 1 else f"{figures['threads']} threads"
    known = f"side_by_side-{figures['model']}-{figures['threads']}"
    suffix = path.stem.removeprefix(known).removeprefix("-")
    other = f", set {suffix}" if suffix else ""
    yield f"### {TITLES[figures['model']]}, {threads}{other}\n"
    yield origin(path.stem, figures)
    yield rates_table(figures)
    if figures["comparisons"]:
        yield comparisons_table(figures)
    bounds = [("plain read of 512 MB, GB/s", figures.get("plain read of 512 MB, GB/s"))]
    bounds += list(figures.get("loop in registers, G/s", {}).items())
    shown = [f"{key}: {cell(value)}" for key, value in bounds if value]
    yield "The machine's rate, least, median and largest: " + ". ".join(shown) + ".\n"


def books_table(runs: list[dict[str, Any]]) -> str:
    """Return a table of runs over whole texts."""
    body = [
        tuple(cell(run.get(field)) for field in _BOOK_FIELDS)
        + tuple(cell(run["settings"].get(field)) for field in _SETTINGS)
        for run in runs
    ]
    return markdown(tuple(map(words, (*_BOOK_FIELDS, *_SETTINGS))), body)


def without_answers(figures: dict[str, Any]) -> dict[str, Any]:
    """Return figures with the count of each list of answers instead of the list."""
    return {
        key: len(value)
        if key == "answers"
        else without_answers(value)
        if isinstance(value, dict)
        else value
        for key, value in figures.items()
    }


def other_sections(path: Path) -> Iterator[str]:
    """Yield the tables of one benchmark of ours alone."""
    kind, figures = kind_of(path.stem), json.loads(path.read_text())
    detail = path.stem.removeprefix(kind).removeprefix("-")
    if kind == "engine":
        detail = detail.replace("-", ", ").replace("_", " ").replace("gil", "GIL")
    yield f"## {KINDS[kind][0]}{': ' if detail else ''}{detail}\n"
    if isinstance(figures, list):
        script = KINDS[kind][1]
        yield f"[{path.name}]({path.name}), one row for each run: `python benchmarks/{script}`\n"
        yield books_table(figures)
        return
    yield origin(path.stem, figures)
    left_out = ("bench", "kind", "processor", "commit")
    yield from tables(
        {key: value for key, value in without_answers(figures).items() if key not in left_out}
    )


def comparison_files(folder: Path) -> list[Path]:
    """Return the comparisons of a folder: by threads, then model; sets with a suffix come last."""

    def key(path: Path) -> tuple[bool, int, int, str]:
        figures = json.loads(path.read_text())
        model, threads = figures["model"], figures["threads"]
        has_suffix = path.stem != f"side_by_side-{model}-{threads}"
        return (has_suffix, -threads, MODELS.index(model), path.stem)

    return sorted(folder.glob("side_by_side-*.json"), key=key)


def files(folder: Path) -> list[Path]:
    """Return all JSON files of a folder, in the order of its page."""
    compared = comparison_files(folder)
    return compared + sorted(set(folder.glob("*.json")) - set(compared))


def processor_of(folder: Path) -> str:
    """Return the processor that a folder's files name."""
    for path in files(folder):
        figures = json.loads(path.read_text())
        first = figures[0] if isinstance(figures, list) else figures
        return re.sub(r" \(.*\), \d+ cores$", "", first["processor"])
    raise ValueError(f"{folder} has no JSON file")


def title(folder: Path) -> str:
    """Return the heading of a folder's page."""
    return MACHINES[folder.name].partition(":")[0]


def sections(folder: Path) -> Iterator[str]:
    """Yield the parts of a folder's page."""
    share = "a GPU" if folder.name in GPUS else "2 cores"
    yield f"# {title(folder)}\n"
    yield (
        f"Figures of one machine: {processor_of(folder)}, {share} of a shared virtual machine. "
        f"{MACHINES[folder.name]}.\n[Benchmarks](../../../docs/benchmarks.md) says what the "
        "measures mean. Written by `benchmarks/results_pages.py`.\n"
    )
    yield (
        "To measure again: `make bench`, or one of the commands below with `BENCH_OUT=folder`. A "
        "plus after a commit\nsays that files of the tree, possibly only figures, differed from "
        "it.\n"
    )
    compared = comparison_files(folder)
    if compared:
        yield "## Compared with other engines\n"
        for threads in (2, 1):
            if dict(results(folder, threads)):
                yield "Our rate over the best other engine's, medians of the rounds' ratios:\n"
                yield short_table(folder, threads)
    for path in compared:
        yield from comparison_sections(path)
    for path in files(folder)[len(compared) :]:
        yield from other_sections(path)


def page_folders() -> list[Path]:
    """Return the folders with figures."""
    return sorted({path.parent for path in RESULTS.glob("*/*.json")})


def index() -> str:
    """Return the page that lists all others."""
    rows = [
        (
            f"[{title(folder)}]({folder.name}/README.md)",
            processor_of(folder),
            cell(len(files(folder))),
        )
        for folder in page_folders()
    ]
    table = markdown(("page", "processor", "files"), rows)
    return (
        "# Results by machine\n\n"
        "The newest figures of each machine, each with its commit; `git log` of a file finds the "
        "older ones. Figures of different\nmachines, or of different hours of a shared machine, "
        "are not comparable: compare ratios, whose two sides were\nmeasured together. Written by "
        "`benchmarks/results_pages.py`.\n\n"
        f"{table}\nPlots are in [pictures](pictures/README.md).\n\n"
        "```{toctree}\n:hidden:\n:glob:\n\n*/README\n```\n"
    )


def pages() -> dict[Path, str]:
    """Return all pages with their text."""
    written = {folder / "README.md": "\n".join(sections(folder)) for folder in page_folders()}
    return {RESULTS / "README.md": index(), **written}


def main() -> int:
    """Write the pages; with `--check`, only print those that differ from their figures."""
    if "--check" not in sys.argv[1:]:
        for path, text in pages().items():
            path.write_text(text, encoding="utf-8")
        return 0
    stale = [
        path
        for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in stale:
        print(f"{path.relative_to(ROOT)} differs. Run: python benchmarks/results_pages.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
