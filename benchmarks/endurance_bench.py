"""Runs one endless task on several servers: what becomes of memory, waits and text?

    python benchmarks/endurance_bench.py                     # an hour or a million tokens of each
    python benchmarks/endurance_bench.py --minutes 2.5 --picture endurance.svg

The task: continue a text, without end, over `/v1/completions`. All servers get the same file, the
same number of threads and the same sampling, and the same context where they have such an option.
Those whose program is not on the PATH are left out: `llama-server`, `transformers`, `vllm`,
`ollama`.

- When a server ends a reply or refuses a request, the client goes on as it must: it sends the
  beginning of the text and its last half context in a new request. What it saw is in the report.
- Servers take turns of a few seconds. All others are stopped meanwhile (SIGSTOP), so that a slow
  moment of the machine hits all of them. A wait across such a stop does not count.
- A wait is the time between two arrivals of text. sinkstream sends the tokens of 25 ms together.
- Memory is that of the server's processes which is resident or swapped out.
- At the end of each twentieth of the time: the share of distinct sequences of four words in the
  last 1,000 words, their size over their compressed size, and the perplexity of the last 512 tokens
  after the 512 before them. The judge of all texts is the same model in sinkstream, whose window
  holds all that it reads. A text that repeats itself has few distinct sequences and a low
  perplexity.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chart import endurance
from figures import compression, distinct, quantile
from machine import report
from server.endless import Endless, GaveUp, Piece, tail
from server.process import ENGINES, SAMPLING, NotReady, Server, compared, program, version
from server.setting import Setting

OPENING = "The lighthouse keeper opened the old logbook and began to write the story of the island."
STRETCHES = 20  # of the time
WORDS = 1000
JUDGED = 512  # tokens, after as many
QUALITIES = ("distinct_4_grams", "compression", "perplexity")

Judge = Callable[[str], float | None]  # the perplexity of the end of a text; None if it is short


@dataclass
class Writer:
    """A server and the text that it writes."""

    server: Server
    text: Endless
    seconds: float = 0.0  # of its turns
    memory: list[tuple[float, int]] = field(default_factory=list)  # (seconds, KiB), once a second
    stopped: str = ""  # why it writes no more
    arriving: Iterator[Piece] = field(init=False)

    def __post_init__(self) -> None:
        self.arriving = self.text.pieces()

    def take_turn(self, seconds: float) -> None:
        """Let the server run for some seconds, or until it has written all."""
        self.server.go_on()
        began = time.perf_counter()
        before: float | None = None
        while not self.stopped and (now := time.perf_counter()) - began < seconds:
            try:
                piece = next(self.arriving)
            except StopIteration:
                self.stopped = "it has written all tokens"
            except GaveUp as reason:
                self.stopped = str(reason)
            else:
                now = time.perf_counter()
                at_s = self.seconds + now - began
                wait_s = None if before is None else now - before
                self.text.add(dataclasses.replace(piece, at_s=at_s, wait_s=wait_s))
                before = now
                if not self.memory or at_s - self.memory[-1][0] >= 1:
                    self.memory.append((at_s, self.server.resident_kib()))
        self.seconds += time.perf_counter() - began
        self.server.pause()


def write(writers: Sequence[Writer], limit_s: float, turn_s: float) -> None:
    """Alternate between the servers until each has had its time or has written all."""
    number = 0
    while running := [one for one in writers if not one.stopped and one.seconds < limit_s]:
        first = number % len(running)
        for writer in running[first:] + running[:first]:
            writer.take_turn(min(turn_s, limit_s - writer.seconds))
        number += 1
        done = ", ".join(f"{one.text.tokens:,}" for one in writers)
        print(f"round {number}: {done} tokens", file=sys.stderr, flush=True)


def waits(pieces: Sequence[Piece]) -> dict[str, float | None]:
    """Return the median, the 99th percentile and the longest of the waits, in milliseconds."""
    found = [1000 * piece.wait_s for piece in pieces if piece.wait_s is not None]
    ranks = {"median": 0.5, "p99": 0.99, "longest": 1.0}
    return {
        f"{name}_wait_ms": round(quantile(found, rank), 2) if found else None
        for name, rank in ranks.items()
    }


def quality(text: str, judge: Judge) -> dict[str, float | None]:
    """Return how much the end of a text repeats itself, and its perplexity.

    None stands for what a text is too short for.
    """
    words = text.split()[-WORDS:]
    is_long = len(words) == WORDS
    perplexity = judge(text)
    return {
        "distinct_4_grams": round(distinct(words, 4), 3) if is_long else None,
        "compression": round(compression(" ".join(words)), 2) if is_long else None,
        "perplexity": None if perplexity is None else round(perplexity, 2),
    }


def stretches(writer: Writer, length_s: float, judge: Judge) -> list[dict[str, Any]]:
    """Return what was measured in each stretch of time, up to the last text."""
    text, rows, begin, tokens = writer.text.text, [], 0, 0
    count = 1 + int(text[-1].at_s / length_s) if text else 0
    for number in range(min(count, STRETCHES)):
        first_s, last_s = number * length_s, (number + 1) * length_s
        end = begin
        while end < len(text) and (text[end].at_s < last_s or number == STRETCHES - 1):
            end += 1
        until_s = last_s if end < len(text) else writer.seconds
        new = sum(piece.tokens for piece in text[begin:end])
        tokens += new
        kib = [kib for at_s, kib in writer.memory if at_s < last_s]
        rows.append(
            {
                "minutes": round(until_s / 60, 3),
                "tokens": tokens,
                "tokens_per_s": round(new / (until_s - first_s), 1),
                **waits(text[begin:end]),
                "memory_mib": round(kib[-1] / 1024, 1) if kib else None,
                **quality("".join(piece.text for piece in tail(text[:end], 4 * WORDS)), judge),
            }
        )
        begin = end
    return rows


def summary(writer: Writer, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the whole run of one server in one row."""
    text, ends = writer.text, writer.text.ends
    reasons = statistics.multimode(end.reason for end in ends)
    return {
        "tokens": text.tokens,
        "seconds": round(writer.seconds, 1),
        "tokens_per_s": round(text.tokens / writer.seconds, 1),
        **waits(text.text),
        "memory_first_mib": rows[0]["memory_mib"] if rows else None,
        "memory_last_mib": rows[-1]["memory_mib"] if rows else None,
        "ends": len(ends),
        "end": reasons[0] if reasons else None,
        "gap_at_an_end_s": median([end.gap_s for end in ends]),
        "tokens_sent_again": sum(end.resent_tokens for end in ends),
        "evicted_tokens": text.usage.get("sinkstream", {}).get("total_evicted_tokens"),
        **{name: median([row[name] for row in rows]) for name in QUALITIES},
        "stopped": writer.stopped,
    }


