"""Long texts are encoded while other threads run, with the ids of tokenizers' own `encode`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkstream.text.tokenizers import encoding_of
from tests.python.lanes import examples
from tests.python.text.vocabularies import FAMILIES, PROSE


@pytest.mark.parametrize("family", FAMILIES)
@examples(100)
@given(text=st.text() | st.text(st.sampled_from("ab \n\u00e9<|>_\u2581")))
def test_ids_and_offsets_are_those_of_encode(family: str, text: str) -> None:
    tokenizer = FAMILIES[family]().tokenizer
    assert tokenizer is not None
    expected = tokenizer.encode(text, add_special_tokens=False)
    assert encoding_of(tokenizer, text).ids == expected.ids
    found = encoding_of(tokenizer, text, has_offsets=True)
    assert (found.ids, found.offsets) == (expected.ids, expected.offsets)
    assert [found.token_to_chars(i) for i in range(len(found.ids))] == expected.offsets


@pytest.fixture
def no_switches() -> Iterator[None]:
    """Let no thread take the GIL from one that does not give it up by itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("no_switches")
@pytest.mark.parametrize("has_offsets", [False, True])
def test_another_thread_runs_while_a_long_text_is_encoded(has_offsets: bool) -> None:
    tokenizer = FAMILIES["llama3"]().tokenizer
    assert tokenizer is not None
    text = PROSE * (1 + (1 << 20) // len(PROSE))
    go_on, ran = threading.Event(), threading.Event()

    def other() -> None:
        go_on.wait()
        ran.set()

    thread = threading.Thread(target=other)
    thread.start()
    go_on.set()
    encoding_of(tokenizer, text, has_offsets=has_offsets)
    assert ran.is_set()
    thread.join()
