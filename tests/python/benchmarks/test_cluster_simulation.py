"""`benchmarks/cluster`: a ring that moves few keys, and replicas whose queues obey known laws."""

from __future__ import annotations

import heapq
import json
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from benchmarks.cluster.events import Events
from benchmarks.cluster.placement import BoundedPlacement, StickyPlacement
from benchmarks.cluster.processors import Processors, Sharing
from benchmarks.cluster.replica import Calls, Replica, Turn, Work
from benchmarks.cluster.ring import Ring, fullest_over_mean
from benchmarks.cluster.service_times import Curve, ServiceTimes, service_times
from benchmarks.cluster.sessions import Habits
from benchmarks.cluster.simulation import Cluster, Simulation

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[3]
STEP_S = 1e-9  # so short that no turn waits for its end
KEYS = [f"session {number}" for number in range(10_000)]
FIGURES = {
    "step_s": [[1, 0.008], [8, 0.02]],
    "read_s": [[0, 0.0], [1000, 1.0]],
    "read_while_decoding_s": [[0, 0.0], [1000, 2.0]],
    "step_while_reading_s": 0.016,
    "load_s": [[0, 0.002], [20_000_000, 0.02]],
    "request_s": 0.002,
    "seats": 16,
    "capacity_tokens": 1024,
    "token_bytes": 20_000,
}


def ring_of(nodes: int) -> Ring:
    ring = Ring()
    for number in range(nodes):
        ring.add(f"node {number}")
    return ring


def owners(ring: Ring) -> dict[str, str]:
    return {key: ring.owner(key) for key in KEYS}


def test_more_points_make_shares_more_equal() -> None:
    few, many = (
        sum(fullest_over_mean(points, 20, 4000, draw) for draw in range(4)) / 4
        for points in (10, 1000)
    )
    assert many < 1.15
    assert few > 1.4


def test_a_new_node_takes_its_share_and_moves_nothing_else() -> None:
    ring = ring_of(100)
    before = owners(ring)
    ring.add("new")
    after = owners(ring)
    moved = [key for key in KEYS if before[key] != after[key]]
    assert all(after[key] == "new" for key in moved)
    assert 0.006 < len(moved) / len(KEYS) < 0.014
    ring.remove("new")
    assert owners(ring) == before


def test_a_lost_node_moves_only_its_own_keys_to_many_others() -> None:
    ring = ring_of(100)
    before = owners(ring)
    ring.remove("node 7")
    after = owners(ring)
    moved = [key for key in KEYS if before[key] != after[key]]
    assert moved == [key for key in KEYS if before[key] == "node 7"]
    assert len({after[key] for key in moved}) > 20
    whole = ring_of(100)
    assert all(after[key] == [*whole.walk(key)][1] for key in moved)


def test_a_ring_is_balanced_as_its_number_of_points_allows() -> None:
    sizes = Counter(owners(ring_of(100)).values())
    assert len(sizes) == 100
    assert 1.2 < max(sizes.values()) / 100 < 1.6  # the standard deviation of an arc sum is 1/10


def test_bounded_placement_keeps_its_bound_and_its_sessions() -> None:
    placement = BoundedPlacement(1.25)
    for number in range(20):
        placement.add(f"node {number}")
    nodes = {key: placement.choose(key) for key in KEYS[:2000]}
    assert max(placement.sessions.values()) <= 1.25 * 100 + 1
    placement.add("new")
    placement.remove("node 3")
    moved = [key for key, node in nodes.items() if placement.choose(key) != node]
    assert moved == [key for key, node in nodes.items() if node == "node 3"]
    for key in nodes:
        placement.forget(key)
    assert placement.sessions.total() == 0


def test_sticky_placement_prefers_replicas_without_a_queue() -> None:
    full = {"a"}
    placement = StickyPlacement(lambda replica: replica in full)
    placement.add("a")
    placement.add("b")
    assert [placement.choose(key) for key in KEYS[:3]] == ["b", "b", "b"]
    full.clear()
    assert [placement.choose(key) for key in KEYS[3:6]] == ["a", "a", "a"]
    full.update("ab")  # then the fewest sessions count again
    placement.forget(KEYS[0])
    assert placement.choose(KEYS[7]) == "b"
    assert placement.choose(KEYS[4]) == "a"


def test_a_curve_is_linear_between_points_and_beyond() -> None:
    curve = Curve([(1, 2.0), (3, 6.0), (5, 7.0)])
    assert [curve(x) for x in (0, 1, 2, 3, 4, 5, 9)] == [2, 2, 4, 6, 6.5, 7, 9]
    assert Curve([(4, 3.0)])(100) == 3
    with pytest.raises(ValueError, match="must have rising x"):
        Curve([(1, 2.0), (1, 3.0)])


