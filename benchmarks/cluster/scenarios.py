"""What happens to a simulated cluster during a run. Each scenario begins after the warm-up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .sessions import Habits
from .simulation import Simulation

WARM_UP_S = 120.0
RUN_S = 240.0
REPLACEMENTS = 12
_EVERY_S = 15.0
_START_S = 20.0  # of a new process: it loads the model


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens, and to whom."""

    schedule: Callable[[Simulation], None]
    hot: float = 0.0

    def habits(self) -> Habits:
        """Return how its clients behave."""
        return replace(Habits(), hot=self.hot)


def nothing(simulation: Simulation) -> None:
    """Leave the cluster alone."""


def _one_more_and_less(simulation: Simulation) -> None:
    """Start a tenth more replicas; later remove as many, the oldest first."""
    tenth = max(1, simulation.cluster.replicas // 10)
    events = simulation.events
    for number in range(tenth):
        events.after(10 + number, lambda: simulation.add_replica())
        events.after(RUN_S / 2 + number, lambda: simulation.drain(simulation.serving[0]))


def _replacements(simulation: Simulation) -> None:
    """Replace replicas one after the other: a new one starts, then an old one drains."""
    for number in range(REPLACEMENTS):

        def next_one() -> None:
            simulation.add_replica()
            simulation.drain(simulation.serving[0])

        simulation.events.after(10 + number * _EVERY_S, next_one)


def _loss(simulation: Simulation) -> None:
    """Lose a tenth of the replicas at once; new ones start."""
    tenth = max(1, simulation.cluster.replicas // 10)

    def lose() -> None:
        for name in simulation.serving[:tenth]:
            simulation.kill(name)

    simulation.events.after(60, lose)
    for _ in range(tenth):
        simulation.events.after(60 + _START_S, lambda: simulation.add_replica())


SCENARIOS = {
    "steady": Scenario(nothing),
    "scale": Scenario(_one_more_and_less),
    "replacement": Scenario(_replacements),
    "loss": Scenario(_loss),
    "hot tenants": Scenario(nothing, hot=0.8),
}
