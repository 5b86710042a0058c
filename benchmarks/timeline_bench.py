"""Measures a timeline: token N is consumed while token N + 1 is computed.

    python benchmarks/timeline_bench.py --plot timeline.png

The engine's thread records the times of its steps. The consumer, in Python, stamps each token when
it arrives and then works for a while, like a consumer that prints or sends. All times are on the
monotonic clock. The share of time that each thread ran comes from the system.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import statistics
import time

from machine import report


def thread_times() -> dict[str, float]:
    """Return the processor time of every thread in seconds, by name and id."""
    times = {}
    for folder in pathlib.Path("/proc/self/task").iterdir():
        fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        name = (folder / "comm").read_text().strip()
        times[f"{name} {folder.name}"] = (int(fields[11]) + int(fields[12])) / 100
    return times


def main() -> None:
    """Stream with a consumer that works, and compare the two timelines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--work-us", type=int, default=500, help="the consumer's work per token")
    parser.add_argument("--path", default=None)
    parser.add_argument("--plot", default=None)
    args = parser.parse_args()
    import sinkstream

    model = sinkstream.load(args.path, window=1020, max_sequences=1, speculation=0)
    threads_before, wall_before = thread_times(), time.monotonic()
    consumed: list[tuple[float, float]] = []
    stream = model.stream(
        "Once upon a time", max_tokens=args.tokens, ignore_eos=True, temperature=1.0, seed=1
    )
    for event in stream.events():
        if isinstance(event, sinkstream.Token):
            begin = time.monotonic()
            while time.monotonic() < begin + args.work_us / 1e6:
                pass
            consumed.append((begin, time.monotonic()))
    wall = time.monotonic() - wall_before
    busy = {
        name: round((seconds - threads_before.get(name, 0)) / wall, 2)
        for name, seconds in thread_times().items()
    }
    # (step, begin, forward_end, end, decoding, prompt tokens); step i makes token i.
    steps = [step for step in model._native.steps(0) if step[4] == 1][-args.tokens + 2 :]
    model.close()
    by_token = {step[0]: step for step in steps}
    offset = len(consumed) - 1 - steps[-1][0]
    hand_over, overlap, after_forward = [], [], []
    for number, step in by_token.items():
        token = number + offset
        if not 0 <= token < len(consumed) or number + 1 not in by_token:
            continue
        begin, end = consumed[token]
        following = by_token[number + 1]
        hand_over.append(1e6 * (begin - step[3]))
        after_forward.append(1e6 * (step[3] - step[2]))
        inside = min(end, following[3]) - max(begin, following[1])
        overlap.append(max(0.0, inside) / (end - begin))
    report(
        "timeline",
        {
            "tokens": len(consumed),
            "evicted_tokens": stream.stats.evicted_tokens,
            "step_ms_median": round(1e3 * statistics.median(s[3] - s[1] for s in steps), 3),
            "sample_and_deliver_us_median": round(statistics.median(after_forward), 1),
            "step_end_to_consumer_us_median": round(statistics.median(hand_over), 1),
            "consumer_work_inside_next_step_median": round(statistics.median(overlap), 3),
            "gap_between_steps_us_median": round(
                1e6 * statistics.median(b[1] - a[3] for a, b in itertools.pairwise(steps)),
                1,
            ),
            "share_of_time_each_thread_ran": {k: v for k, v in busy.items() if v >= 0.01},
        },
    )
    if args.plot:
        _plot(steps[-12:], consumed[-12:], args.plot)


def _plot(steps: list[tuple[float, ...]], consumed: list[tuple[float, float]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    start = steps[0][1]
    figure, axes = pyplot.subplots(figsize=(11, 2.6))
    for row, color, spans in (
        (2, "#0072b2", [(s[1], s[2]) for s in steps]),
        (1, "#e69f00", [(s[2], s[3]) for s in steps]),
        (0, "#009e73", consumed),
    ):
        axes.broken_barh(
            [(1e3 * (a - start), 1e3 * max(b - a, 2e-5)) for a, b in spans if a >= start],
            (row - 0.35, 0.7),
            facecolors=color,
            edgecolor="white",
        )
    axes.set(xlabel="ms", yticks=[0, 1, 2], yticklabels=["consumer", "sample, deliver", "forward"])
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
