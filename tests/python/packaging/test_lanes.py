"""The two lanes: what `make test` leaves out is in `make test-full`, and what it runs is enough."""

from __future__ import annotations

import re
import tomllib
from itertools import combinations, product
from pathlib import Path

import pytest
from hypothesis import settings

from tests.python.family_variants import CONFIGS, covering_variants, parts_of, spec_of
from tests.python.lanes import cases, covering_set, examples, products

ROOT = Path(__file__).parents[3]
AXES = ("abcd", range(3), range(5), (True, False))


def test_make_test_leaves_out_every_mark_and_make_test_full_none() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    pytest_options = options["tool"]["pytest"]["ini_options"]
    marks = [line.split(":")[0] for line in pytest_options["markers"]]
    addopts = pytest_options["addopts"]
    assert addopts[addopts.index("-m") + 1] == " and ".join(f"not {mark}" for mark in marks)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (full,) = re.findall(r"^test-full:.*\n(?:\t.*\n)+", makefile, re.MULTILINE)
    assert "$(PYTEST_RUN) -m '' " in full


def everyday(parameters: list[object]) -> list[tuple[object, ...]]:
    return [each.values for each in parameters if not each.marks]  # type: ignore[attr-defined]


@pytest.mark.parametrize("together", [1, 2, 3])
def test_values_of_any_axes_meet_in_make_test(together: int) -> None:
    every = products(*AXES, together=together)
    assert [each.values for each in every] == list(product(*AXES))
    rows = everyday(every)
    for axes in combinations(range(len(AXES)), together):
        met = {tuple(row[axis] for axis in axes) for row in rows}
        assert met == set(product(*(AXES[axis] for axis in axes)))
    assert len(rows) <= {1: 5, 2: 20, 3: 60}[together]  # as few as there can be


def test_a_tuple_is_the_values_of_several_parameters() -> None:
    assert everyday(products([("a", 1)], [2, 3], together=1)) == [("a", 1, 2), ("a", 1, 3)]
    assert everyday(cases([("a", 1), ("b", 2)], always=lambda name, size: size > 1)) == [("b", 2)]


def test_make_test_tries_fewer_examples() -> None:
    here = settings.get_current_profile_name()
    counts = {}
    for profile in ("same", "search"):
        settings.load_profile(profile)
        counts[profile] = [examples(count).max_examples for count in (8, 30, 200)]
    settings.load_profile(here)
    assert counts == {"same": [8, 10, 50], "search": [8, 30, 200]}


def test_a_covering_set_has_every_part_and_no_more_than_it_needs() -> None:
    assert covering_set({"a": {1, 2}, "b": {2, 3, 4}, "c": {4}, "d": {1}}) == ["b", "a"]


def test_the_models_of_make_test_have_every_part_of_a_decoder() -> None:
    has = {name: parts_of(spec_of(name)) for name in CONFIGS}
    chosen = covering_variants()
    assert set().union(*(has[name] for name in chosen)) == set().union(*has.values())
    assert len(chosen) < len(CONFIGS) / 3


def test_a_part_is_a_field_with_its_value() -> None:
    gemma, mpt = parts_of(spec_of("gemma2")), parts_of(spec_of("mpt-clipped"))
    assert ("windows of layers", frozenset({True, False})) in gemma
    assert (".blocks.mixer.soft_cap", "another") in gemma - mpt
    assert (".blocks.mixer.clip", "another") in mpt - gemma
    assert ("windows of layers", frozenset()) in mpt