@dataclass
class Watched:
    """A replica, and when its turns began, gave their first tokens and ended."""

    times: ServiceTimes
    seats: int
    delay_s: float = 0.0
    max_queue: int = 10**9
    processors: Processors = field(default_factory=Processors)
    began: dict[int, float] = field(default_factory=dict)
    first: dict[int, float] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.events = Events()
        calls = Calls(self._begin, lambda turn: self._note(self.first, turn), self._end)
        self.replica = Replica(
            self.events, self.times, calls, self.seats, self.max_queue, self.processors
        )

    def _begin(self, turn: Turn) -> Work:
        self._note(self.began, turn)
        return Work(self.delay_s, turn.prompt_tokens)

    def _end(self, turn: Turn) -> None:
        self._note(self.ended, turn)

    def _note(self, where: dict[int, float], turn: Turn) -> None:
        where[turn.number] = self.events.now_s

    def submit(self, number: int, prompt: float, reply: float) -> bool:
        return self.replica.submit(Turn(number, None, prompt, reply, self.events.now_s))


def constant(step_s: float, at_two_s: float | None = None) -> ServiceTimes:
    """Return times of an engine without a cost of reading."""
    steps = [[1, step_s], [2, at_two_s]] if at_two_s else [[1, step_s]]
    free = {
        "read_s": [[1, 0.0]],
        "read_while_decoding_s": [[1, 0.0]],
        "step_while_reading_s": step_s,
    }
    return service_times({**FIGURES, "step_s": steps, **free})


def test_a_schedule_is_as_by_hand() -> None:
    """Steps of 1 s, of 2 s with two; reading 10 tokens takes 4 s, or 8 s while one decodes."""
    reading = {"read_s": [[0, 0], [10, 4]], "read_while_decoding_s": [[0, 0], [10, 8]]}
    steps = {"step_s": [[1, 1.0], [2, 2.0]], "step_while_reading_s": 2.0}
    times = service_times({**FIGURES, **reading, **steps})
    watched = Watched(times, seats=2, delay_s=1.0)
    watched.submit(0, prompt=10, reply=11)
    watched.events.at(7, lambda: watched.submit(1, prompt=5, reply=3))
    watched.events.at(7, lambda: watched.submit(2, prompt=5, reply=1))
    watched.events.run(100)
    # 0: read from 1 to 5, then a token each second; 3 by 8. 1: read from 8 to 12, while 0 gets a
    # token every 2 s: 2 more. Then both: 2 tokens each in 4 s, to 16, when 1 ends and 2
    # begins. 0 has 3 + 2 + 2 of its 10. Until 17 it makes 1, then half a token each second: 2 more
    # by 21, when 2 has been read. 2 is whole with its first token.
    assert watched.first == pytest.approx({0: 5, 1: 12, 2: 21})
    assert watched.began[2] == pytest.approx(16)
    assert watched.ended == pytest.approx({0: 21, 1: 16, 2: 21})


def test_what_finds_no_room_is_refused_and_what_dies_is_returned() -> None:
    watched = Watched(constant(1.0), seats=1, max_queue=1)
    assert [watched.submit(number, 1, 10) for number in range(3)] == [True, True, False]
    watched.events.run(3)
    assert {turn.number for turn in watched.replica.stop()} == {0, 1}
    watched.events.run(100)
    assert watched.ended == {}


def test_a_prompt_waits_for_the_end_of_a_step_and_shares_the_next_ones() -> None:
    """Steps of 1 s, of 2 s that read; reading 10 tokens takes 8 s while one decodes."""
    reading = {
        "read_s": [[0, 0.0]],
        "read_while_decoding_s": [[0, 0], [10, 8]],
        "step_while_reading_s": 2.0,
    }
    times = service_times({**FIGURES, **reading, "step_s": [[1, 1.0]]})
    watched = Watched(times, seats=4)
    watched.submit(0, prompt=0, reply=100)
    for number, prompt in ((1, 5), (2, 10)):
        watched.events.at(3.5, partial(watched.submit, number, prompt, 1))
    watched.events.run(30)
    # Both begin at 4. Alternating, 1 has read its 5 tokens after 8 s, when 2 has read as many.
    assert watched.first == pytest.approx({0: 0, 1: 12, 2: 16})


def test_engines_lose_time_to_each_other_and_to_what_is_outside_of_them() -> None:
    """Steps of 1 s alone; of 1.5 s, and half a second for the token, while both engines work."""
    sharing = Sharing(2, 1.5, 3.0, token_s=0.5, turn_s=0.0, save_s=Curve([(1, 4.0)]))
    processors, times = Processors(sharing), constant(1.0)
    one, two = (Watched(times, seats=1, processors=processors) for _ in range(2))
    two.events = two.replica.events = one.events
    one.submit(0, prompt=1, reply=11)
    one.events.at(2, lambda: two.submit(0, prompt=1, reply=4))
    one.events.at(4, lambda: processors.save(9))
    outside_s = []
    for at in (1, 3):
        one.events.at(at, lambda: outside_s.append(processors.outside_s(2)))
    one.events.at(12, lambda: processors.save(9))
    one.events.run(100)
    # Both work from 2: at 4, each has a token more, and then loses 2 s of the 4 s. two has its 3
    # tokens at 10, when one has 2 + 3 of its 10. It is alone with the other 5, and loses nothing.
    assert (one.ended, two.ended) == ({0: pytest.approx(15)}, {0: pytest.approx(10)})
    assert outside_s == [2, 6]


