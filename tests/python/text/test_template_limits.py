"""Templates may use ordinary formatting, but nothing whose result is wide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError

from sinkstream.text.templates.limits import (
    Limits,
    check_braces,
    check_date_layout,
    check_percent,
    current_limits,
)
from tests.python.lanes import examples

PIECES = [
    "%", "(", ")", "{", "}", "[", "]", ":", "!", "r", "s", "d", "f", "l", ".", "*", "#", "-", "+",
    " ", "0", "7", "5000", "a", "%5000d", "%(a)5000s", "{:5000}", "{0:.5000f}", "%(", "{{", "}}",
]  # fmt: skip


class Anything(dict[str, int]):
    """Has every key."""

    def __missing__(self, key: str) -> int:
        return 1


def refuses(check: Callable[..., None], template: str, *arguments: Any) -> bool:
    """Return whether a check stops a template."""
    token = current_limits.set(Limits(60.0, 1 << 20))
    try:
        check(template, *arguments)
    except TemplateError:
        return True
    finally:
        current_limits.reset(token)
    return False


def length_of(make: Callable[[], str]) -> int:
    """Return the length of a result, or 0 if Python raises an error."""
    try:
        return len(make())
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError):
        return 0


templates = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@examples(2000)
@given(templates, st.sampled_from([1, (1, 1), (1, 1.5, 1), (5000, 1), Anything()]))
@example("%((a)a)5000d", Anything())
@example("%%(%5000d)", 1)
@example("%5%(%5000d)", 1)
@example("%l%(%5000d)", 1)
@example("%*d", (5000, 1))
@example("%.*f", (5000, 1))
def test_what_passes_does_not_become_wide_by_percent(template: str, arguments: Any) -> None:
    made = length_of(lambda: template % arguments)
    if made > len(template) + 1100 * template.count("%"):
        assert refuses(check_percent, template, arguments)


@examples(2000)
@given(templates)
@example("{{{:5000}")
@example("{1[}{]:5000}")
@example("{0:{b}}")
def test_what_passes_does_not_become_wide_by_format(template: str) -> None:
    made = length_of(lambda: template.format(1, {"}{": 1}, a=1, b=5000))
    if made > len(template) + 1100 * template.count("{"):
        assert refuses(check_braces, template, ())


@pytest.mark.parametrize(
    "template",
    [
        "%s",
        "100%% of 2024",
        "%d Jan 2024",
        "%(year2024)s",
        "%999d",
        "%-5.3f %+d %x",
        "%(a(b)c)s 2024",
    ],
)
def test_ordinary_percent_fields_pass(template: str) -> None:
    assert not refuses(check_percent, template, ())


@pytest.mark.parametrize(
    "template",
    ["{}", "{{2024}}", "{0[2024]}", "{:>999}", "{a!r:<3} in 2024", "{:.3f}", '{{"year": 2024}}'],
)
def test_ordinary_brace_fields_pass(template: str) -> None:
    assert not refuses(check_braces, template, ())


@pytest.mark.parametrize("template", ["{", "}", "{0", "{0:", "{:{", "{0!", "{0!r"])
def test_what_python_itself_refuses_is_left_to_it(template: str) -> None:
    assert not refuses(check_braces, template, ())


def test_a_wide_field_before_a_mistake_is_refused() -> None:
    assert refuses(check_braces, "{:5000}{", ())
    assert refuses(check_percent, "%5000d%(", ())


@pytest.mark.parametrize("layout", ["%d %b %Y", "%Y-%m-%dT%H:%M:%S", "%-d", "%B %d, %Y"])
def test_ordinary_dates_pass(layout: str) -> None:
    assert not refuses(check_date_layout, layout)


@pytest.mark.parametrize("layout", ["%1000d", "%(%1000d)", "%_9999Y", "%" * 5000])
def test_wide_dates_are_refused(layout: str) -> None:
    assert refuses(check_date_layout, layout)
