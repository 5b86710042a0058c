"""A cluster at work: clients ask, a router places, replicas serve, the store remembers.

What is simulated: seats and their parking, loads of snapshots, replays, queues, refusals, clients
that ask again; and, if replicas share their processors, what they lose to each other, to clients
and to the store. What is not: the network, the speed of the store, and waiting for a snapshot: a
server writes those of the conversations that leave next ahead of time.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from .events import Events
from .placement import Placement
from .processors import Processors, Sharing
from .replica import Calls, Replica, Turn, Work
from .service_times import ServiceTimes
from .sessions import Clients, Habits, Session

RETRY_S = 1.0  # after 429, and after a connection that broke
DRAIN_S = 30.0
_SAMPLE_S = 5.0


@dataclass(frozen=True, slots=True)
class Cluster:
    """The size of a run."""

    replicas: int = 100
    sessions: int = 10_000
    running: int = 8
    """Turns that a replica runs at the same time; it has `seats` of the tables in all."""
    max_queue: int = 64
    utilization: float = 0.6
    """Of the engines, if all of them had equal work."""


@dataclass(slots=True)
class Host:
    """A replica, and the idle sessions in its seats, the least recently used first."""

    replica: Replica
    idle: OrderedDict[str, Session] = field(default_factory=OrderedDict)
    generated: float = 0.0


@dataclass(slots=True)
class Counters:
    """What happened since the warm-up."""

    turns: int = 0
    generated_tokens: float = 0.0
    moved: int = 0
    """Turns on another replica than the session's turn before."""
    replayed_tokens: float = 0.0
    loaded: int = 0
    refused: int = 0
    cut_off: int = 0
    first_token_s: list[float] = field(default_factory=list)
    session_spread: list[float] = field(default_factory=list)
    """Most sessions of a replica by the mean, sampled."""