def erlang_c(seats: int, load: float) -> float:
    """Return the probability of waiting in M/M/c at an offered load in Erlang."""
    term, total = 1.0, 1.0
    for number in range(1, seats):
        term *= load / number
        total += term
    last = term * load / seats * seats / (seats - load)
    return last / (total + last)


def test_waiting_is_that_of_several_servers_and_follows_erlangs_formula() -> None:
    """At a step that costs the same for any number of sequences, a replica is M/M/c."""
    seats, per_s = 4, 2.4
    watched, draw = Watched(constant(STEP_S), seats), random.Random(1)
    at, arrived, expected = 0.0, [], []
    free_at = [0.0] * seats
    for number in range(40_000):
        at += draw.expovariate(per_s)
        arrived.append(at)
        service_s = draw.expovariate(1.0)
        watched.events.at(at, partial(watched.submit, number, 1, 1 + service_s / STEP_S))
        begins_at = max(heapq.heappop(free_at), at)
        expected.append(begins_at - at)
        heapq.heappush(free_at, begins_at + service_s)
    watched.events.run(at + 1000)
    waits = [watched.began[number] - at for number, at in enumerate(arrived)]
    assert waits == pytest.approx(expected, abs=1e-6)
    # A sample of this size is within a tenth of the mean of all.
    law = erlang_c(seats, per_s) / (seats - per_s)
    assert sum(waits) / len(waits) == pytest.approx(law, rel=0.1)


def test_sharing_follows_the_law_of_processor_sharing() -> None:
    """At a step whose time grows with its sequences, a replica is M/M/1-PS: 1 / (mu - lambda)."""
    watched, draw = Watched(constant(STEP_S, 2 * STEP_S), seats=10**6), random.Random(2)
    at = 0.0
    arrived = {}
    for number in range(40_000):
        at += draw.expovariate(0.7)
        arrived[number] = at
        reply = 1 + draw.expovariate(1.0) / STEP_S
        watched.events.at(at, partial(watched.submit, number, 1, reply))
    watched.events.run(at + 1000)
    stays = [watched.ended[number] - arrived[number] for number in arrived]
    assert sum(stays) / len(stays) == pytest.approx(1 / (1 - 0.7), rel=0.05)


def small(placement: type = StickyPlacement, sessions: int = 60) -> Simulation:
    times = service_times(FIGURES)
    cluster = Cluster(replicas=3, sessions=sessions, utilization=0.5)
    make = placement if placement is StickyPlacement else lambda is_full: placement()
    return Simulation(times, make, cluster, Habits(), seed=1)


def test_a_drained_replica_loses_nothing_and_a_killed_one_its_last_window() -> None:
    unsaved = {}
    for remove, wait_s in ((Simulation.drain, 31), (Simulation.kill, 0)):
        simulation = small()
        simulation.events.run(300)
        victim = simulation.serving[0]
        own = [one for one in simulation._living.values() if one.in_memory_of == victim]
        remove(simulation, victim)
        simulation.events.run(300 + wait_s)
        assert victim not in simulation.hosts
        unsaved[remove] = max(one.tokens - one.saved_tokens for one in own if not one.in_memory_of)
    assert unsaved[Simulation.drain] <= 128 < unsaved[Simulation.kill] < 1024


def test_all_conversations_go_on_whatever_happens() -> None:
    for placement in (StickyPlacement, BoundedPlacement):
        simulation = small(placement)
        simulation.events.run(100)
        simulation.kill(simulation.serving[0])
        simulation.drain(simulation.serving[0])
        simulation.add_replica()
        simulation.start_counting()
        simulation.events.run(600)
        assert len(simulation._living) == 60
        assert len(simulation.hosts) == 2
        for name, host in simulation.hosts.items():
            assert all(one.in_memory_of == name for one in host.idle.values())
            assert len(host.idle) + min(host.replica.in_progress, 8) <= 16
        assert simulation.counters.turns > 200
        hosts = {session.host for session in simulation._living.values()}
        assert hosts <= {*simulation.hosts, ""} | {"replica 0", "replica 1"}


def test_the_same_seed_gives_the_same_run_and_the_report_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "times.json").write_text(json.dumps(FIGURES))
    reports = []
    for _ in range(2):
        done = subprocess.run(
            [
                sys.executable, ROOT / "benchmarks" / "cluster_simulation.py",
                "--times", tmp_path / "times.json", "--only", "loss", "--only", "replacement",
                "--replicas", "13", "--sessions", "130",
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        del report["took_s"]
        reports.append(report)
    assert reports[0] == reports[1]
    assert reports[0]["is_a_simulation"]
    assert all(row["cut_off"] + row["moved"] > 0 for row in reports[0]["loss"].values())
    assert all(0 < row["moved_per_replacement"] < 0.3 for row in reports[0]["replacement"].values())
