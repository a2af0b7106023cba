"""Two clients of one session, as two processes of a service: what one does to the other's lease."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from leaseway.sdk import (
    AsyncClient,
    LeaseError,
    LeaseExpired,
    LeaseLost,
    LeaseReleased,
    LeaseRevoked,
)
from leaseway.sdk.testing import FakeLeaseway


async def test_a_recycled_process_keeps_the_conversations_that_others_use(
    fake: FakeLeaseway,
) -> None:
    async with fake.async_client() as other:
        async with fake.async_client() as recycled:
            await recycled.session("dialog").call_tool("desk_open", {"name": "a"})
            assert (await other.session("dialog").call_tool("desk_read")).text == "a"
        assert (await other.session("dialog").call_tool("desk_read")).text == "a"
    async with fake.async_client() as successor:
        assert (await successor.session("dialog").call_tool("desk_read")).text == "a"


async def test_a_lease_outlives_all_its_clients_until_it_is_idle(fake: FakeLeaseway) -> None:
    async with fake.async_client() as first:
        await first.session("dialog", idle=300).call_tool("desk_open", {"name": "a"})
    fake.advance(250)  # four times its time to live
    async with fake.async_client() as second:
        assert (await second.session("dialog", idle=300).call_tool("desk_read")).text == "a"
    fake.advance(250)
    assert len(fake.leases) == 1, "the second client's call counts"
    fake.advance(60)
    assert fake.leases == []
    async with fake.async_client() as third:
        with pytest.raises(LeaseReleased, match="no call had run on it for 300 s"):
            await third.session("dialog").call_tool("desk_read")


def test_a_blocking_client_keeps_conversations_too(fake: FakeLeaseway) -> None:
    with fake.client() as recycled:
        recycled.session("dialog").call_tool("desk_open", {"name": "a"})
        recycled.call_tool("desk_open", {"name": "own"})
        assert len(fake.leases) == 2
    assert [lease.session for lease in fake.leases] == ["dialog"]
    assert fake.client().session("dialog").call_tool("desk_read").text == "a"


async def test_the_end_of_a_block_ends_the_lease_with_its_last_client(fake: FakeLeaseway) -> None:
    async with fake.async_client() as one, fake.async_client() as two:
        async with two.session("dialog") as later:
            async with one.session("dialog") as first:
                await first.call_tool("desk_open", {"name": "a"})
                assert (await later.call_tool("desk_read")).text == "a"
            assert (await later.call_tool("desk_read")).text == "a"
        assert fake.leases == []
        assert (await one.session("dialog").call_tool("desk_read")).text == "None"


async def test_the_end_of_a_block_keeps_a_lease_that_an_ended_process_left_until_idle(
    fake: FakeLeaseway,
) -> None:
    async with fake.async_client() as worker:
        async with worker.session("dialog") as job:
            await job.call_tool("desk_open", {"name": "a"})
            async with fake.async_client() as web:
                await web.session("dialog").call_tool("desk_read")
        assert len(fake.leases) == 1
        fake.advance(601)
        assert fake.leases == []


async def test_an_explicit_release_ends_the_lease_for_all(fake: FakeLeaseway) -> None:
    async with fake.async_client() as one, fake.async_client() as two:
        await one.session("dialog").call_tool("desk_open", {"name": "a"})
        await two.session("dialog").call_tool("desk_read")
        assert await two.session("dialog").release("desk")
        with pytest.raises(LeaseReleased):
            await one.session("dialog").call_tool("desk_read")
    async with fake.async_client() as three:  # the session asked for the end: nothing to report
        assert (await three.session("dialog").call_tool("desk_read")).text == "None"


@pytest.mark.parametrize(
    ("end", "error"),
    [
        ("expire_lease", LeaseExpired),
        ("revoke_lease", LeaseRevoked),
        ("lose_lease", LeaseLost),
    ],
)
async def test_a_new_process_is_told_once_how_the_sessions_lease_ended(
    fake: FakeLeaseway, end: str, error: type[LeaseError]
) -> None:
    async with fake.async_client() as first:
        lease = (await first.session("dialog").call_tool("desk_open", {"name": "a"})).new_lease
        assert lease is not None
    getattr(fake, end)(lease)
    async with fake.async_client() as new, fake.async_client() as newer:
        with pytest.raises(error, match=r"told this once") as caught:
            await new.session("dialog").call_tool("desk_read")
        assert caught.value.started == "no"
        assert (await new.session("dialog").call_tool("desk_read")).text == "None"
        assert (await newer.session("dialog").call_tool("desk_read")).new_lease is None
        assert (await new.session("other").call_tool("desk_read")).text == "None"


async def test_clients_that_take_turns_are_told_of_each_end(fake: FakeLeaseway) -> None:
    async with fake.async_client() as one, fake.async_client() as two:
        first, second = one.session("dialog"), two.session("dialog")
        lease = (await first.call_tool("desk_open", {"name": "a"})).new_lease
        assert lease is not None
        assert (await second.call_tool("desk_read")).text == "a"
        fake.expire_lease(lease)
        for session in (first, second):
            with pytest.raises(LeaseExpired):
                await session.call_tool("desk_read")
            assert not await session.release("desk")
        lease = (await first.call_tool("desk_open", {"name": "b"})).new_lease
        assert lease is not None
        fake.expire_lease(lease)
        with pytest.raises(LeaseExpired, match=lease.id):
            await second.call_tool("desk_read")
        assert (await second.call_tool("desk_read")).text == "None"


async def _acquire(client: AsyncClient) -> None:
    await client.session("dialog").acquire("desk")


async def _release(client: AsyncClient) -> None:
    assert not await client.session("dialog").release("desk")


@pytest.mark.parametrize("react", [_acquire, _release])
async def test_a_client_that_knows_of_the_end_is_not_told_again(
    fake: FakeLeaseway, react: Callable[[AsyncClient], Awaitable[None]]
) -> None:
    async with fake.async_client() as holder:
        session = holder.session("dialog")
        lease = await session.acquire("desk")
        fake.expire_lease(lease)
        with pytest.raises(LeaseExpired):
            await session.call_tool("desk_read")
        await react(holder)
        assert (await session.call_tool("desk_read")).text == "None"
        assert await session.release("desk")
    async with fake.async_client() as new:
        assert (await new.session("dialog").call_tool("desk_read")).text == "None"


async def test_calls_outside_sessions_are_told_once_as_before(fake: FakeLeaseway) -> None:
    async with fake.async_client() as client:
        lease = (await client.call_tool("desk_open", {"name": "a"})).new_lease
        assert lease is not None
        fake.expire_lease(lease)
        with pytest.raises(LeaseExpired):
            await client.call_tool("desk_read")
        assert (await client.call_tool("desk_read")).text == "None"


async def test_an_end_is_told_for_ten_minutes(fake: FakeLeaseway) -> None:
    async with fake.async_client() as first:
        lease = await first.session("dialog").acquire("desk")
        await first.list_tools()  # after the control plane knows of the lease
        fake.expire_lease(lease)
        await first.list_tools()  # and after it knows of the end
    fake.advance(601)
    async with fake.async_client() as new:
        assert (await new.session("dialog").call_tool("desk_read")).text == "None"