class Simulation:
    """One run."""

    def __init__(
        self,
        times: ServiceTimes,
        placement: Callable[[Callable[[str], bool]], Placement],
        cluster: Cluster,
        habits: Habits,
        seed: int,
        *,
        think_s: float | None = None,
        are_new: bool = False,
        sharing: Sharing | None = None,
    ) -> None:
        """Start all replicas and clients.

        Args:
            times: Of each replica.
            placement: Makes a router.
            cluster: The sizes.
            habits: Of the clients.
            seed: Of what they draw.
            think_s: How long they think on average; None: so that the engines are as busy as the
                cluster says.
            are_new: Whether no conversation has begun before.
            sharing: If all replicas are on one machine.
        """
        self.events = Events()
        self.cluster = cluster
        self.hosts: dict[str, Host] = {}
        """Those that get turns, and those that drain."""
        self.counters = Counters()
        self._times = times
        self._shared = None if sharing is None else Processors(sharing)
        self._placement = placement(self._is_full)
        self._habits = habits
        self._clients = Clients(habits, seed)
        self._numbers, self._names = count(), count()
        self._draining: set[str] = set()
        self._living: dict[str, Session] = {}
        self._think_s = think_s or think_time_s(times, cluster, habits)
        for _ in range(cluster.replicas):
            self.add_replica()
        for _ in range(cluster.sessions):
            session = self._clients.begin() if are_new else self._clients.begin_earlier()
            self._living[session.name] = session
            self.events.after(self._thought(session), lambda one=session: self._ask(one))
        self.events.after(_SAMPLE_S, self._sample)

    # ---- what happens to replicas ----------------------------------------------------------------

    def add_replica(self) -> str:
        """Start a replica."""
        name = f"replica {next(self._names)}"
        calls = Calls(
            begin=lambda turn: self._begin(name, turn),
            first_token=self._first_token,
            end=lambda turn: self._end(name, turn),
        )
        running = min(self.cluster.running, self._times.seats)
        processors = self._shared or Processors()
        replica = Replica(
            self.events, self._times, calls, running, self.cluster.max_queue, processors
        )
        self.hosts[name] = Host(replica)
        self._placement.add(name)
        return name

    def drain(self, name: str) -> None:
        """Send a replica no more turns, and remove it when its turns have had their time."""
        self._placement.remove(name)
        self._draining.add(name)
        self.events.after(DRAIN_S, lambda: self._leave(name))

    def _leave(self, name: str) -> None:
        host = self.hosts.pop(name)
        self._draining.remove(name)
        for session in host.idle.values():
            self._park(host.replica.processors, session)
        # Replies that still run are ended, and committed: nearly whole ones.
        for turn in host.replica.stop():
            self._record(turn)
            self._park(host.replica.processors, turn.session)
            self._think(turn.session)

    def kill(self, name: str) -> None:
        """Lose a replica, with all that it has in memory."""
        host = self.hosts.pop(name)
        self._placement.remove(name)
        for session in host.idle.values():
            session.in_memory_of = ""
        for turn in host.replica.stop():
            self.counters.cut_off += 1
            turn.session.in_memory_of = ""
            self.events.after(RETRY_S, lambda turn=turn: self._submit(turn))

    @property
    def serving(self) -> list[str]:
        """Return the replicas that get turns, the oldest first."""
        return [name for name in self.hosts if name not in self._draining]

    def _is_full(self, name: str) -> bool:
        return self.hosts[name].replica.in_progress >= self.cluster.running

    # ---- the life of a turn ----------------------------------------------------------------------

    def _thought(self, session: Session) -> float:
        return session.random.expovariate(session.heat / self._think_s)

    def _ask(self, session: Session) -> None:
        draw, habits = session.random.expovariate, self._habits
        words = 1 + draw(1 / habits.prompt_tokens)
        turn = Turn(
            next(self._numbers),
            session,
            words * habits.tokens_per_word + habits.template_tokens,
            1 + draw(1 / habits.reply_tokens),
            self.events.now_s,
        )
        self._submit(turn)

    def _submit(self, turn: Turn) -> None:
        host = self.hosts[self._placement.choose(turn.session.name)]
        if not host.replica.submit(turn):
            self.counters.refused += 1
            again_s = RETRY_S * (1 + turn.session.random.random())
            self.events.after(again_s, lambda: self._submit(turn))

    def _begin(self, name: str, turn: Turn) -> Work:
        session, host, times = turn.session, self.hosts[name], self._times
        if session.host not in ("", name):
            self.counters.moved += 1
        session.host = name
        processors = host.replica.processors
        processors.take_turn()
        if session.in_memory_of == name:
            host.idle.pop(session.name)
            return Work(processors.outside_s(times.request_s), turn.prompt_tokens)
        if session.in_memory_of:  # its owner hands it over
            self.hosts[session.in_memory_of].idle.pop(session.name)
            self._park(processors, session)
        session.in_memory_of = name
        running = min(host.replica.in_progress, self.cluster.running)
        while host.idle and running + len(host.idle) > times.seats:
            self._park(processors, host.idle.popitem(last=False)[1])
        saved = session.saved_tokens
        replayed = session.tokens - saved
        self.counters.replayed_tokens += replayed
        delay_s = times.request_s
        if saved:
            self.counters.loaded += 1
            load_s = times.load_s(self._snapshot_bytes(saved))
            processors.work(load_s)
            delay_s += load_s
        return Work(processors.outside_s(delay_s), replayed + turn.prompt_tokens)

    def _park(self, processors: Processors, session: Session) -> None:
        """Take a session out of memory; one that few tokens rebuild gets no snapshot."""
        session.in_memory_of = ""
        if session.tokens - session.saved_tokens > self._times.capacity_tokens / 8:
            session.saved_tokens = session.tokens
            processors.save(self._snapshot_bytes(session.tokens))

    def _snapshot_bytes(self, tokens: float) -> float:
        return min(tokens, self._times.capacity_tokens) * self._times.token_bytes

    def _first_token(self, turn: Turn) -> None:
        self.counters.first_token_s.append(self.events.now_s - turn.asked_at_s)

    def _end(self, name: str, turn: Turn) -> None:
        self.hosts[name].generated += turn.reply_tokens
        self._record(turn)
        session: Session = turn.session
        self.hosts[name].idle[session.name] = session
        self._think(session)

    def _record(self, turn: Turn) -> None:
        session: Session = turn.session
        self.counters.turns += 1
        self.counters.generated_tokens += turn.reply_tokens
        session.tokens += turn.prompt_tokens + turn.reply_tokens
        if session.tokens - session.saved_tokens >= self._times.capacity_tokens:
            session.saved_tokens = session.tokens

    def _think(self, session: Session) -> None:
        """Ask again later, in this conversation or in another."""
        session.turns_left -= 1
        if session.turns_left == 0:
            self._placement.forget(session.name)
            del self._living[session.name]
            if session.in_memory_of:
                del self.hosts[session.in_memory_of].idle[session.name]
            session = self._clients.begin()
            self._living[session.name] = session
        self.events.after(self._thought(session), lambda: self._ask(session))

    # ---- figures ---------------------------------------------------------------------------------

    def start_counting(self) -> None:
        """End the warm-up."""
        self.counters = Counters()
        for host in self.hosts.values():
            host.generated = 0.0

    def _sample(self) -> None:
        serving = self.serving
        by_host = Counter(session.host for session in self._living.values())
        sizes = [by_host[name] for name in serving]
        if sum(sizes):
            self.counters.session_spread.append(max(sizes) * len(sizes) / sum(sizes))
        self.events.after(_SAMPLE_S, self._sample)


def think_time_s(times: ServiceTimes, cluster: Cluster, habits: Habits) -> float:
    """Return how long clients think, so that the engines are busy for the wanted share of time."""
    step_s = times.step_s(cluster.running)
    decode_s = habits.reply_tokens * step_s
    steps_s = times.read_while_decoding_s(habits.prompt_tokens) * times.crowding(cluster.running)
    added_s = steps_s * (1 - times.step_s(1) / times.step_while_reading_s)  # to the steps that read
    turn_s = decode_s / cluster.running + added_s
    per_replica = cluster.sessions / cluster.replicas
    return max(1.0, per_replica * turn_s / cluster.utilization - decode_s)
