"""Whether the tests notice a mistake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from tests.mutants.catalogue import Mutant
from tests.mutants.workshop import BuildError, Outcome


class Runner(Protocol):
    """Runs a test with and without a mistake: a `Workshop` or a `ScratchPackage`."""

    def run(self, killer: str, mutant: Mutant | None = None) -> Outcome:
        """Run one test; BuildError: its program does not compile."""
        ...


@dataclass(frozen=True)
class Verdict:
    """The result of planting a mistake."""

    word: str
    """"caught", "survived", "crashed" or "broken" (it does not compile, or its tests fail without
    it)."""
    report: str
    """Output of the deciding run."""

    @property
    def is_caught(self) -> bool:
        """Return whether every killer failed with the mistake and passes without it."""
        return self.word == "caught"


def verdict_on(mutant: Mutant, runner: Runner) -> Verdict:
    """Run a mistake's killers without it, then with it."""
    try:
        for killer in mutant.killers:
            outcome = runner.run(killer)
            if not outcome.passed:
                return Verdict("broken", f"{killer} fails by itself:\n{outcome.output}")
            outcome = runner.run(killer, mutant)
            if not outcome.failed:
                word = "survived" if outcome.passed else "crashed"
                return Verdict(word, f"{killer}:\n{outcome.output}")
    except BuildError as error:
        return Verdict("broken", str(error))
    return Verdict("caught", outcome.output)


@contextmanager
def verdicts_on(
    mutants: Iterable[Mutant], runner: Runner, jobs: int = 2
) -> Iterator[dict[str, Future[Verdict]]]:
    """Try mistakes, `jobs` at a time, and yield their verdicts by name."""
    with ThreadPoolExecutor(jobs) as pool:
        yield {mutant.name: pool.submit(verdict_on, mutant, runner) for mutant in mutants}
        pool.shutdown(cancel_futures=True)
