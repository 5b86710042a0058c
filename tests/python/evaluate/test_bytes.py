"""Bits per byte divide by the bytes of the text; control tokens have none."""

from __future__ import annotations

import numpy as np

from sinkstream.evaluate.long_texts import count_bytes
from tests.python.evaluate.scripted import ScriptedModel


def test_control_tokens_are_no_bytes_of_the_text() -> None:
    model = ScriptedModel(bos=0)
    assert model.tokenizer.id_to_token(0).startswith("<|")
    ids = model.tokenizer.encode("two wörds", add_special_tokens=False).ids
    for counted in (ids, [0, *ids], [0, *ids, 0]):
        assert count_bytes(model, np.array(counted)) == len("two wörds".encode())