def median(values: Sequence[float | None]) -> float | None:
    """Return the median of the values that are there; None if none is."""
    found = [value for value in values if value is not None]
    return round(statistics.median(found), 3) if found else None


@contextlib.contextmanager
def judging(file: Path, threads: int) -> Iterator[Judge]:
    """Load the judge, and yield what returns the perplexity of the end of a text."""
    import sinkstream
    from sinkstream.evaluate import perplexity

    with sinkstream.load(file, window=2 * JUDGED, max_sequences=1, threads=threads) as model:
        tokenizer = model.tokenizer
        if tokenizer is None:
            raise SystemExit("endurance: the model must have a tokenizer.")

        def judge(text: str) -> float | None:
            ids = tokenizer.encode(text).ids[-2 * JUDGED :]
            if len(ids) < 2 * JUDGED:
                return None
            found = perplexity(model, ids, method="dense", block=JUDGED)
            return found.perplexity_from(JUDGED)

        yield judge


def start(
    names: Sequence[str], file: Path, args: argparse.Namespace, stack: contextlib.ExitStack
) -> tuple[dict[str, Writer], dict[str, str]]:
    """Start the servers, each paused; return their writers, and why others did not start."""
    writers, missing = {}, {}
    for name in names:
        engine = ENGINES[name]
        try:
            server = stack.enter_context(compared(engine, file, args.context, args.threads))
        except NotReady as reason:
            missing[name] = str(reason)
            continue
        server.pause()
        body = {**SAMPLING, **engine.fields}
        text = Endless(server.port, OPENING, args.context, body, args.tokens)
        writers[name] = Writer(server, text)
    return writers, missing


def main() -> None:
    """Run, judge and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--tokens", type=int, default=1_000_000, help="at most, of each server [1000000]")
    add("--minutes", type=float, default=60, help="at most, for each server [60]")
    add("--turn", type=float, default=10, help="seconds of a turn [10]")
    add("--context", type=int, default=2048, help="tokens that a server may see [2048]")
    add("--threads", type=int, default=len(os.sched_getaffinity(0)))
    add("--path", type=Path, help="a GGUF file; default: SmolLM2")
    add("--engine", action="append", choices=ENGINES, help="this one only; may be repeated")
    add("--picture", type=Path, help="draw the figures into this SVG file")
    add("--texts", type=Path, help="a folder for what was written")
    args = parser.parse_args()
    file = Setting(args.threads, args.path).model()
    names = args.engine or [name for name, engine in ENGINES.items() if program(engine)]
    with contextlib.ExitStack() as stack:
        writers, missing = start(names, file, args, stack)
        write(list(writers.values()), 60 * args.minutes, args.turn)
    found: dict[str, Any] = {}
    with judging(file, args.threads) as judge:
        for name, writer in writers.items():
            length_s = 60 * args.minutes / STRETCHES
            found[name] = stretches(writer, length_s, judge)
    figures = {
        "model": file.name,
        "threads": args.threads,
        "context": args.context,
        "minutes of each": args.minutes,
        "versions": {name: version(writers[name].server.process.args[0]) for name in writers},
        "not started": missing,
        "engines": {name: summary(writer, found[name]) for name, writer in writers.items()},
        "first end": {
            name: dataclasses.asdict(writer.text.ends[0])
            for name, writer in writers.items()
            if writer.text.ends
        },
        "stretches": found,
    }
    report("endurance", figures)
    if args.picture:
        args.picture.write_text(endurance(figures), encoding="utf-8")
    if args.texts:
        args.texts.mkdir(parents=True, exist_ok=True)
        for name, writer in writers.items():
            whole = OPENING + "".join(piece.text for piece in writer.text.text)
            (args.texts / f"{name}.txt").write_text(whole, encoding="utf-8")


if __name__ == "__main__":
    main()
