"""A simulation, not a measurement: a cluster of 100 replicas and 10,000 conversations.

    python benchmarks/cluster_simulation.py --times benchmarks/results/…/cluster_calibration.json
    python benchmarks/cluster_simulation.py --times FILE --only loss --replicas 10 --sessions 1000

Discrete events, no sockets. Only the service times are measured, by `cluster_calibration.py`;
`cluster_comparison.py` compares a real run of two replicas with the simulated one. For each
scenario (`cluster/scenarios.py`) and each policy of a router (`cluster/placement.py`) it reports:

- `moved`: turns on another replica than the one before; `moved_per_replacement`: as a share of all
  conversations, for each replica that was replaced,
- `replayed_tokens`: stored tokens that were read again, because no snapshot had them,
- `first_token_ms`: from the first attempt of a request, waiting and refusals included,
- `sessions_max_over_mean`: most conversations of a replica over the mean, and
  `work_max_over_mean`: the same for generated tokens of the whole run,
- `refused`: answers with 429; `cut_off`: replies whose replica died.

`ring_max_over_mean` is what the ring alone gives, without a simulation, by the points of each
replica: the mean and the largest of several draws of all names.

The same seed gives the same conversations to each policy.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from cluster.placement import PLACEMENTS
from cluster.ring import fullest_over_mean
from cluster.scenarios import REPLACEMENTS, RUN_S, SCENARIOS, WARM_UP_S, Scenario
from cluster.service_times import ServiceTimes, read_service_times
from cluster.simulation import Cluster, Simulation, think_time_s
from figures import quantile
from machine import report

# Points of a replica: Envoy's 1,024 divided by 100 servers; Ray's default; nginx's; ours.
POINTS = (10, 100, 160, 1000)
DRAWS = 10


def spread(points: int, cluster: Cluster) -> dict[str, float]:
    """Return how full the fullest replica of a ring is."""
    sizes = [
        fullest_over_mean(points, cluster.replicas, cluster.sessions, draw) for draw in range(DRAWS)
    ]
    return {"mean": round(sum(sizes) / DRAWS, 3), "largest": round(max(sizes), 3)}


def measure(
    times: ServiceTimes, scenario: Scenario, policy: str, cluster: Cluster, seed: int
) -> dict[str, Any]:
    """Return the figures of one run."""
    simulation = Simulation(times, PLACEMENTS[policy], cluster, scenario.habits(), seed)
    simulation.events.run(WARM_UP_S)
    simulation.start_counting()
    scenario.schedule(simulation)
    simulation.events.run(WARM_UP_S + RUN_S)
    counters = simulation.counters
    spread = counters.session_spread
    work = [host.generated for name, host in simulation.hosts.items() if name in simulation.serving]
    waits = counters.first_token_s
    return {
        "turns": counters.turns,
        "moved": counters.moved,
        "loaded": counters.loaded,
        "replayed_tokens": round(counters.replayed_tokens),
        "first_token_ms": {
            "p50": round(quantile(waits, 0.5) * 1e3, 1),
            "p99": round(quantile(waits, 0.99) * 1e3, 1),
        },
        "sessions_max_over_mean": {
            "mean": round(sum(spread) / len(spread), 3),
            "largest": round(max(spread), 3),
        },
        "work_max_over_mean": round(max(work) * len(work) / sum(work), 3),
        "refused": counters.refused,
        "cut_off": counters.cut_off,
    }


def main() -> None:
    """Simulate and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=Path, required=True, help="of cluster_calibration.py")
    parser.add_argument("--only", action="append", choices=SCENARIOS, help="may be repeated")
    parser.add_argument("--replicas", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--utilization", type=float, default=0.6)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    times = read_service_times(args.times)
    cluster = Cluster(args.replicas, args.sessions, utilization=args.utilization)
    began = time.perf_counter()
    figures: dict[str, Any] = {
        "is_a_simulation": True,
        "service_times": args.times.name,
        "replicas": cluster.replicas,
        "sessions": cluster.sessions,
        "utilization": cluster.utilization,
        "think_time_s": round(think_time_s(times, cluster, SCENARIOS["steady"].habits()), 1),
        "simulated_s": RUN_S,
        "seed": args.seed,
        "ring_max_over_mean": {f"{points:,} points": spread(points, cluster) for points in POINTS},
    }
    for name in args.only or SCENARIOS:
        figures[name] = {
            policy: measure(times, SCENARIOS[name], policy, cluster, args.seed)
            for policy in PLACEMENTS
        }
    for row in figures.get("replacement", {}).values():
        row["moved_per_replacement"] = round(row["moved"] / REPLACEMENTS / cluster.sessions, 4)
    report("cluster_simulation", {**figures, "took_s": round(time.perf_counter() - began, 1)})


if __name__ == "__main__":
    main()
