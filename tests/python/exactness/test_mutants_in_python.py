"""Each mistake planted into `streaming_llm` or `evaluate` makes the test fail that must catch it.

`make test-full` and `make test-mutants` plant all; `make test` plants some of each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace

import pytest

from tests.mutants.catalogue import Mutant
from tests.mutants.catalogue_cuda import NATIVE
from tests.mutants.catalogue_python import CATALOGUE_PYTHON
from tests.mutants.scratch_package import ScratchPackage
from tests.mutants.verdict import Verdict, verdict_on, verdicts_on
from tests.mutants.workshop import ROOT

PLANTED_ALWAYS = {
    "current_token_is_recent",
    "evicts_before_the_forward",
    "resume_loses_a_block",
    "scores_the_token_that_was_read",
    "sinks_one_place_too_near",
    "window_without_the_sinks_share",
}


@pytest.fixture(scope="module")
def verdicts(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Verdict]]]:
    """Return the verdicts on the selected mistakes, two of which are planted at a time."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    chosen = [c.params["in_python"] for c in calls if c and "in_python" in c.params]
    package = ScratchPackage([killer for mutant in chosen for killer in mutant.killers])
    with verdicts_on(chosen, package) as found:
        yield found


def what_is_gone(planted: Mutant) -> Iterator[str]:
    """Say why a mistake cannot be planted, or which of its tests does not exist."""
    text = (ROOT / planted.file).read_text(encoding="utf-8")
    try:
        compile(planted.apply(text), planted.file, "exec")
    except (SyntaxError, ValueError) as error:
        yield f"{planted.name}: {error}"
    if not planted.killers:
        yield f"{planted.name} has no tests"
    for killer in planted.killers:
        file, name = killer.split("::")
        source = (ROOT / file).read_text(encoding="utf-8")
        if not re.search(rf"^def {name.split('[')[0]}\(", source, re.MULTILINE):
            yield f"{planted.name}: there is no {killer}"


def test_every_mistake_can_still_be_planted() -> None:
    assert [line for planted in CATALOGUE_PYTHON for line in what_is_gone(planted)] == []


def test_a_mistake_that_cannot_be_planted_is_named() -> None:
    for change, sentence in (
        ({"old": "no such text"}, "must occur once"),
        ({"new": "    no Python\n"}, "invalid syntax"),
        ({"killers": ()}, "has no tests"),
        ({"killers": (ANY.killers[0] + "_on_the_moon",)}, "there is no tests/"),
    ):
        (found,) = what_is_gone(replace(ANY, **change))
        assert sentence in found


def test_no_two_mistakes_have_the_same_name() -> None:
    names = [mutant.name for mutant in NATIVE + CATALOGUE_PYTHON]
    assert len(set(names)) == len(names)
    assert set(names) > PLANTED_ALWAYS


@pytest.mark.parametrize(
    "in_python",
    [
        pytest.param(m, id=m.name, marks=() if m.name in PLANTED_ALWAYS else pytest.mark.slow)
        for m in CATALOGUE_PYTHON
    ],
)
def test_the_suite_catches(in_python: Mutant, verdicts: dict[str, Future[Verdict]]) -> None:
    verdict = verdicts[in_python.name].result()
    assert verdict.is_caught, f"{verdict.word}: {verdict.report}"


# ---- the verdicts themselves ----

ANY = next(mutant for mutant in CATALOGUE_PYTHON if mutant.name == "beginning_of_text_has_bytes")


@pytest.fixture(scope="module")
def package() -> ScratchPackage:
    return ScratchPackage()


@pytest.mark.parametrize(
    ("word", "change"),
    [
        ("survived", lambda: replace(ANY, new=ANY.old)),
        ("crashed", lambda: replace(ANY, new="    no_such_name\n")),
        ("crashed", lambda: replace(ANY, new="    what is not Python\n")),
        ("broken", lambda: replace(ANY, killers=(ANY.killers[0] + "_on_the_moon",))),
        ("caught", lambda: ANY),
    ],
)
def test_only_a_test_that_fails_has_caught_a_mistake(
    word: str, change: Callable[[], Mutant], package: ScratchPackage
) -> None:
    assert verdict_on(change(), package).word == word
