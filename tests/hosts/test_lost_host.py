"""docs/guides/cluster.md on three hosts, one of which is lost while a client streams from it.

`make test-hosts` runs this; it is not part of `make test`, because it needs root.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.data import tiny
from tests.hosts.asking import Client
from tests.hosts.losing import Loss, lose, talk
from tests.hosts.network import Host, hosts, missing
from tests.hosts.plain import start_nginx, start_servers
from tests.hosts.services import owner_of, start_shared
from tests.hosts.with_ray import start_ray
from tests.python.cluster.postgres import MISSING, programs


@contextmanager
def machines_with_a_store(*others: str) -> Iterator[tuple[dict[str, Host], dict[str, Host], Path]]:
    """Give all hosts, those of the guide's three machines, and the folder of a tiny model."""
    with hosts("db", *"abc", *others, "client") as found:
        machines = {name: found[name] for name in "abc"}
        model = found["db"].folder / "tiny"
        tiny.write_folder(tiny.build("llama"), model, shards=1)
        variables = start_shared(found["db"])
        for host in machines.values():
            host.variables.update(variables)
        yield found, machines, model


def lose_with_nginx() -> Loss:
    """Return what is lost with a tiny model and nginx."""
    with machines_with_a_store("front") as (found, machines, model):
        start_servers(machines, model, "front")
        start_nginx(found["front"], machines)
        client = Client(found["client"])
        ids = talk(client, "front", "mark")
        owner = owner_of(found["db"], machines.values(), ids[-1])
        through = {"before": ["front"], "after": ["front"]}
        return lose(client, found["db"], owner, through, "mark", ids)


def lose_with_ray() -> Loss:
    """Return what is lost with a tiny model and Ray, if it is not the host of Ray's control."""
    with machines_with_a_store() as (found, machines, model):
        start_ray(machines, model)
        client = Client(found["client"])
        for session in map(str, itertools.count()):
            ids = talk(client, "a", session)
            owner = owner_of(found["db"], machines.values(), ids[-1])
            if owner.name != "a":
                break
        left = [name for name in machines if name != owner.name]
        return lose(client, found["db"], owner, {"before": ["a"], "after": left}, session, ids)


def check_needs(*modules: str) -> None:
    reason = missing() or (MISSING if programs() is None else None)
    if reason is not None:
        pytest.skip(reason)
    for module in modules:
        pytest.importorskip(module)


@pytest.mark.timeout(600)
def test_a_conversation_goes_on_with_nginx() -> None:
    check_needs()
    loss = lose_with_nginx()
    print(loss.figures())
    assert loss.lost_turns == 0
    assert loss.is_same_reply
    assert loss.requests == 1  # the first one is answered, after nginx has tried the lost host
    assert loss.goes_on_s < 10


@pytest.mark.timeout(900)
def test_a_conversation_goes_on_with_ray() -> None:
    check_needs("ray")
    loss = lose_with_ray()
    print(loss.figures())
    assert loss.lost_turns == 0
    assert loss.is_same_reply
    assert loss.requests == 1  # it waits until Ray has noticed
    assert loss.goes_on_s < 30  # 65 s without the guide's settings
