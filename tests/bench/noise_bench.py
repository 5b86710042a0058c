"""Whose late tokens are: how evenly they come, beside what the machine does in the same seconds.

    python tests/bench/noise_bench.py --turns 3000

By turns, in one process and a fraction of a second each: empty loops on one core that take as long
as a token, plain reads of as many bytes as a token moves on as many threads, and some tokens of a
session whose cache is full, at the times at which their consumer has them. Loops and reads stand on
both sides of each turn's tokens.

Of each: p50, p99 and their ratio. Then the turns are sorted by how slow the loops and reads on both
sides of them were, and p50 and p99 of the tokens are shown for each quarter: were late tokens the
engine's own, they would come in all quarters alike; as far as they are the machine's, they come
in the last.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from figures import spread
from machine import report
from noise import empty_loops, loop_turns, plain_reads

if TYPE_CHECKING:
    import sinkstream

SEVERAL = 6  # loops and reads of a turn


@dataclass(frozen=True)
class Turn:
    """Milliseconds of what was done one after the other."""

    loops: Sequence[float]
    reads: Sequence[float]
    tokens: Sequence[float]


def joined(parts: Sequence[Sequence[float]]) -> list[float]:
    """Return all of them, one after the other."""
    return list(itertools.chain.from_iterable(parts))


def slowness(turns: Sequence[Turn]) -> list[float]:
    """Return of each turn but the last how slow the machine was on both sides of its tokens.

    That is the mean of loops or of reads, whichever is larger beside the median of all of its kind.
    """
    loop = statistics.median(joined([turn.loops for turn in turns]))
    read = statistics.median(joined([turn.reads for turn in turns]))
    return [
        max(
            statistics.fmean([*before.loops, *after.loops]) / loop,
            statistics.fmean([*before.reads, *after.reads]) / read,
        )
        for before, after in itertools.pairwise(turns)
    ]


def by_slowness(turns: Sequence[Turn], parts: int) -> list[dict[str, float]]:
    """Return the tokens' spread where the machine was quickest, and so on to where slowest."""
    slow = slowness(turns)
    order = sorted(range(len(slow)), key=slow.__getitem__)
    rows = []
    for part in range(parts):
        chosen = order[part * len(order) // parts : (part + 1) * len(order) // parts]
        rows.append(
            {
                "slowness_at_most": round(slow[chosen[-1]], 3),
                **spread(joined([turns[i].tokens for i in chosen])),
            }
        )
    return rows


def gaps(session: sinkstream.Session, tokens: int) -> list[float]:
    """Return the milliseconds between so many tokens of a session and those before them."""
    from sinkstream import Token

    stamps = []
    with session.stream("So", max_tokens=tokens + 1, ignore_eos=True, seed=1) as stream:
        for event in stream.events():
            if isinstance(event, Token):
                stamps.append(time.perf_counter())
    return [1000 * (b - a) for a, b in itertools.pairwise(stamps)]


def main() -> None:
    """Take turns and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=3_000)
    parser.add_argument("--tokens", type=int, default=12, help="tokens of a turn")
    parser.add_argument("--window", type=int, default=1020)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--path", default=None)
    args = parser.parse_args()
    if args.turns < 9:
        parser.error("--turns: at least 9, so that each quarter has two.")
    import sinkstream

    model = sinkstream.load(args.path, window=args.window, max_sequences=1, threads=args.threads)
    capacity, threads = model.capacity.tokens, model.runtime["threads"]
    session = model.session()
    token_ms = statistics.median(gaps(session, capacity + 50)[capacity:])  # the cache is full
    size, loop = model.bytes_read_per_token(capacity), loop_turns(token_ms)
    turns: list[Turn] = []
    for index in range(args.turns):
        turns.append(
            Turn(
                empty_loops(loop, SEVERAL),
                plain_reads(size, SEVERAL, threads),
                gaps(session, args.tokens),
            )
        )
        if index % 100 == 99:
            print(f"turn {index + 1:,} of {args.turns:,}", flush=True)
    report(
        "noise",
        {
            "turns": args.turns,
            "capacity": capacity,
            "evicted_tokens": session.stats.evicted_tokens,
            "threads": threads,
            "bytes_of_a_token": size,
            "tokens": spread(joined([turn.tokens for turn in turns])),
            "empty_loops": spread(joined([turn.loops for turn in turns])),
            "plain_reads": spread(joined([turn.reads for turn in turns])),
            "tokens_by_the_machines_slowness": by_slowness(turns, 4),
        },
    )
    session.close()
    model.close()


if __name__ == "__main__":
    main()
