"""What one key may hold of a limit while another needs some of it, too."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from sinkstream.server.admission import Admission, ByteBudget, KeyShares
from sinkstream.server.errors import ApiError
from sinkstream.server.seats import Seats

TWO = {"a": 1.0, "b": 1.0}


def filled(shares: KeyShares, tenant: str) -> int:
    """Take as much as a key may, one by one; return how much it holds."""
    while shares.has_room(tenant):
        shares.take(tenant)
    return shares.held_by(tenant)


def test_a_single_key_may_hold_all() -> None:
    assert filled(KeyShares(8, {}), "") == 8
    assert filled(KeyShares(8, {"a": 1.0}), "a") == 8


def test_one_of_two_keys_leaves_the_other_room_to_begin() -> None:
    shares = KeyShares(100, TWO)
    assert filled(shares, "a") == 75
    assert filled(shares, "b") == 25


def test_what_a_key_holds_beyond_its_share_goes_to_the_others_once_it_ends() -> None:
    shares = KeyShares(100, TWO)
    filled(shares, "a")
    filled(shares, "b")
    for _ in range(25):
        shares.give_back("a")
        assert not shares.has_room("a")
        shares.take("b")
    assert (shares.held_by("a"), shares.held_by("b")) == (50, 50)
    shares.give_back("b")
    assert shares.has_room("b")
    assert not shares.has_room("a")


def test_a_key_has_more_by_its_weight() -> None:
    shares = KeyShares(120, {"a": 1.0, "b": 2.0})
    filled(shares, "a")
    filled(shares, "b")
    for _ in range(90):
        shares.give_back("a")
        while shares.has_room("b"):
            shares.take("b")
        while shares.has_room("a"):
            shares.take("a")
    assert shares.held_by("b") == 80


def test_a_limit_of_one_has_no_reserve() -> None:
    assert filled(KeyShares(1, TWO), "a") == 1


def test_what_was_returned_is_not_remembered() -> None:
    shares = KeyShares(10, TWO)
    for name in map(str, range(1000)):
        shares.take(name)
        shares.give_back(name)
    assert not shares._held


def test_the_time_to_wait_follows_from_the_rate_of_the_ends_that_count() -> None:
    now = [0.0]
    shares = KeyShares(8, TWO, clock=lambda: now[0])
    filled(shares, "a")
    for _ in range(3):  # one in 10 s
        now[0] += 10
        shares.give_back("a")
        shares.take("a")
    shares.take("b", 2)
    assert shares.retry_after_s("a") == 20  # it must have 3 fewer, by the rate of 3 in 20 s
    now[0] += 1
    shares.give_back("b")
    assert shares.retry_after_s("a") == 14  # 2 fewer, by the rate of its own 3 in 21 s
    assert shares.retry_after_s("a", 100) == 60


def test_replies_are_refused_with_what_a_key_may_hold() -> None:
    admission = Admission(8, TWO)
    assert admission.limit == 6
    admission.enter(6, "a")
    with pytest.raises(ApiError, match="this key may hold 6 now; it holds 6") as refused:
        admission.enter(1, "a")
    assert dict(refused.value.headers) == {b"retry-after": b"1"}
    admission.enter(2, "b")
    with pytest.raises(ApiError, match="but 8 are held"):
        admission.enter(1, "b")
    admission.leave(6, "a")
    admission.enter(2, "b")


def test_unfinished_uploads_of_one_key_leave_room_for_one_of_another() -> None:
    bodies = ByteBudget(4 * 32, "the bodies of all requests", TWO)
    for _ in range(3):
        bodies.take(32, "a")
    with pytest.raises(ApiError, match="this key may hold 96 now"):
        bodies.take(1, "a")
    bodies.take(32, "b")
    bodies.give_back(96, "a")
    assert bodies.held == 32
    assert not bodies.count(97, "a")  # has arrived already, and counts
    assert bodies.held == 129


# ---- seats -------------------------------------------------------------------------------------


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


async def wait_for(
    seats: Seats, order: list[str], tenant: str, priority: int = 0
) -> asyncio.Task[None]:
    """Begin to wait for a seat; note the tenant and its priority once it has one."""

    async def wait() -> None:
        await seats.acquire(tenant, priority)
        order.append(f"{tenant}{priority or ''}")

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    return task


def test_a_second_key_finds_a_seat_while_the_first_waits() -> None:
    async def check() -> None:
        seats, order = Seats(4, TWO), list[str]()
        tasks = [await wait_for(seats, order, "a") for _ in range(6)]
        assert order == ["a"] * 3
        assert (seats.waiting, seats.waiting_for_share) == (3, 3)
        assert seats.must_wait("a")
        assert not seats.must_wait("b")
        tasks.append(await wait_for(seats, order, "b"))
        assert order == [*"aaa", "b"]
        assert (seats.waiting, seats.waiting_for_share) == (3, 0)
        for task in tasks:
            task.cancel()

    run(check())


def test_seats_go_to_the_key_with_the_fewest_and_then_one_by_one() -> None:
    async def check() -> None:
        seats, order = Seats(2, dict.fromkeys("abc", 1.0)), list[str]()
        tasks = [await wait_for(seats, order, tenant) for tenant in "aaaabbc"]
        assert order == ["a", "b"]
        for i in range(6):
            seats.release(order[i])
            await asyncio.sleep(0)
        assert "".join(order) == "abab" + "caa"
        for task in tasks:
            task.cancel()

    run(check())


def test_replies_of_one_key_begin_by_priority_and_then_in_order() -> None:
    async def check() -> None:
        seats, order = Seats(1, {}), list[str]()
        await seats.acquire("a")
        for priority in (0, 5, -1, 0, 5):
            await wait_for(seats, order, "a", priority)
        for _ in range(5):
            seats.release("a")
            await asyncio.sleep(0)
        assert order == ["a-1", "a", "a", "a5", "a5"]

    run(check())


def test_a_reply_that_leaves_neither_waits_nor_keeps_a_seat() -> None:
    async def check() -> None:
        seats, order = Seats(1, {}), list[str]()
        await seats.acquire("a")
        first, second = [await wait_for(seats, order, "a") for _ in range(2)]
        first.cancel()
        await asyncio.wait({first})
        assert seats.waiting == 1
        seats.release("a")
        second.cancel()  # in the moment in which it gets the seat
        await asyncio.wait({second})
        assert not seats.must_wait("a")

    run(check())


def test_a_seat_does_not_go_to_a_reply_that_was_cancelled_just_before() -> None:
    async def main() -> None:
        seats = Seats(1, {})
        await seats.acquire("")
        waiting = [asyncio.create_task(seats.acquire("")) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[1].cancel()
        seats.release("")  # before their tasks run again
        await waiting[2]
        assert seats.shares.held == 1
        assert seats.waiting == 0
        seats.release("")
        assert not seats.must_wait("")
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), 10))
