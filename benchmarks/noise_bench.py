"""Whose late tokens are: how evenly they come, beside what the machine does in the same seconds.

    python benchmarks/noise_bench.py --turns 3000

By turns, in one process and a fraction of a second each: empty loops on one core that take as long
as a token, plain reads of as many bytes as a token moves on as many threads, and some tokens of a
session whose cache is full, at the times at which their consumer has them. Loops and reads stand on
both sides of each turn's tokens. The memory that is read is taken once: given back, it keeps the
system's threads busy beside the tokens.

Of each: p50, p99 and their ratio. Then the turns are sorted by how slow the loops and reads on both
sides of them were, and p50 and p99 of the tokens are shown for each quarter: were late tokens the
engine's own, they would come in all quarters alike; as far as they are the machine's, they come
in the last, but for what comes and goes within a token.

So the late ones, of more than 1.1 times p50, are looked at by themselves: how much longer than in
the others each of the engine's threads ran, waited for a core that another thread had, and slept.
A thread that runs longer for the same work had a slower core, or one that the machine took away, or
waited for the other threads, for which it spins.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from figures import spread
from machine import report
from noise import ThreadClocks, empty_loops, loop_turns

if TYPE_CHECKING:
    import sinkstream

SEVERAL = 6  # loops and reads of a turn
LATE = 1.1  # times p50
PARTS = ("ran_longer_ms", "waited_longer_ms", "slept_longer_ms")

# Milliseconds that a thread ran and that it waited for a core.
Clock = tuple[float, float]


@dataclass(frozen=True)
class Turn:
    """Milliseconds of what was done one after the other."""

    loops: Sequence[float]
    reads: Sequence[float]
    tokens: Sequence[float]
    clocks: Sequence[Sequence[Clock]] = ()  # of each token, of each of the engine's threads


_T = TypeVar("_T")


def joined(parts: Sequence[Sequence[_T]]) -> list[_T]:
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


def why_late(turns: Sequence[Turn], names: Sequence[str]) -> dict[str, Any]:
    """Return by how much late tokens are late, and what each thread did longer in them."""
    gaps, clocks = joined([turn.tokens for turn in turns]), joined([turn.clocks for turn in turns])
    least = LATE * statistics.median(gaps)
    rows = [
        [gap, *(part for ran, waited in threads for part in (ran, waited, gap - ran - waited))]
        for gap, threads in zip(gaps, clocks, strict=True)
    ]
    late = [row for row in rows if row[0] > least]
    others = [row for row in rows if row[0] <= least]
    if not late:
        return {"over_p50": LATE, "count": 0}
    means = [
        [statistics.fmean(column) for column in zip(*part, strict=True)] for part in (late, others)
    ]
    longer, *parts = (round(a - b, 3) for a, b in zip(*means, strict=True))
    return {
        "over_p50": LATE,
        "count": len(late),
        "longer_ms": longer,
        "threads": [
            {"name": name, **dict(zip(PARTS, parts[3 * i : 3 * i + 3], strict=True))}
            for i, name in enumerate(names)
        ],
    }


def tokens_of(
    session: sinkstream.Session, tokens: int, clocks: ThreadClocks
) -> tuple[list[float], list[list[Clock]]]:
    """Return the milliseconds between so many tokens of a session and those before them.

    With them, of each token, what the threads did meanwhile.
    """
    from sinkstream import Token

    stamps, read = [], []
    with session.stream("So", max_tokens=tokens + 1, ignore_eos=True, seed=1) as stream:
        for event in stream.events():
            if isinstance(event, Token):
                stamps.append(time.perf_counter())
                read.append(clocks.read())
    gaps = [1000 * (b - a) for a, b in itertools.pairwise(stamps)]
    meanwhile = [
        [
            (ran - ran0, waited - waited0)
            for (ran, waited), (ran0, waited0) in zip(b, a, strict=True)
        ]
        for a, b in itertools.pairwise(read)
    ]
    return gaps, meanwhile


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
    from sinkstream import _core

    model = sinkstream.load(args.path, window=args.window, max_sequences=1, threads=args.threads)
    capacity, threads = model.capacity.tokens, model.runtime["threads"]
    session = model.session()
    clocks = ThreadClocks("sinkstream")
    token_ms = statistics.median(tokens_of(session, capacity + 50, clocks)[0][capacity:])  # full
    size, loop = model.bytes_read_per_token(capacity), loop_turns(token_ms)
    memory = _core.PlainReads(size)
    turns: list[Turn] = []
    for index in range(args.turns):
        turns.append(
            Turn(
                empty_loops(loop, SEVERAL),
                [1000 * seconds for seconds in memory.times(threads, SEVERAL)],
                *tokens_of(session, args.tokens, clocks),
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
            "late_tokens": why_late(turns, clocks.names),
        },
    )
    clocks.close()
    session.close()
    model.close()


if __name__ == "__main__":
    main()
