"""What holds native memory cannot be pickled or copied, and says what to do instead."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sinkstream


@pytest.fixture(scope="module")
def model(tiny_folder: Callable[[str], Path]) -> Iterator[sinkstream.Model]:
    with sinkstream.load(tiny_folder("llama"), sinks=4, window=28, threads=1) as loaded:
        yield loaded


@pytest.mark.parametrize("use", [pickle.dumps, copy.copy, copy.deepcopy])
def test_native_objects_say_what_to_do_instead(
    model: sinkstream.Model, use: Callable[[object], object]
) -> None:
    with model.session() as session, model.stream([5], max_tokens=1) as stream:
        for thing, instead in (
            (model, "Load the model in the process that uses it"),
            (model.generate, "Load the model in the process that uses it"),
            (stream, r"Use its `result\(\)`"),
            (session, r"Use `save` or `fork`"),
            (model.new_cache(), r"Use `copy\(\)`"),
            (model.generate_many([[5]]), "Use the results that it yields"),
        ):
            if use is not pickle.dumps and thing == model.generate:
                continue  # a function is never copied
            with pytest.raises(TypeError, match=f"must not be pickled or copied. {instead}"):
                use(thing)


def test_what_they_return_can_be_pickled(model: sinkstream.Model) -> None:
    result = model.generate([5], max_tokens=3, logprobs=2)
    for value in (result, model.capacity, model.spec, model.stats()):
        assert pickle.loads(pickle.dumps(value)) == value
