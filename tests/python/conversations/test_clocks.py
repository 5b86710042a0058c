"""Clocks that jump: nothing is deleted before its age in true time, and the order of turns stays.

The clocks under the stores are made up: the true time passes, and the wall's clock says anything.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sinkstream.conversations import conversation_writer, store_age
from sinkstream.conversations.conversation_writer import ConversationWriter
from sinkstream.conversations.fence import Fence
from sinkstream.conversations.maintenance import Maintenance
from sinkstream.conversations.open_store import Settings
from sinkstream.conversations.sqlite_store import SqliteStore
from tests.python.conversations.stores import begun, finish, writer_of

TTL_S = 900.0
DAY_S = 86400.0
MARK = b"h"


@dataclass
class Clocks:
    """The true time, of which `time.monotonic` is a part, and what the wall's clock says."""

    true: float = 1e6
    ahead: float = 0.0

    def monotonic(self) -> float:
        return self.true

    def time(self) -> float:
        return 1.7e9 + self.true + self.ahead


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    found = Clocks()
    monkeypatch.setattr(store_age, "time", SimpleNamespace(monotonic=found.monotonic))
    monkeypatch.setattr(conversation_writer, "time", SimpleNamespace(time=found.time))
    return found


class Process:
    """A process that uses a store: it writes turns and sweeps."""

    def __init__(self, folder: Path, *, is_shared: bool) -> None:
        self.store = SqliteStore.open(folder, "model", is_shared=is_shared)
        nothing: Any = SimpleNamespace(
            residency=SimpleNamespace(all=list), snapshots=SimpleNamespace()
        )
        settings = Settings(ttl_s=TTL_S, maintenance_s=DAY_S)
        self.maintenance = Maintenance(
            nothing, self.store, Fence(self.store), settings, delete=self.delete
        )

    def delete(self, writer: ConversationWriter, tick: int) -> bool:
        return writer.delete_all(tick).result()

    def close(self) -> None:
        self.maintenance.close()
        self.store.close()


@dataclass
class Kept:
    """What must be in the store."""

    used: float
    """In true time."""
    turns: list[str] = field(default_factory=list)


class World:
    """Processes that use one store in any order, and what they have written."""

    def __init__(self, folder: Path, clocks: Clocks, count: int, seed: int) -> None:
        self.folder = folder
        self.clocks = clocks
        self.source = random.Random(seed)
        self.is_shared = count > 1
        self.processes = [self.opened() for _ in range(count)]
        self.kept: dict[str, Kept] = {}  # the most recently used last
        self.deleted = 0

    def opened(self) -> Process:
        return Process(self.folder, is_shared=self.is_shared)

    def run(self, steps: int) -> None:
        kinds = [self.wait, self.turn, self.sweep, self.jump, self.stop, self.restart]
        for _ in range(steps):
            self.source.choices(kinds, weights=[30, 20, 30, 10, 1, 1])[0]()

    def process(self) -> Process:
        return self.source.choice(self.processes)

    def wait(self) -> None:
        self.clocks.true += self.source.choice([0.0, 1.0, 5.0, 60.0, 100.0])

    def jump(self) -> None:
        """The wall's clock jumps for as long as it likes, or is right again."""
        self.clocks.ahead = self.source.choice([0.0, 0.0, 31.0, -2.0, -20_000.0, 400.0]) * DAY_S

    def stop(self) -> None:
        """All processes are stopped and go on, such as with the machine they are on."""
        self.clocks.true += self.source.uniform(0, 3 * TTL_S)

    def restart(self) -> None:
        """A process ends; others may go on meanwhile, and the clock may be set."""
        which = self.source.randrange(len(self.processes))
        self.processes[which].close()
        self.clocks.true += self.source.choice([0.0, 10.0, 3 * TTL_S])
        self.jump()
        self.processes[which] = self.opened()

    def turn(self) -> None:
        """A conversation begins or goes on."""
        store = self.process().store
        names = list(self.kept)
        name = self.source.choice([None, *names[-8:]])
        parent = None if name is None else self.source.choice(self.kept[name].turns)
        new = begun(name, parent)
        writer_of(store, new).begin(new).result()
        finish(store, new, [1], MARK)
        kept = self.kept.pop(new.conversation, Kept(0.0))
        kept.used = self.clocks.true
        kept.turns.append(new.id)
        self.kept[new.conversation] = kept
        self.check(store)

    def sweep(self) -> None:
        process = self.process()
        process.maintenance.run()
        left = {name for name, _ in process.store.conversations("ada")}
        for name in set(self.kept) - left:
            assert self.clocks.true - self.kept.pop(name).used >= TTL_S
            self.deleted += 1
        self.check(process.store)

    def check(self, store: SqliteStore) -> None:
        """The order is that in which turns were written, and the newest state is found."""
        names = list(self.kept)[::-1]
        assert [name for name, _ in store.conversations("ada")] == names
        for name in names[:3]:
            turns = self.kept[name].turns
            assert [node.id for node in store.nodes_of(name)] == turns
            last = store.last_turn("ada", name)
            assert last is not None
            assert last.id == turns[-1]
        equal = [node.id for node in store.find("ada", [MARK * 32])]
        assert equal == [turn for name in names for turn in self.kept[name].turns[::-1]]

    def close(self) -> None:
        for process in self.processes:
            with suppress(Exception):
                process.close()


