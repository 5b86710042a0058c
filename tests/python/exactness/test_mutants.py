"""Each planted bug of `tests/mutants` makes the tests fail that must catch it.

`make test-full` and `make test-mutants` plant all; `make test` those in sources of the cache.
Objects are kept in build/mutants, or in the folder of SINKSTREAM_MUTANTS.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.catalogue import WINDOW, Mutant
from tests.mutants.catalogue_cuda import NATIVE
from tests.mutants.verdict import Verdict, verdict_on, verdicts_on
from tests.mutants.workshop import ROOT, TABLES, Workshop, tables_of


def is_quick(mutant: Mutant) -> bool:
    # No kernels are compiled, nor all that includes a header.
    needs_cache_only = all(killer.startswith("cache/") for killer in mutant.killers)
    return needs_cache_only and mutant.file.endswith(".cc")


@pytest.fixture(scope="module")
def workshop() -> Workshop:
    made = Workshop(Path(os.environ.get("SINKSTREAM_MUTANTS", ROOT / "build" / "mutants")))
    if (missing := made.missing()) is not None:
        pytest.skip(missing)
    return made


@pytest.fixture(scope="module")
def verdicts(
    request: pytest.FixtureRequest, workshop: Workshop
) -> Iterator[dict[str, Future[Verdict]]]:
    """Return the verdicts on the selected mistakes, two of which are planted at a time."""
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    chosen = [call.params["mutant"] for call in calls if call and "mutant" in call.params]
    with verdicts_on(dict.fromkeys(chosen), workshop) as found:
        yield found


def what_is_gone(planted: Mutant) -> Iterator[str]:
    """Say why a mistake cannot be planted, or which of its tests does not exist."""
    text = (ROOT / planted.file).read_text(encoding="utf-8")
    try:
        if planted.apply(text) == text:
            yield f"{planted.name} changes nothing"
    except ValueError as error:
        yield f"{planted.name}: {error}"
    if not planted.killers:
        yield f"{planted.name} has no tests"
    for killer in planted.killers:
        program, name = killer.split(":", 1)
        suite, case = name.split(".")  # from Prefix/Suite.Case/parameter or Suite.Case
        suite, case = suite.split("/")[-1], case.split("/")[0]
        source = (ROOT / "tests" / "cpp" / f"{program}_test.cc").read_text(encoding="utf-8")
        if not re.search(rf"^TEST(_[FP])?\({suite}, {case}\)", source, re.MULTILINE):
            yield f"{planted.name}: there is no {killer}"


def test_every_mistake_can_still_be_planted() -> None:
    assert [line for planted in NATIVE for line in what_is_gone(planted)] == []


def test_a_mistake_that_cannot_be_planted_is_named() -> None:
    for change, sentence in (
        ({"old": "no such text"}, "must occur once"),
        ({"new": ANY.old}, "changes nothing"),
        ({"killers": ()}, "has no tests"),
        ({"killers": ("cache/angles:Angles.FlyToTheMoon",)}, "there is no cache/angles:"),
    ):
        (found,) = what_is_gone(replace(ANY, **change))
        assert sentence in found


def test_no_two_mistakes_have_the_same_name() -> None:
    assert len({mutant.name for mutant in NATIVE}) == len(NATIVE)


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, id=mutant.name, marks=() if is_quick(mutant) else pytest.mark.slow)
        for mutant in NATIVE
    ],
)
def test_the_suite_catches(mutant: Mutant, verdicts: dict[str, Future[Verdict]]) -> None:
    verdict = verdicts[mutant.name].result()
    assert verdict.is_caught, f"{verdict.word}: {verdict.report}"


# ---- the verdicts themselves ----

ANY = next(mutant for mutant in NATIVE if mutant.name == "frequency_of_24_bits")


@pytest.mark.parametrize(
    ("word", "change"),
    [
        # Equivalent code.
        ("survived", lambda: replace(ANY, new=" + frequency.lower * position) * kTurn;")),
        ("crashed", lambda: replace(ANY, new=" + (__builtin_trap(), position)) * kTurn;")),
        ("broken", lambda: replace(ANY, new="no such thing")),
        # A test that does not exist passes neither with the mistake nor without.
        ("broken", lambda: replace(ANY, killers=("cache/angles:Angles.FlyToTheMoon",))),
        ("caught", lambda: ANY),
    ],
)
def test_only_a_test_that_fails_has_caught_a_mistake(
    word: str, change: Callable[[], Mutant], workshop: Workshop
) -> None:
    assert verdict_on(change(), workshop).word == word


def test_a_mistake_whose_old_text_is_gone_is_an_error() -> None:
    text = (ROOT / WINDOW).read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="must occur once"):
        replace(ANY, old="no such text").apply(text)
    with pytest.raises(ValueError, match="must occur once"):
        replace(ANY, old="window").apply(text)


def test_a_mistake_is_planted_only_in_the_kernel_table_that_its_test_is_about() -> None:
    assert tables_of("Tables/LinearTest.EqualsTheReference/generic") == [
        "csrc/kernels/cpu/generic.cc"
    ]
    assert tables_of("Tables/LinearTest.EqualsTheReference/amx_emulated") == [
        "tests/cpp/kernels/amx_emulated.cc",
        "tests/cpp/kernels/emulated_lanes.cc",
    ]
    for test in ("Tables/LinearTest.EqualsTheReference/reference", "LinearOrder.OfDots"):
        assert tables_of(test) == TABLES
    named = {killer.rsplit("/", 1)[-1] for planted in NATIVE for killer in planted.killers}
    assert {"generic", "avx2", "avx512_emulated", "amx_emulated"} <= named


def test_a_changed_header_is_compiled_again(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A project of one source and one header; the header changes.
    import tests.mutants.workshop as module

    monkeypatch.setattr(module, "ROOT", tmp_path)
    for folder in ("csrc/cache", "tests/cpp/cache", "tests/mutants/cpp"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / module.PREFIX).touch()
    header = tmp_path / "csrc/cache/answer.h"
    source = tmp_path / "csrc/cache/answer.cc"
    source.write_text('#include "cache/answer.h"\nint answer() { return kAnswer; }\n')
    own = Workshop(tmp_path / "objects in a folder", workshop.compiler)
    found = set()
    for number in (41, 42, 42):
        header.write_text(f"constexpr int kAnswer = {number};\n")
        found.add(own.compile("csrc/cache/answer.cc"))
    assert len(found) == 2
