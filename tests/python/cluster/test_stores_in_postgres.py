"""What holds for a store in a folder also holds in PostgreSQL: the same tests."""

from __future__ import annotations

import pytest

from tests.python.cluster.shared_stores import SharedLocation
from tests.python.conversations.test_store import (
    store,
    test_a_closed_store_is_not_read,
    test_a_conversation_is_found_for_its_tenant_alone,
    test_a_part_never_waits_for_room,
    test_a_turn_is_found_only_when_it_is_finished,
    test_a_turn_is_not_acknowledged_without_its_beginning,
    test_a_write_that_fails_takes_no_other_along,
    test_deleting_a_turn_deletes_all_that_follow_it_and_no_other,
    test_parts_are_joined_in_their_order,
    test_the_first_hash_that_is_a_turn_wins,
    test_threads_that_have_ended_keep_no_file_open,
)

__all__ = [
    "store",
    "test_a_closed_store_is_not_read",
    "test_a_conversation_is_found_for_its_tenant_alone",
    "test_a_part_never_waits_for_room",
    "test_a_turn_is_found_only_when_it_is_finished",
    "test_a_turn_is_not_acknowledged_without_its_beginning",
    "test_a_write_that_fails_takes_no_other_along",
    "test_deleting_a_turn_deletes_all_that_follow_it_and_no_other",
    "test_parts_are_joined_in_their_order",
    "test_the_first_hash_that_is_a_turn_wins",
    "test_threads_that_have_ended_keep_no_file_open",
]


@pytest.fixture
def location(in_postgres: SharedLocation) -> SharedLocation:
    return in_postgres