@pytest.fixture
def worlds(tmp_path: Path, clocks: Clocks) -> Iterator[Any]:
    opened: list[World] = []

    def open_world(count: int, seed: int) -> World:
        opened.append(World(tmp_path / f"{len(opened)}", clocks, count, seed))
        return opened[-1]

    yield open_world
    for world in opened:
        world.close()


def check_that_ages_end(world: World) -> None:
    """What no client uses is deleted once servers have run for its age."""
    for _ in range(int(TTL_S // 60) + 2):
        world.clocks.true += 60.0
        for process in world.processes:
            process.maintenance.run()
    assert world.processes[0].store.conversations("ada") == []


@pytest.mark.parametrize("count", [1, 2])
def test_no_clock_deletes_or_misorders(worlds: Any, count: int) -> None:
    world = worlds(count, seed=count)
    world.run(600)
    assert world.deleted > 5
    check_that_ages_end(world)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("seed", range(10))
def test_no_clock_ever_deletes_or_misorders(worlds: Any, count: int, seed: int) -> None:
    world = worlds(count, seed=100 + seed)
    world.run(3000)
    check_that_ages_end(world)


def test_time_in_which_no_server_runs_makes_nothing_old(worlds: Any, clocks: Clocks) -> None:
    world = worlds(1, seed=0)
    world.turn()
    world.processes[0].close()
    clocks.true += 400 * DAY_S
    world.processes[0] = world.opened()
    for _ in range(10):
        clocks.true += 5.0
        world.sweep()
    assert len(world.kept) == 1


def test_a_process_that_was_stopped_makes_nothing_of_another_old(
    worlds: Any, clocks: Clocks
) -> None:
    """While it was stopped, the other one began: that time has not passed for the other's turns."""
    world = worlds(2, seed=0)
    stopped, other = world.processes
    stopped.maintenance.run()
    other.close()
    clocks.true += 10 * TTL_S
    world.processes = [world.opened()]
    world.turn()
    stopped.maintenance.run()
    world.sweep()
    assert len(world.kept) == 1
    stopped.close()


def test_snapshots_are_kept_in_the_order_of_their_writes(worlds: Any, clocks: Clocks) -> None:
    world = worlds(1, seed=0)
    store = world.processes[0].store
    new = begun()
    writer = writer_of(store, new)
    for number in range(3):
        clocks.ahead = -number * DAY_S
        turn = begun(new.conversation, None if number == 0 else node.id)  # noqa: F821
        writer.begin(turn)
        node = finish(store, turn, [1], MARK)
        writer.add_snapshot(node, writer.new_file(node.id), 1)
    assert store.snapshot_of(node.id) is not None
    assert [name for name, _ in store.oldest_snapshots()][-1] == node.id
    assert array("i", [1]) == store.ids_of(node.id)[-1:]
