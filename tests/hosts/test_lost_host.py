"""docs/guides/cluster.md on three hosts, one of which is lost while a client streams from it.

`make test-hosts` runs this; it is not part of `make test`, because it needs root.
"""

from __future__ import annotations

import pytest

from tests.data import tiny
from tests.hosts.asking import Client
from tests.hosts.losing import Loss, lose, talk
from tests.hosts.network import hosts, missing
from tests.hosts.plain import start_nginx, start_servers
from tests.hosts.services import owner_of, start_shared
from tests.python.server.conversations.postgres import MISSING, programs


def lose_with_nginx() -> Loss:
    """Return what is lost with a tiny model and nginx."""
    with hosts("db", "a", "b", "c", "front", "client") as found:
        machines = {name: found[name] for name in "abc"}
        model = found["db"].folder / "tiny"
        tiny.write_folder(tiny.build("llama"), model, shards=1)
        variables = start_shared(found["db"])
        for host in machines.values():
            host.variables.update(variables)
        start_servers(machines, model, "front")
        start_nginx(found["front"], machines)
        client = Client(found["client"])
        ids = talk(client, "front", "mark")
        owner = machines[owner_of(found["db"], ids[-1])]
        through = {"before": ["front"], "after": ["front"]}
        return lose(client, found["db"], owner, through, "mark", ids)


@pytest.mark.timeout(600)
def test_a_conversation_goes_on_with_nginx() -> None:
    reason = missing() or (MISSING if programs() is None else None)
    if reason is not None:
        pytest.skip(reason)
    loss = lose_with_nginx()
    print(loss.figures())
    assert loss.lost_turns == 0
    assert loss.is_same_reply
    assert loss.requests == 1  # the first one is answered, after nginx has tried the lost host
    assert loss.goes_on_s < 10
