"""The experiment of StreamingLLM's figure 3 on one book: perplexity by position, for each method.

    python examples/eval_long_ppl.py BOOK.txt --tokens 20000 --methods sinks,window,dense

reads a UTF-8 text, or one book (--title) of a .jsonl or .jsonl.xz file with {"title", "text"} on
each line. It writes eval_long_ppl.json with all numbers, eval_long_ppl.png and .svg with the
curves, and eval_long_ppl_cost.png with time and memory (all but the first need matplotlib). After
Ctrl-C, the same command continues where it stopped.

The options of the original's script are accepted as well, except those of its data sets:

    python examples/eval_long_ppl.py BOOK.txt --enable_start_recent_kv_cache --enable_pos_shift
        --start_size 4 --recent_size 1019 --num_eval_tokens 20000 --output_dir outputs

With --output_dir it writes the original's log.txt and ppl.txt, too, and without the two --enable
options the method is "dense".
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import sinkstream
from sinkstream.evaluate import PerplexityResult, compare, perplexity, plot_cost, plot_perplexity
from sinkstream.evaluate.long_texts import pick_book, read_books
from sinkstream.evaluate.result import write_json


def read_options(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Perplexity over a book, by method.")
    parser.add_argument("book", help="a text, or a .jsonl or .jsonl.xz file of books")
    parser.add_argument("--title", help="title of a book in a .jsonl file [the first book]")
    model = parser.add_argument("--model", "--model_name_or_path")
    model.help = "a .gguf file, a folder or a name [smollm2]"
    parser.add_argument("--methods", help="comma-separated [sinks,window,dense]")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--sinks", "--start_size", type=int, default=4)
    parser.add_argument("--window", type=int, default=1020)
    parser.add_argument("--sample", type=int, default=60, help="tokens that recompute scores")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=Path("eval_long_ppl.json"))
    original = parser.add_argument_group("options of the original")
    original.add_argument("--recent_size", type=int, help="window - 1: without the current token")
    original.add_argument("--num_eval_tokens", type=int, help="tokens - 1: without the first")
    original.add_argument("--output_dir", type=Path, help="a folder for everything that is written")
    original.add_argument("--enable_start_recent_kv_cache", action="store_true")
    original.add_argument("--enable_pos_shift", action="store_true")
    options = parser.parse_args(arguments)
    if options.enable_start_recent_kv_cache and not options.enable_pos_shift:
        parser.error(
            "--enable_start_recent_kv_cache needs --enable_pos_shift: positions are shifted"
        )
    translate(options)
    return options


def translate(options: argparse.Namespace) -> None:
    """Set the options that the original's imply."""
    if options.recent_size is not None:
        options.window = options.recent_size + 1
    if options.num_eval_tokens is not None:
        options.tokens = options.num_eval_tokens + 1
    if options.output_dir is not None:
        options.output_dir.mkdir(parents=True, exist_ok=True)
        options.out = options.output_dir / options.out.name
    if options.methods is None:
        options.methods = "sinks,window,dense" if options.output_dir is None else "dense"
        if options.enable_start_recent_kv_cache:
            options.methods = "sinks"


def measure(options: argparse.Namespace, text: str) -> list[PerplexityResult]:
    """Run every method over the same tokens, with equally many visible."""
    states = options.out.with_suffix(".runs")
    states.mkdir(exist_ok=True)
    with sinkstream.load(
        options.model,
        sinks=options.sinks,
        window=options.window,
        threads=options.threads,
        max_sequences=1,
    ) as model:
        return [
            perplexity(
                model,
                text,
                method=method,
                max_tokens=options.tokens,
                sample=options.sample if method == "recompute" else None,
                progress=show if sys.stderr.isatty() else None,
                resume=states / f"{method}.npz",
            )
            for method in options.methods.split(",")
        ]


def show(done: int, total: int, perplexity: float) -> None:
    """Show the progress of a method on one line of the terminal."""
    end = "\n" if done == total else "\r"
    print(f"{done:,} of {total:,} tokens, perplexity {perplexity:.3f} ", end=end, file=sys.stderr)


def write(results: list[PerplexityResult], title: str, out: Path) -> None:
    """Print the totals; write the numbers and the plots."""
    for result in results:
        print(
            f"{result.method:>10}: perplexity {result.perplexity:8.3f} over {result.tokens:,} "
            f"tokens, {1e3 * result.seconds / result.tokens:.2f} ms each"
        )
    exact = [result for result in results if result.method == "recompute"]
    differences = [compare(result, exact[0]) for result in results if exact and result not in exact]
    for found in differences:
        half = found.mean - found.interval[0]
        print(f"{found.of:>10}: {found.mean:+.3f} ± {half:.3f} nats against recompute (95 %)")
    whole = {
        "book": title,
        "results": [result.as_dict() for result in results],
        "differences": [found.as_dict() for found in differences],
    }
    write_json(out, whole)
    for suffix in (".png", ".svg"):
        plot_perplexity(results, out.with_suffix(suffix), differences=differences, title=title)
    plot_cost(results, out.with_name(f"{out.stem}_cost.png"), title=title)


def write_as_the_original(result: PerplexityResult, folder: Path) -> None:
    """Write log.txt, a line for each token, and ppl.txt."""
    assert result.nll is not None
    lines = "".join(f"{nll}\n" for nll in result.nll.tolist())
    (folder / "log.txt").write_text(lines)
    (folder / "ppl.txt").write_text(f"{result.perplexity}\n")


def main(arguments: list[str] | None = None) -> None:
    """Read the book, measure, and write the results."""
    options = read_options(arguments)
    try:
        book = pick_book(read_books(options.book), options.title)
        results = measure(options, book.text)
        write(results, book.title, options.out)
        if options.output_dir is not None:
            write_as_the_original(results[0], options.output_dir)
    except KeyboardInterrupt:
        sys.exit("Stopped. The same command continues from here.")
    except sinkstream.SinkstreamError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
