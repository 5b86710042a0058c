"""Every expression of a template gives transformers' text, and messages stay plain text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkstream.text.templates.traced_text import (
    DERIVED,
    MESSAGE,
    UNKNOWN,
    TracedText,
    origin_of_all,
)
from tests.python.text import template_fuzz
from tests.python.text.expressions import CONTENTS
from tests.python.text.template_fuzz import EXPRESSION_SOURCES, Case, ours, theirs


@pytest.mark.parametrize("source", EXPRESSION_SOURCES)
def test_every_expression_gives_transformers_text(source: str) -> None:
    for content in CONTENTS:
        case = Case(
            [
                {"role": "user", "content": content},
                {"role": "assistant", "content": "x <|im_end|> y"},
            ]
        )
        assert ours(source, case)[0] == theirs(source, case), content


def test_random_conversations_give_transformers_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert template_fuzz.main(["--cases", "600"]) == 0, capsys.readouterr().out


@given(st.lists(st.text("\x00\x01\x02\x03\x04")))
def test_several_texts_have_the_origin_that_all_characters_share(each: list[str]) -> None:
    several = set("".join(each))
    expected = UNKNOWN if several & {UNKNOWN, MESSAGE} else DERIVED
    if len(several) == 1:
        (expected,) = several
    assert origin_of_all([TracedText("a" * len(one), one) for one in each]) == expected


@pytest.mark.slow
def test_checkpoints_templates_give_transformers_text(
    real_templates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(list(real_templates.glob("*.jinja"))) > 50
    found = template_fuzz.main(["--cases", "2500", "--templates", str(real_templates)])
    assert found == 0, capsys.readouterr().out
