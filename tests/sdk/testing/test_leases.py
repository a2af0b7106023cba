"""Leases of a fake follow the rules of real ones, and can be ended by a test."""

from __future__ import annotations

import asyncio

import pytest
from tests.sdk.fakes import BOUND

from leaseway.sdk import (
    Capacity,
    LeaseExpired,
    LeaseLost,
    LeaseReleased,
    LeaseRevoked,
    ServerLost,
)
from leaseway.sdk.testing import CallContext, FakeLeaseway


def test_a_leased_server_has_state_per_session_and_reminds_to_release(fake: FakeLeaseway) -> None:
    client = fake.client()
    first, second = client.session("one"), client.session("two")
    opened = first.call_tool("desk_open", {"name": "a"})
    assert opened.new_lease is not None
    assert "mcp_release" in str(opened.reminder)
    assert first.call_tool("desk_read").new_lease is None
    second.call_tool("desk_open", {"name": "b"})
    assert [s.call_tool("desk_read").text for s in (first, second)] == ["a", "b"]
    assert [(lease.session, lease.server_id) for lease in fake.leases] == [
        ("one", "desk"),
        ("two", "desk"),
    ]
    assert first.release("desk")
    assert first.call_tool("desk_read").text == "None"
    assert fake.calls[0].lease_id == opened.new_lease.id


def test_the_state_of_a_shared_server_can_be_set() -> None:
    fake = FakeLeaseway()
    shop = fake.server("shop")
    shop.state = {"stock": 3}

    @shop.tool
    def stock(context: CallContext) -> int:
        context.state["asked"] = True
        return int(context.state["stock"])

    with fake, fake.client() as client:
        assert client.call_tool("stock").structured == {"result": 3}
    assert shop.state == {"stock": 3, "asked": True}


@pytest.mark.parametrize(
    ("end", "error"),
    [
        ("expire_lease", LeaseExpired),
        ("revoke_lease", LeaseRevoked),
        ("lose_lease", LeaseLost),
    ],
)
def test_calls_fail_after_a_lease_ended_until_it_is_acquired_again(
    fake: FakeLeaseway, end: str, error: type[Exception]
) -> None:
    session = fake.client().session("one")
    lease = session.acquire("desk")
    getattr(fake, end)(lease)
    for _ in range(2):
        with pytest.raises(error):
            session.call_tool("desk_read")
    session.acquire("desk")
    assert session.call_tool("desk_read").text == "None"
    getattr(fake, end)(fake.leases[0])
    getattr(fake, end)("no-such-lease")
    assert fake.leases == []


def test_advance_makes_unrenewed_leases_expire(fake: FakeLeaseway) -> None:
    session = fake.client().session("one")
    session.acquire("desk", ttl=120)
    fake.advance(119)
    assert session.call_tool("desk_read").text == "None"  # which renews it
    fake.advance(119)
    assert len(fake.leases) == 1
    fake.advance(2)
    with pytest.raises(LeaseExpired):
        session.call_tool("desk_read")


def test_a_release_ends_the_lease_for_all_clients_of_the_session(fake: FakeLeaseway) -> None:
    first, second = fake.client().session("one"), fake.client().session("one")
    assert first.acquire("desk") == second.acquire("desk")
    first.release("desk")
    with pytest.raises(LeaseReleased):
        second.call_tool("desk_read")


async def test_a_running_call_fails_when_its_lease_is_revoked(fake: FakeLeaseway) -> None:
    async with fake.async_client() as client:
        session = client.session("one")
        lease = await session.acquire("desk")
        with fake.hold("desk_read") as held:
            call = asyncio.create_task(session.call_tool("desk_read"))
            await asyncio.to_thread(held.wait)
            fake.revoke_lease(lease, "the house is closing")
            with pytest.raises(LeaseRevoked, match="closing") as caught:
                await call
    assert caught.value.started == "yes"


async def test_acquire_waits_for_capacity_or_fails() -> None:
    with FakeLeaseway(capacity=1) as fake:
        fake.server("desk", stateful=True).tool(name="read")(lambda: "x")
        async with fake.async_client() as client:
            await client.session("one").acquire("desk")
            with pytest.raises(Capacity):
                await client.session("two").acquire("desk")
            waiting = asyncio.create_task(client.session("two").acquire("desk", wait=BOUND))
            await asyncio.sleep(0)
            await client.session("one").release("desk")
            assert (await waiting).session == "two"


def test_a_lost_server_ends_its_lease(fake: FakeLeaseway) -> None:
    session = fake.client().session("one")
    session.call_tool("desk_open", {"name": "a"})
    fake.fail_next("desk_read", ServerLost("It died."))
    with pytest.raises(ServerLost):
        session.call_tool("desk_read")
    assert fake.leases == []
    with pytest.raises(LeaseLost):
        session.call_tool("desk_read")
