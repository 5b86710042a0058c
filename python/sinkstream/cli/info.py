"""`sinkstream info`: a model, the memory it takes, and what would make it faster here.

It reads headers only: a model that would not fit, or cannot be loaded, is described as well.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from sinkstream.cli import common_options
from sinkstream.cli.common_options import import_loader, with_model
from sinkstream.cli.info_facts import (
    SEQUENCES,
    CacheFacts,
    Facts,
    MemoryFacts,
    ModelFacts,
    Refused,
    RefusedModel,
    read_facts,
)
from sinkstream.cli.info_hints import Hint, hints
from sinkstream.cli.terminal import is_terminal, printable
from sinkstream.errors import CheckpointError
from sinkstream.loading.load import DEFAULT_SEQUENCES

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


@common_options.takes_bundles
def info(
    model: common_options.ModelArgument = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show everything, such as the kernel of each operation.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write everything as one JSON object.")
    ] = False,
    model_option: common_options.ModelPath = None,
    *,
    loading: common_options.Loading,
) -> int:
    """Show the model, the memory it takes, and what would make it faster on this machine."""
    import_loader()
    facts = read_facts(with_model("info", loading, model, model_option))
    advice = [] if isinstance(facts, Refused) else hints(facts)
    if as_json:
        found = {"refused": [], **asdict(facts), "hints": [asdict(hint) for hint in advice]}
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    elif isinstance(facts, Refused):
        write(of_refused(facts, show_all))
    else:
        write(details(facts, advice) if show_all else summary(facts, advice))
    if isinstance(facts, Refused):
        sys.stdout.flush()
        raise CheckpointError("\n".join(facts.refused))
    return 0


def write(rows: list[Row]) -> None:
    """Write a page, in colors on a terminal, as plain text elsewhere."""
    if not is_terminal(sys.stdout):
        sys.stdout.writelines(f"{line.plain}\n" for line in lay_out(rows))
        return
    console = Console(highlight=False, markup=False, emoji=False)
    for line in lay_out(rows, min(console.width, WIDTH)):
        console.print(line)


def summary(facts: Facts, advice: Sequence[Hint]) -> list[Row]:
    """Return the facts that most users want."""
    model, cache, memory = facts.model, facts.cache, facts.memory
    processor, kernels = facts.processor, facts.kernels
    sequences = _sequences(memory.max_sequences)
    of_load = ""
    if memory.max_sequences != DEFAULT_SEQUENCES:
        of_load = f"; load() has room for {DEFAULT_SEQUENCES}"
    table = kernels.table if kernels.device == "cpu" else kernels.device
    return [
        Row("Model", "name", model.name),
        Row("Model", "family", model.family),
        Row("Model", "size", f"{_parameters(model)}, {_weights(facts)}"),
        *(
            [Row("Model", "experts", f"{model.chosen_experts} of {model.experts} for each token")]
            if model.experts
            else []
        ),
        Row("Model", "format", _format(model)),
        Row("Model", "text", _text(model)),
        Row("Context", "kept", f"{cache.sinks:,} sinks + a window of {cache.window:,} tokens"),
        Row("Context", "trained for", f"{model.trained_length:,} tokens{_rope(cache)}"),
        Row(
            "Context",
            "cache",
            f"{decimal(cache.bytes_per_sequence)} per sequence, "
            f"{decimal(cache.bytes_per_token)} per token ({cache.kv_dtype})",
        ),
        Row("Memory", "stream", _total(memory)),
        *(
            Row("Memory", name, f"{decimal(size)}, {_sequences(SEQUENCES[name])}")
            for name, size in memory.command_bytes.items()
        ),
        Row(
            "Memory",
            "weights",
            f"{decimal(memory.weight_bytes)}, a token reads {decimal(model.bytes_read_per_token)}; "
            f"scratch {decimal(memory.scratch_bytes)}",
        ),
        Row("Memory", "cache", f"{decimal(memory.cache_bytes)} for {sequences}{of_load}"),
        Row("Speed", "processor", processor.name),
        Row("Speed", "kernels", f"{table}, activations in {kernels.dtype}"),
        Row("Speed", "threads", f"{processor.threads} on {_cores(processor.usable_cores)}"),
        Row("Speed", "GPU", _gpu(facts)),
        *_advice(advice),
    ]


def details(facts: Facts, advice: Sequence[Hint]) -> list[Row]:
    """Return all known facts. A dictionary among them becomes a separate section."""
    return [*_all_of(asdict(facts)), *_advice(advice)]


def of_refused(facts: Refused, show_all: bool) -> list[Row]:
    """Return what is known about a model that cannot be loaded."""
    model = facts.model
    if show_all:
        return _all_of({"model": asdict(model)})
    return [
        Row("Model", "name", model.name),
        Row("Model", "family", model.family or "unknown"),
        Row("Model", "size", f"{count(model.parameters)} parameters, {decimal(model.file_bytes)}"),
        Row("Model", "format", _format(model)),
        *([Row("Model", "text", _text(model))] if model.tokenizer is not None else []),
    ]


def _all_of(sections: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    rows: list[Row] = []
    for section, entries in sections.items():
        nested = {name: value for name, value in entries.items() if isinstance(value, dict)}
        rows += (
            Row(_title(section), _words(name), shown(name, value))
            for name, value in entries.items()
            if name not in nested and value is not None
        )
        for name, values in nested.items():
            unit = "bytes" if name in ("block_formats", "command_bytes") else ""
            rows += (Row(_title(name), key, shown(unit, value)) for key, value in values.items())
    return rows


def count(number: int) -> str:
    """Return a large number in words: 134.5 million."""
    for size, word in ((10**9, "billion"), (10**6, "million")):
        if number >= size:
            return f"{number / size:.1f} {word}"
    return f"{number:,}"


def _parameters(model: ModelFacts) -> str:
    """Return the number of parameters and, of a model with experts, how many a token uses."""
    active = f", {count(model.active_parameters)} active" if model.experts else ""
    return f"{count(model.parameters)} parameters{active}"


def shares(formats: dict[str, int]) -> str:
    """Return block formats with their share of the bytes; less than 1 % is left out."""
    total = sum(formats.values())
    shown = {kind: size / total for kind, size in formats.items() if size >= 0.01 * total}
    if len(shown) == 1:
        return next(iter(shown))
    return ", ".join(f"{kind} ({share:.0%})" for kind, share in shown.items())


def shown(name: str, value: object) -> str:
    """Format a value for people: sizes with a unit, counts with separators."""
    if isinstance(value, dict):  # a `TypeShare`
        tensors = "1 tensor" if value["tensors"] == 1 else f"{value['tensors']:,} tensors"
        return f"{tensors}, {shown('bytes', value['bytes'])}"
    if isinstance(value, bool):
        return "yes" if value else "no"
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
            full = Text.assemble(
                (section.ljust(section_width), "bold"), (label.ljust(label_width), "cyan"), line
            )
            full.rstrip()
            yield full
            section = label = ""


def _advice(advice: Sequence[Hint]) -> Iterator[Row]:
    for hint in advice:
        yield Row("Hints", _HINT_LABELS.get(hint.name, _words(hint.name)), hint.text)


def _rope(cache: CacheFacts) -> str:
    """Say which rotary frequencies the cache has, if that depends on its capacity."""
    if cache.rope_changes_above is None:
        return ""
    kind = "long" if cache.has_long_rope else "short"
    return f"; {kind} rotary factors (long above {cache.rope_changes_above:,} kept tokens)"


def _format(model: ModelFacts | RefusedModel) -> str:
    """Return the block formats, and the name of a mix of them."""
    if isinstance(model, ModelFacts) and model.block_formats:
        found = shares(model.block_formats)
    else:
        found = shares({name: share.bytes for name, share in model.tensor_types.items()})
    name = model.quantization
    if isinstance(model, ModelFacts) and model.quantize:
        return f"{found}, rounded from {name}" if name else found
    if name and name not in model.tensor_types:
        return f"{name}: {found}" if found else name
    return found or "unknown"


def _text(model: ModelFacts | RefusedModel) -> str:
    if model.tokenizer is None:
        return "no tokenizer; takes and returns token ids"
    template = "with a chat template" if model.has_chat_template else "no chat template"
    return f"tokenizer {model.tokenizer}, {template}"


def _total(memory: MemoryFacts) -> str:
    available = decimal(memory.available_bytes)
    if memory.fits:
        return f"{decimal(memory.total_bytes)} of {available} available"
    window = memory.largest_window
    remedy = f"--window {window} fits" if window > 0 else "no window fits"
    return f"{decimal(memory.total_bytes)}, but only {available} is available: {remedy}"


def _weights(facts: Facts) -> str:
    return decimal(sum(facts.model.block_formats.values()))


def _sequences(number: int) -> str:
    return "1 sequence" if number == 1 else f"{number} sequences"


def _cores(number: int) -> str:
    return "1 logical CPU" if number == 1 else f"{number} logical CPUs"


def _gpu(facts: Facts) -> str:
    gpu = facts.gpu
    if gpu.name is None:
        return f"none: {gpu.problem}"
    return f"{gpu.name}, {decimal(gpu.free_bytes or 0)} of {decimal(gpu.memory_bytes or 0)} free"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _title(name: str) -> str:
    return "GPU" if name == "gpu" else _words(name).capitalize()
