"""Separates late tokens of the engine from jitter of the machine.

    python benchmarks/noise_bench.py --rounds 3000

Interleaved in one process, for a fraction of a second each: empty loops on one core that take as
long as a token; plain reads of as many bytes as a token moves, on as many threads; and some tokens
of a session whose cache is full, stamped when the consumer receives them. Loops and reads surround
the tokens of each round. The memory that is read is allocated once: freeing it would keep the
system's threads busy while tokens are timed.

Of each: p50, p99 and their ratio. Then rounds are sorted by how slow the surrounding loops and
reads were, and p50 and p99 of the tokens are reported for each quarter. Late tokens of the engine
would appear in all quarters alike; those of the machine appear in the last one, except for
disturbances shorter than a token.

Late tokens (more than 1.1 times p50) are therefore also compared with the others: how much longer
each of the engine's threads ran, waited for a core that another thread had, and slept. A thread
that runs longer for the same work had a slower core, lost its core to the hypervisor, or spun while
it waited for the other threads.
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
from noise import ThreadClocks, empty_loops, loop_iterations

if TYPE_CHECKING:
    import sinkstream

SEVERAL = 6  # loops and reads of a round
LATE = 1.1  # times p50
PARTS = ("ran_longer_ms", "waited_longer_ms", "slept_longer_ms")

# Milliseconds that a thread ran, and that it waited for a core.
Clock = tuple[float, float]


@dataclass(frozen=True)
class Round:
    """Milliseconds of the loops, reads and tokens of one round."""

    loops: Sequence[float]
    reads: Sequence[float]
    tokens: Sequence[float]
    clocks: Sequence[Sequence[Clock]] = ()  # [tokens, threads of the engine]


_T = TypeVar("_T")


def joined(parts: Sequence[Sequence[_T]]) -> list[_T]:
    """Return the concatenation of the parts."""
    return list(itertools.chain.from_iterable(parts))


def slowness(rounds: Sequence[Round]) -> list[float]:
    """Return how slow the machine was around the tokens of each round but the last.

    That is the mean of the surrounding loops over the median of all loops, or the same of reads,
    whichever is larger.
    """
    loop = statistics.median(joined([one.loops for one in rounds]))
    read = statistics.median(joined([one.reads for one in rounds]))
    return [
        max(
            statistics.fmean([*before.loops, *after.loops]) / loop,
            statistics.fmean([*before.reads, *after.reads]) / read,
        )
        for before, after in itertools.pairwise(rounds)
    ]


def by_slowness(rounds: Sequence[Round], parts: int) -> list[dict[str, float]]:
    """Return the tokens' spread in equal parts of the rounds, from the fastest to the slowest."""
    slow = slowness(rounds)
    order = sorted(range(len(slow)), key=slow.__getitem__)
    rows = []
    for part in range(parts):
        chosen = order[part * len(order) // parts : (part + 1) * len(order) // parts]
        rows.append(
            {
                "slowness_at_most": round(slow[chosen[-1]], 3),
                **spread(joined([rounds[i].tokens for i in chosen])),
            }
        )
    return rows


def why_late(rounds: Sequence[Round], names: Sequence[str]) -> dict[str, Any]:
    """Return by how much late tokens are late, and what each thread did longer in them."""
    gaps = joined([one.tokens for one in rounds])
    clocks = joined([one.clocks for one in rounds])
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
    """Return the milliseconds of each token of a session, and what each thread did meanwhile."""
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
    """Measure and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3_000)
    parser.add_argument("--tokens", type=int, default=12, help="tokens of a round")
    parser.add_argument("--window", type=int, default=1020)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--path", default=None)
    args = parser.parse_args()
    if args.rounds < 9:
        parser.error(f"--rounds must be at least 9, but is {args.rounds}: each quarter needs two.")
    import sinkstream
    from sinkstream import _core

    model = sinkstream.load(
        args.path, window=args.window, max_sequences=1, threads=args.threads, speculation=0
    )
    capacity, threads = model.capacity.tokens, model.runtime["threads"]
    session = model.session()
    clocks = ThreadClocks("sinkstream")
    token_ms = statistics.median(tokens_of(session, capacity + 50, clocks)[0][capacity:])  # full
    size, loop = model.bytes_read_per_token(capacity), loop_iterations(token_ms)
    memory = _core.probes.PlainReads(size)
    rounds: list[Round] = []
    for index in range(args.rounds):
        rounds.append(
            Round(
                empty_loops(loop, SEVERAL),
                [1000 * seconds for seconds in memory.times(threads, SEVERAL)],
                *tokens_of(session, args.tokens, clocks),
            )
        )
        if index % 100 == 99:
            print(f"round {index + 1:,} of {args.rounds:,}", flush=True)
    report(
        "noise",
        {
            "rounds": args.rounds,
            "capacity": capacity,
            "evicted_tokens": session.stats.evicted_tokens,
            "threads": threads,
            "bytes_of_a_token": size,
            "tokens": spread(joined([one.tokens for one in rounds])),
            "empty_loops": spread(joined([one.loops for one in rounds])),
            "plain_reads": spread(joined([one.reads for one in rounds])),
            "tokens_by_the_machines_slowness": by_slowness(rounds, 4),
            "late_tokens": why_late(rounds, clocks.names),
        },
    )
    clocks.close()
    session.close()
    model.close()


if __name__ == "__main__":
    main()
