"""A conversation whose host is lost while it streams: what is lost, and when it goes on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.hosts.asking import Answer, Client
from tests.hosts.network import Host
from tests.hosts.services import stored_turns

TURNS = 4
_MOST_S = 120.0


@dataclass(frozen=True)
class Loss:
    """What a client sees of it."""

    acknowledged_turns: int
    lost_turns: int
    is_same_reply: bool
    """Whether the next reply is that which the lost host has given to the same request."""
    goes_on_s: float
    """From the loss to the whole next reply."""
    requests: int
    """Until there is one."""
    state: str
    next_turn_s: float
    """Of the turn after that."""

    def figures(self) -> dict[str, Any]:
        """Return them for a report."""
        return {name: round(value, 2) if isinstance(value, float) else value
                for name, value in asdict(self).items()}  # fmt: skip


def talk(client: Client, through: str, session: str) -> list[str]:
    """Have a conversation, and return the ids of its responses."""
    ids: list[str] = []
    for number in range(TURNS):
        previous = ids[-1] if ids else None
        answer = client.ask(
            through, session, input=f"My name is Mark, {number}.", previous_response_id=previous,
            **_reply(number),
        )  # fmt: skip
        assert answer.status == 200, answer
        ids.append(answer.json["id"])
    return ids


def lose(
    client: Client,
    shared: Host,
    owner: Host,
    through: Mapping[str, Sequence[str]],
    session: str,
    ids: Sequence[str],
) -> Loss:
    """Lose the owner of a conversation while it streams, and go on with the last turn.

    Args:
        client: Who talks.
        shared: Where the store is.
        owner: The host to lose.
        through: Hosts to ask: before, and, alternating, after.
        session: The session's name.
        ids: Of its responses.
    """
    (before,), after = through["before"], through["after"]
    question = {"input": "What is my name?", "previous_response_id": ids[-1], **_reply(9)}
    expected = client.ask(before, session, **question)
    assert expected.status == 200, expected
    stream = client.stream(
        before, session, "stream.log", input="Go on.", previous_response_id=ids[-1]
    )
    said = client.host.folder / "stream.log"
    _wait_for_text(said)
    client.touch(before, session)
    owner.lose()
    began = time.monotonic()
    answers: list[Answer] = []
    while not answers or answers[-1].status != 200:
        assert time.monotonic() - began < _MOST_S, [(one.status, one.body) for one in answers]
        answers.append(client.ask(after[len(answers) % len(after)], session, **question))
    goes_on_s = time.monotonic() - began
    stream.kill()
    answer = answers[-1]
    then = client.ask(
        after[0], session, input="On.", previous_response_id=answer.json["id"], **_reply(10)
    )
    assert then.status == 200, then
    acknowledged = {*ids, expected.json["id"], answer.json["id"], then.json["id"]}
    return Loss(
        acknowledged_turns=len(acknowledged),
        lost_turns=len(acknowledged - stored_turns(shared)),
        is_same_reply=answer.text == expected.text,
        goes_on_s=goes_on_s,
        requests=len(answers),
        state=answer.json["sinkstream"]["state"],
        next_turn_s=then.took_s,
    )


def _reply(seed: int) -> dict[str, Any]:
    return {"max_output_tokens": 24, "seed": seed, "ignore_eos": True}


def _wait_for_text(said: Any) -> None:
    end = time.monotonic() + _MOST_S
    while b"output_text.delta" not in (said.read_bytes() if said.exists() else b""):
        assert time.monotonic() < end, said.read_bytes()
        time.sleep(0.1)
