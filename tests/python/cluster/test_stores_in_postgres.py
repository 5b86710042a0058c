"""What holds for a store in a folder also holds in PostgreSQL: the same tests."""

from __future__ import annotations

import pytest

from tests.python.cluster.shared_stores import SharedLocation
from tests.python.conversations.test_promises import (
    test_a_promise_is_kept_until_its_turn_is_complete,
    test_a_promise_outlives_a_process_that_dies,
    test_promises_count_among_what_a_tenant_takes,
    test_promises_of_a_replica_that_is_gone_are_broken,
    test_promises_that_have_ended_grow_old,
)
from tests.python.conversations.test_shares import (
    sweep,
    test_a_key_with_big_turns_deletes_none_of_anothers,
    test_keys_that_take_the_same_pay_alternately,
    test_snapshots_of_the_largest_key_go_before_its_conversations,
    test_the_bytes_of_conversations_are_those_of_their_rows,
)
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
    "sweep",
    "test_a_closed_store_is_not_read",
    "test_a_conversation_is_found_for_its_tenant_alone",
    "test_a_key_with_big_turns_deletes_none_of_anothers",
    "test_a_part_never_waits_for_room",
    "test_a_promise_is_kept_until_its_turn_is_complete",
    "test_a_promise_outlives_a_process_that_dies",
    "test_a_turn_is_found_only_when_it_is_finished",
    "test_a_turn_is_not_acknowledged_without_its_beginning",
    "test_a_write_that_fails_takes_no_other_along",
    "test_deleting_a_turn_deletes_all_that_follow_it_and_no_other",
    "test_keys_that_take_the_same_pay_alternately",
    "test_parts_are_joined_in_their_order",
    "test_promises_count_among_what_a_tenant_takes",
    "test_promises_of_a_replica_that_is_gone_are_broken",
    "test_promises_that_have_ended_grow_old",
    "test_snapshots_of_the_largest_key_go_before_its_conversations",
    "test_the_bytes_of_conversations_are_those_of_their_rows",
    "test_the_first_hash_that_is_a_turn_wins",
    "test_threads_that_have_ended_keep_no_file_open",
]


@pytest.fixture
def location(in_postgres: SharedLocation) -> SharedLocation:
    return in_postgres
