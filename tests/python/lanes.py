"""The two lanes of tests with many cases: `make test` runs some of them, `make test-full` all.

What `make test` leaves out has the mark `full`. Which cases it runs is computed from all of them,
so that a new family, field or template is in both lanes without further work.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any, TypeVar

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

Item = TypeVar("Item")


def cases(every: Iterable[Any], always: Callable[..., bool]) -> list[ParameterSet]:
    """Return the parameters of a test; those for which `always` is false are for `make test-full`.

    A tuple is the values of several parameters, and the arguments of `always`.
    """
    return [in_lane(given, always(*given)) for given in map(as_tuple, every)]


def in_lane(given: tuple[Any, ...], always: bool) -> ParameterSet:
    return pytest.param(*given, marks=() if always else pytest.mark.full)


def as_tuple(values: Any) -> tuple[Any, ...]:
    return values if isinstance(values, tuple) else (values,)


def products(*axes: Iterable[Any], together: int = 2) -> list[ParameterSet]:
    """Return all combinations of the axes' values, of which `make test` runs a part.

    Args:
        *axes: The values of a parameter each; a tuple is the values of several parameters.
        together: `make test` runs every combination of values of so few axes at least once: 2 finds
            what two values cause together, 1 what one does.
    """
    lists = [[as_tuple(values) for values in axis] for axis in axes]
    sizes = [len(values) for values in lists]
    chosen = set(covering_rows(sizes, together))
    return [
        in_lane(sum((values[i] for values, i in zip(lists, row, strict=True)), ()), row in chosen)
        for row in product(*map(range, sizes))
    ]


def covering_rows(sizes: Sequence[int], together: int) -> list[tuple[int, ...]]:
    """Return few rows of an index for each axis, in which all indices of `together` axes meet.

    Each row begins with indices that have not met, and takes for the other axes those that meet the
    most new ones, and of these the least used.
    """
    missing: dict[frozenset[tuple[int, int]], None] = {}  # in the order in which they are added
    for axes in combinations(range(len(sizes)), together):
        for indices in product(*(range(sizes[axis]) for axis in axes)):
            missing[frozenset(zip(axes, indices, strict=True))] = None

    def meetings(row: Iterable[tuple[int, int]]) -> list[frozenset[tuple[int, int]]]:
        return [met for one in combinations(row, together) if (met := frozenset(one)) in missing]

    rows: list[tuple[int, ...]] = []
    used = [[0] * size for size in sizes]
    while missing:
        row = dict(next(iter(missing)))
        for axis in sorted(set(range(len(sizes))) - row.keys(), key=lambda axis: -sizes[axis]):
            worth = [
                (len(meetings([*row.items(), (axis, index)])), -used[axis][index])
                for index in range(sizes[axis])
            ]
            row[axis] = worth.index(max(worth))
        rows.append(tuple(index for _, index in sorted(row.items())))
        for axis, index in row.items():
            used[axis][index] += 1
        for met in meetings(enumerate(rows[-1])):
            del missing[met]
    return rows


def examples(count: int) -> settings:
    """Let hypothesis try this many examples in `make test-full`.

    In `make test`, it tries a quarter of them, but not fewer than 10.
    """
    is_full = settings.get_current_profile_name() == "search"
    return settings(max_examples=count if is_full else min(count, max(10, count // 4)))


def covering_set(parts: Mapping[Item, Iterable[Hashable]]) -> list[Item]:
    """Return few of the items, which together have all parts that any of them has."""
    left = {item: set(has) for item, has in parts.items()}
    missing = set().union(*left.values())
    chosen = []
    while missing:
        best = max(left, key=lambda item: len(left[item] & missing))
        missing -= left.pop(best)
        chosen.append(best)
    return chosen
