"""`sinkstream evaluate`: perplexity over a long text, or recall from a stream."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from sinkstream.cli import common_options
from sinkstream.cli.common_options import load_model
from sinkstream.cli.terminal import is_terminal, progress_bar
from sinkstream.errors import InvalidArgument, warn_caller
from sinkstream.evaluate import (
    METHODS,
    Difference,
    PerplexityResult,
    RecallResult,
    compare,
    needle,
    perplexity,
    plot_perplexity,
    plot_recall,
    stream_eval,
)
from sinkstream.evaluate.long_texts import Book, as_ids, pick_book, read_books
from sinkstream.evaluate.pictures import check_picture
from sinkstream.evaluate.result import level_of, perplexity_of, write_json
from sinkstream.model import Model
from sinkstream.request.checks import as_choice, as_int

# Columns of a table in a file; a terminal has its own width.
_FILE_WIDTH = 110

_MAX_SINKS = 1 << 20  # as for `load`

# Characters. A longer text than this times the capacity is not encoded just to see that it is long.
_LONGEST_TOKEN = 64


@common_options.takes_bundles
def evaluate(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help='The text: UTF-8, or .jsonl[.xz] with books; "-" reads standard input.',
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option(help="Title of a book in a .jsonl file. Default: the first book.")
    ] = None,
    method: Annotated[
        str, typer.Option(help=f"What each token sees; comma-separated: {', '.join(METHODS)}.")
    ] = "sinks",
    tokens: Annotated[
        int | None, typer.Option(help="Read only this many tokens of the text. Default: all.")
    ] = None,
    block: Annotated[int, typer.Option(help="Tokens per reported mean.")] = 1000,
    sample: Annotated[
        int, typer.Option(help="Number of random tokens to score with recompute; 0: all.")
    ] = 60,
    sinks: Annotated[
        str,
        typer.Option(
            help="Number of tokens at the start of the text that always stay in the cache. "
            "Several, comma-separated, are compared."
        ),
    ] = "4",
    chunk: Annotated[
        int | None, typer.Option(help="Tokens per forward pass; does not change any result.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    run_stream_eval: Annotated[
        bool, typer.Option("--stream-eval", help="Ask about lines further and further back.")
    ] = False,
    run_needle: Annotated[
        bool, typer.Option("--needle", help="Ask for one fact hidden further and further back.")
    ] = False,
    back: Annotated[
        str, typer.Option(help="With --stream-eval: lines back, comma-separated.")
    ] = "20,40,60,80,100",
    queries: Annotated[int, typer.Option(help="With --stream-eval: questions per distance.")] = 50,
    out: Annotated[Path | None, typer.Option(help="Write all numbers to this JSON file.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Plot the results to a .png or .svg file.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Save scores here; the next run continues from them."),
    ] = None,
    *,
    loading: common_options.Loading,
) -> int:
    """Measure perplexity over a long text, or recall from a long stream."""
    # Check everything before the first token is read: a run may take hours.
    check_outputs(out, plot)
    methods = parse_methods(method)
    distances = parse_numbers("--back", back)
    counts = [
        as_int("evaluate", "--sinks", count, 0, _MAX_SINKS)
        for count in parse_numbers("--sinks", sinks)
    ]
    if run_stream_eval and run_needle:
        raise InvalidArgument(
            "evaluate: only one of --stream-eval and --needle may be given, but both are."
        )
    book = None if run_stream_eval or run_needle else read_text(file, title)
    if book is None and file is not None:
        raise InvalidArgument(
            f'evaluate: FILE must not be given with --stream-eval or --needle, but is "{file}".'
        )
    if book is None:
        refuse_options_of_perplexity(tokens=tokens, resume=resume, chunk=chunk)
        if len(counts) > 1:
            raise InvalidArgument(
                "evaluate: `--sinks` must be one number with --stream-eval or --needle, but is "
                f'"{sinks}".'
            )
    if resume is not None:
        resume.mkdir(parents=True, exist_ok=True)
    with load_model(replace(loading, sinks=max(counts))) as loaded:
        if book is None:
            name = "StreamEval" if run_stream_eval else "Needle"
            with progress_bar(name, with_time=True, note="{} correct") as show:
                recall = (
                    stream_eval(loaded, back=distances, queries=queries, seed=seed, progress=show)
                    if run_stream_eval
                    else needle(loaded, seed=seed, progress=show)
                )
            report_recall(recall, out, plot)
            return 0
        fitting = None
        if loading.window is None and set(methods) != {"dense"}:
            fitting = fitting_capacity(loaded, book.text, tokens)
        with resume_hint(resume):
            results = measure(
                loaded,
                book,
                methods,
                resume,
                counts=counts,
                window=loading.window,
                capacity=loaded.capacity.tokens if fitting is None else fitting,
                max_tokens=tokens,
                block=block,
                chunk=chunk,
                seed=seed,
                sample=sample or None,
            )
    report_perplexity(book, results, out, plot)
    return 0


def refuse_options_of_perplexity(**given: object) -> None:
    """Refuse options that a recall task would silently ignore."""
    for name, value in given.items():
        if value is not None:
            raise InvalidArgument(
                f"evaluate: --{name} must not be given with --stream-eval or --needle, which do "
                "not use it."
            )


def check_outputs(out: Path | None, plot: Path | None) -> None:
    """Check that the output files can be written."""
    if plot is not None:
        check_picture(plot)
    if out is not None and not out.absolute().parent.is_dir():
        raise InvalidArgument(
            f'evaluate: `--out` must be in a folder that exists, but "{out.parent}" does not exist.'
        )


def parse_methods(words: str) -> list[str]:
    """Return methods from a string like "sinks,window"."""
    return [
        as_choice("evaluate", "--method", word.strip(), tuple(METHODS)) for word in words.split(",")
    ]


def parse_numbers(name: str, words: str) -> list[int]:
    """Return integers from a string like "20,40"."""
    try:
        return [int(word) for word in words.split(",")]
    except ValueError:
        raise InvalidArgument(
            f'evaluate: `{name}` must be comma-separated integers, but is "{words}".'
        ) from None


def read_text(file: str | None, title: str | None) -> Book:
    """Return the text to read."""
    if file is None:
        raise InvalidArgument(
            "evaluate: FILE must be given, but is not. "
            "Only --stream-eval and --needle need no text."
        )
    return pick_book(read_books(file, where="evaluate"), title, where="evaluate")


@contextmanager
def resume_hint(resume: Path | None) -> Iterator[None]:
    """After Ctrl-C, say how to resume if the scores were saved."""
    try:
        yield
    except KeyboardInterrupt:
        if resume is not None:
            print(
                f'sinkstream: stopped. The same command continues from "{resume}".', file=sys.stderr
            )
        raise


def measure(
    model: Model,
    book: Book,
    methods: Sequence[str],
    resume: Path | None,
    *,
    counts: Sequence[int],
    window: int | None,
    capacity: int,
    sample: int | None,
    **settings: Any,
) -> list[PerplexityResult]:
    """Return the result of each method. A method with sinks runs once for each of `counts`.

    `capacity` is S + W of the methods without sinks, except "dense". `window` is W of the others;
    None: what `capacity` leaves. `sample` is that of "recompute", `resume` a folder of scores.
    """
    found = []
    for method, sinks in runs_of(methods, counts):
        size = capacity - (sinks or 0) if window is None or sinks is None else window
        name = method if sinks is None or len(counts) == 1 else f"{method}-{sinks}"
        with progress_bar(name, with_time=True, note="perplexity {:.3f}") as show:
            result = perplexity(
                model,
                book.text,
                method=method,
                sinks=sinks,
                window=None if method == "dense" else size,
                sample=sample if method == "recompute" else None,
                progress=show,
                resume=None if resume is None else resume / f"{name}.npz",
                **settings,
            )
        found.append(result)
    return found


def runs_of(methods: Sequence[str], counts: Sequence[int]) -> Iterator[tuple[str, int | None]]:
    """Yield each method, with each number of sinks if it has any."""
    for method in methods:
        for sinks in counts if method in ("sinks", "protocol") else [None]:
            yield method, sinks


def fitting_capacity(model: Model, text: str, max_tokens: int | None) -> int | None:
    """Return a capacity that a short text fills twice, and say so; None if it fills the default."""
    capacity = model.capacity
    if max_tokens is not None and max_tokens < 2:
        return None  # an error later
    if len(text) > _LONGEST_TOKEN * capacity.tokens and max_tokens is None:
        return None  # without encoding a long text twice
    count = len(as_ids("evaluate", model, text, max_tokens))
    fitting = (count - 1) // 2
    if capacity.tokens < count - 1 or fitting <= capacity.sinks:
        return None
    warn_caller(
        f"evaluate: the text should have more than {capacity.tokens + 1:,} tokens for the default "
        f"window, but has {count:,}. {capacity.sinks:,} sinks and a window of "
        f"{fitting - capacity.sinks:,} are used. Choose a different window with --window."
    )
    return fitting


def differences(results: Sequence[PerplexityResult]) -> list[Difference]:
    """Return the difference between each method and recomputation, if that was measured."""
    exact = next((result for result in results if result.method == "recompute"), None)
    if exact is None:
        return []
    return [compare(result, exact) for result in results if result is not exact]


def estimates(results: Sequence[PerplexityResult], found: Sequence[Difference]) -> dict[str, float]:
    """Return the perplexity of sampled methods for the whole text, by their paired differences."""
    sampled = [result for result in results if result.settings["sample"] is not None]
    levels = {result.method: (result, level_of(result, results, found)[0]) for result in sampled}
    return {
        method: perplexity_of(level)
        for method, (result, level) in levels.items()
        if level != result.mean_nll
    }


def report_perplexity(
    book: Book, results: Sequence[PerplexityResult], out: Path | None, plot: Path | None
) -> None:
    """Write the table, and the requested files."""
    found = differences(results)
    estimated = estimates(results, found)
    if out is not None:
        whole = {
            "text": book.title,
            "results": [result.as_dict() for result in results],
            "differences": [difference.as_dict() for difference in found],
            "estimates": estimated,
        }
        write_json(out, whole)
    table = new_table(
        f"{book.title}, {results[0].settings['text_tokens']:,} tokens",
        ("method", "S + W", "scored", "perplexity", "bits/byte", "ms/token", "keys and values"),
    )
    for result in results:
        settings = result.settings
        held = min(result.capacity, settings["text_tokens"]) * settings["bytes_per_token"]
        bits = None if result.method in estimated else result.bits_per_byte
        table.add_row(
            result.method,
            f"{settings['sinks']} + {settings['window']}",
            f"{result.tokens:,}",
            f"{estimated.get(result.method, result.perplexity):.3f}",
            "" if bits is None else f"{bits:.4f}",
            f"{1e3 * result.seconds / result.tokens:.2f}",
            decimal(held),
        )
    write_table(table)
    for result in results:
        if result.method in estimated:
            sys.stdout.write(
                f"{result.method}: {result.perplexity:.3f} at its {result.tokens:,} sampled "
                f"tokens; {estimated[result.method]:.3f} for the whole text, by paired "
                "differences\n"
            )
    for difference in found:
        half = difference.interval[1] - difference.mean
        sys.stdout.write(
            f"{difference.of} - {difference.against}: {difference.mean:+.4f} ± {half:.4f} nats "
            f"(95 %) at {difference.tokens:,} tokens\n"
        )
    if plot is not None:
        title = f"{results[0].settings['model']}: {book.title}"
        plot_perplexity(results, plot, differences=found, title=title)


def report_recall(result: RecallResult, out: Path | None, plot: Path | None) -> None:
    """Write the table, and the requested files."""
    if out is not None:
        result.to_json(out)
    unit = "lines back" if result.task == "stream_eval" else "tokens back"
    table = new_table(
        f"{result.task}, {result.settings['sinks']} + {result.settings['window']} visible tokens",
        (unit, "distance", "questions", "correct", "accuracy", "95 %"),
    )
    for point in result.by_distance:
        low, high = point.interval
        table.add_row(
            f"{point.asked:,}",
            f"{point.distance:,.0f}",
            f"{point.questions}",
            f"{point.right}",
            f"{point.accuracy:.1%}",
            f"{low:.1%} to {high:.1%}",
        )
    write_table(table)
    for place in ("inside", "edge", "outside"):
        recall = result.recall(place)
        if recall is not None:
            where = "at the edge of" if place == "edge" else place
            sys.stdout.write(
                f"{where} the window: {recall.right} of {recall.questions} correct "
                f"({recall.accuracy:.1%})\n"
            )
    inside = result.recall("inside")
    if inside is not None and inside.right == 0:
        warn_caller(
            "evaluate: the model answers no question correctly even inside its window, so this "
            "task is too hard for it, and says nothing about the cache."
        )
    if plot is not None:
        plot_recall([result], plot)


def new_table(title: str, columns: Sequence[str]) -> Table:
    """Return an empty table; all columns except the first hold numbers."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for index, name in enumerate(columns):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    return table


def write_table(table: Table) -> None:
    """Write a table to standard output."""
    width = None if is_terminal(sys.stdout) else _FILE_WIDTH
    Console(highlight=False, markup=False, emoji=False, width=width).print(table)
