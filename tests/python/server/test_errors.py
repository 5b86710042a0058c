"""What clients are told of exceptions."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from sinkstream.conversations.turns import deleted
from sinkstream.server.errors import from_exception
from sinkstream.server.responses.response_bodies import NAMES


def test_a_deleted_turn_is_named_as_in_the_request() -> None:
    error = from_exception(deleted("turn_1"), NAMES)
    assert error is not None
    assert error.message == "`previous_response_id` must name a turn, but turn_1 was deleted."
    assert error.param == "previous_response_id"
