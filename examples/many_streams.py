"""Many streams at once on one model: total speed, fairness, and memory.

    python examples/many_streams.py --streams 32 --tokens 100

All streams share each step of the model, so its weights are read once for all. Each stream has its
own cache, allocated when the model is loaded: memory depends on the number of streams, but does not
grow while they run. A terminal shows the streams as they write; elsewhere each stream prints one
line at its end.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column

import sinkstream

TOPICS = ("the sea", "an old clock", "bread", "a journey by night", "the city", "a garden", "snow")
BAR = 16  # columns


def read_options(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure many streams at once on one model.")
    parser.add_argument("--streams", type=int, default=32, help="streams at the same time [32]")
    parser.add_argument("--tokens", type=int, default=100, help="tokens per stream [100]")
    parser.add_argument("--model", help="a .gguf file, a folder or a name [smollm2]")
    parser.add_argument("--window", type=int, default=252, help="W, the most recent tokens [252]")
    options = parser.parse_args(arguments)
    for name, least in (("streams", 1), ("tokens", 2), ("window", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}, but is {getattr(options, name)}.")
    return options


def own_memory() -> int:
    """Return the resident bytes of this process, without mapped files."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


class PlainScreen:
    """Prints one line for each stream at its end."""

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def add(self, number: int, stream: sinkstream.Stream, text: str) -> None:
        """Receive new text of a stream."""

    def end(self, number: int, stream: sinkstream.Stream) -> None:
        """Receive the end of a stream."""
        stats = stream.stats
        print(
            f"stream {number:3}: {stats.generated_tokens:,} tokens, {stats.tokens_per_s:.1f} "
            f"tokens/s, {stats.evicted_tokens:,} evicted, {stream.finish_reason}",
            flush=True,
        )


class LiveScreen(PlainScreen):
    """Shows a bar for each stream, and the last words of its text."""

    def __init__(self, console: Console, streams: int, tokens: int) -> None:
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(BAR),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}", markup=False, table_column=Column(no_wrap=True)),
            console=console,
            refresh_per_second=4,  # leaves the CPU to the model
        )
        self.tasks = [
            self.progress.add_task(f"{n:4}", total=tokens, text="") for n in range(streams)
        ]
        self.texts = [""] * streams
        # What remains after the number, the bar, "done/total" and the spaces between.
        self.room = max(1, console.width - 4 - BAR - len(f"{tokens}/{tokens}") - 3)

    def __enter__(self) -> LiveScreen:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def add(self, number: int, stream: sinkstream.Stream, text: str) -> None:
        """Append text. One thread reads each stream, and only it changes the stream's line."""
        # Terminals interpret control characters, and a model may write any.
        clean = "".join(c if c.isprintable() else " " for c in text)
        self.texts[number] = (self.texts[number] + clean)[-self.room :]
        done = stream.stats.generated_tokens
        self.progress.update(self.tasks[number], completed=done, text=self.texts[number])

    def end(self, number: int, stream: sinkstream.Stream) -> None:
        """Fill the bar."""
        self.add(number, stream, "")


def read_all(streams: list[sinkstream.Stream], screen: PlainScreen) -> None:
    """Read every stream to its end, each in its own thread."""

    def read(number: int) -> int:
        for text in streams[number]:
            screen.add(number, streams[number], text)
        return number

    with ThreadPoolExecutor(len(streams)) as readers:
        try:
            for done in as_completed([readers.submit(read, n) for n in range(len(streams))]):
                screen.end(done.result(), streams[done.result()])
        except BaseException:
            for stream in streams:
                stream.cancel()  # ends the loop of its reader, and so the thread
            raise


def print_summary(streams: list[sinkstream.Stream], seconds: float) -> None:
    """Print the total speed of the streams, and how much they differ."""
    all_stats = [stream.stats for stream in streams]
    rates = [stats.tokens_per_s or 0.0 for stats in all_stats]
    slowest, median = min(rates), statistics.median(rates)
    total = sum(stats.generated_tokens for stats in all_stats)
    between = [1e3 * (stats.token_p50_s or 0.0) for stats in all_stats]
    worst = max(1e3 * (stats.token_p99_s or 0.0) for stats in all_stats)
    print(f"together:  {total:,} tokens in {seconds:.1f} s, {total / seconds:.1f} tokens/s")
    print(
        f"fairness:  the slowest stream {slowest:.2f} tokens/s, the median {median:.2f}: "
        f"{slowest / median:.1%}"
    )
    print(
        f"between tokens: p50 {statistics.median(between):.1f} ms (of the median stream), "
        f"p99 {worst:.1f} ms (of the worst)"
    )


def print_memory(capacity: sinkstream.Capacity, loaded: int, grown: int) -> None:
    """Print the memory that the model reports, and what the process actually uses."""
    said = capacity.weight_bytes + capacity.cache_bytes + capacity.scratch_bytes
    print(
        f"memory:    capacity says {said / 2**20:.0f} MiB ({capacity.weight_bytes / 2**20:.0f} "
        f"weights, {capacity.cache_bytes / 2**20:.0f} caches, "
        f"{capacity.scratch_bytes / 2**20:.0f} scratch); loading took {loaded / 2**20:.0f} MiB, "
        f"streaming {grown / 2**20:+.1f} MiB"
    )


def main(arguments: list[str] | None = None) -> None:
    """Load the model, stream, and report."""
    options = read_options(arguments)
    console = Console()
    at_first = own_memory()
    with (
        sinkstream.load(
            options.model, window=options.window, max_sequences=options.streams
        ) as model,
        ExitStack() as at_the_end,
    ):
        at_load = own_memory()
        begin = time.perf_counter()
        streams = [
            at_the_end.enter_context(
                model.stream(
                    f"Story {number}, about {TOPICS[number % len(TOPICS)]}.\n\n",
                    max_tokens=options.tokens,
                    ignore_eos=True,  # equal lengths, so that their speeds can be compared
                    seed=number,
                )
            )
            for number in range(options.streams)
        ]
        screen = (
            LiveScreen(console, options.streams, options.tokens)
            if console.is_terminal
            else PlainScreen()
        )
        with screen:
            read_all(streams, screen)
        seconds = time.perf_counter() - begin
        print_summary(streams, seconds)
        print_memory(model.capacity, at_load - at_first, own_memory() - at_load)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Stopped.")
    except sinkstream.SinkstreamError as error:
        sys.exit(str(error))
