"""Lays out `sinkstream info` for people: sections, labels and values in aligned columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from sinkstream.cli.info_facts import Facts
from sinkstream.cli.info_hints import Hint
from sinkstream.cli.terminal import printable

WIDTH = 80
_LEAST_WIDTH = 40
_GAP = 2  # spaces between columns
_HINT_LABELS = {"dtype": "activations", "gpu": "GPU", "kv_dtype": "cache"}


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the page, before it is wrapped."""

    section: str
    label: str
    value: str


def summary(facts: Facts, hints: Sequence[Hint]) -> list[Row]:
    """Return the facts that most users want."""
    model, cache, memory = facts.model, facts.cache, facts.memory
    processor, kernels = facts.processor, facts.kernels
    sequences = "1 sequence" if memory.max_sequences == 1 else f"{memory.max_sequences} sequences"
    table = kernels.table if kernels.device == "cpu" else kernels.device
    return [
        Row("Model", "name", model.name),
        Row("Model", "family", model.family),
        Row("Model", "size", f"{count(model.parameters)} parameters, {_weights(facts)}"),
        Row("Model", "format", shares(model.block_formats)),
        Row("Context", "kept", f"{cache.sinks:,} sinks + a window of {cache.window:,} tokens"),
        Row("Context", "trained for", f"{model.trained_length:,} tokens"),
        Row(
            "Context",
            "cache",
            f"{decimal(cache.bytes_per_sequence)} per sequence, "
            f"{decimal(cache.bytes_per_token)} per token ({cache.kv_dtype})",
        ),
        Row("Memory", "total", decimal(memory.total_bytes)),
        Row("Memory", "weights", decimal(memory.weight_bytes)),
        Row("Memory", "cache", f"{decimal(memory.cache_bytes)} for {sequences}"),
        Row("Memory", "scratch", decimal(memory.scratch_bytes)),
        Row("Speed", "processor", processor.name),
        Row("Speed", "kernels", f"{table}, activations in {kernels.dtype}"),
        Row("Speed", "threads", f"{processor.threads} on {_cores(processor.usable_cores)}"),
        Row("Speed", "GPU", _gpu(facts)),
        *_advice(hints),
    ]


def details(facts: Facts, hints: Sequence[Hint]) -> list[Row]:
    """Return all known facts. A dictionary among them becomes a separate section."""
    rows: list[Row] = []
    for section, entries in asdict(facts).items():
        nested = {name: value for name, value in entries.items() if isinstance(value, dict)}
        rows += (
            Row(_title(section), _words(name), shown(name, value))
            for name, value in entries.items()
            if name not in nested and value is not None
        )
        for name, values in nested.items():
            unit = "bytes" if name == "block_formats" else ""
            rows += (Row(_title(name), key, shown(unit, value)) for key, value in values.items())
    return [*rows, *_advice(hints)]


def count(number: int) -> str:
    """Return a large number in words: 134.5 million."""
    for size, word in ((10**9, "billion"), (10**6, "million")):
        if number >= size:
            return f"{number / size:.1f} {word}"
    return f"{number:,}"


def shares(formats: dict[str, int]) -> str:
    """Return block formats with their share of the bytes; less than 1 % is left out."""
    total = sum(formats.values())
    shown = {kind: size / total for kind, size in formats.items() if size >= 0.01 * total}
    if len(shown) == 1:
        return next(iter(shown))
    return ", ".join(f"{kind} ({share:.0%})" for kind, share in shown.items())


def shown(name: str, value: object) -> str:
    """Format a value for people: sizes with a unit, counts with separators."""
    if isinstance(value, int):
        return f"{decimal(value)} ({value:,})" if "bytes" in name else f"{value:,}"
    if isinstance(value, list):
        return " ".join(value) or "none"
    return printable(str(value)) if value else "none"


def lay_out(rows: Sequence[Row], width: int = WIDTH) -> Iterator[Text]:
    """Yield the lines: sections and labels in columns, values wrapped, at most `width` cells."""
    width = max(width, _LEAST_WIDTH)
    console = Console(width=width)
    section_width = max(cell_len(row.section) for row in rows) + _GAP
    label_width = max(cell_len(row.label) for row in rows) + _GAP
    left = section_width + label_width
    before = ("", "")
    for row in rows:
        section = row.section if row.section != before[0] else ""
        label = row.label if (row.section, row.label) != before else ""
        before = (row.section, row.label)
        for line in Text(row.value).wrap(console, width - left, overflow="fold"):
            line.rstrip()
            yield Text.assemble(
                (section.ljust(section_width), "bold"), (label.ljust(label_width), "cyan"), line
            )
            section = label = ""


def _advice(hints: Sequence[Hint]) -> Iterator[Row]:
    for hint in hints:
        yield Row("Hints", _HINT_LABELS.get(hint.name, _words(hint.name)), hint.text)


def _weights(facts: Facts) -> str:
    return decimal(sum(facts.model.block_formats.values()))


def _cores(number: int) -> str:
    return "1 core" if number == 1 else f"{number} cores"


def _gpu(facts: Facts) -> str:
    gpu = facts.gpu
    if gpu.name is None:
        return f"none: {gpu.problem}"
    return f"{gpu.name}, {decimal(gpu.free_bytes or 0)} of {decimal(gpu.memory_bytes or 0)} free"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _title(name: str) -> str:
    return "GPU" if name == "gpu" else _words(name).capitalize()
