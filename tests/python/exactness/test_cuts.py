"""Any program of reading, making room, cutting and copying equals the original protocol."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from tests.python.exactness.streams import (
    LoadOnce,
    assert_equals,
    reference,
    stream_ids,
)
from tests.python.lanes import examples
from tests.reference.streaming import Streaming

STEPS = st.one_of(
    st.tuples(st.just("read"), st.integers(1, 80)),
    st.tuples(st.just("read"), st.integers(1, 4)),
    st.tuples(st.just("room"), st.floats(0, 1)),
    st.tuples(st.just("cut"), st.floats(0, 1), st.floats(0, 1)),
    st.tuples(st.just("copy")),
)


@examples(40)
@given(
    sinks=st.sampled_from([0, 1, 4, 65]),
    window=st.sampled_from([2, 3, 9, 64, 70]),
    steps=st.lists(STEPS, max_size=8),
)
def test_any_program_of_reading_cutting_and_copying_equals_the_definition(
    sinks: int, window: int, steps: list[tuple[str | float, ...]], loaded: LoadOnce
) -> None:
    model = loaded("qwen2")
    cache = model.new_cache(sinks=sinks, window=window)
    definition = Streaming(reference("qwen2"), sinks, window - 1)
    for action, *numbers in [*steps, ("read", 30)]:
        in_window = definition.cached - sinks  # tokens
        if action == "read":
            ids = stream_ids("qwen2", int(numbers[0]))
            assert_equals(model.forward(ids, cache)[0], definition.feed(ids[0].tolist()))
        elif action == "room":
            count = round(float(numbers[0]) * (window - 1))
            cache.evict_for_space(count)
            definition.evict_for_space(count)
        elif action == "cut" and in_window > 0:
            start, end = sorted(sinks + round(float(n) * in_window) for n in numbers)
            if start < end:
                cache.evict_range(start, end)
                definition.evict_range(start, end)
        elif action == "copy":
            # The original continues, which must not affect the copy.
            original, cache = cache, cache.copy()
            definition = copy.deepcopy(definition)
            model.forward(stream_ids("qwen2", 50), original)
