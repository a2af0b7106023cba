"""How many sessions, and so processes, a client has that opens one for each call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.conftest import BOUND
from tests.front.harness import MODERN, front, host, session_of

from leaseway.front.sessions import limits as session_limits
from leaseway.front.sessions import table as sessions_module
from leaseway.front.sessions.limits import SessionLimits
from leaseway.sdk.testing import CallContext, FakeLeaseway


@pytest.fixture
def fake() -> Iterator[FakeLeaseway]:
    """A system with a leased server."""
    with FakeLeaseway() as fake:
        counter = fake.server("counter", stateful=True)

        @counter.tool
        def count(ctx: CallContext) -> str:
            """Count."""
            ctx.state["n"] = ctx.state.get("n", 0) + 1
            return f"{ctx.lease_id} {ctx.state['n']}"

        yield fake


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "_CHECK_INTERVAL", 0.05)
    monkeypatch.setattr(session_limits, "_GRACE", 0.1)
    monkeypatch.setattr(session_limits, "_HANDLE_GRACE", 0.1)


async def test_two_hundred_sessions_of_one_client_have_at_most_the_limit_of_leases(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as url, host(url) as client:
        first = await client.initialize()
        held = []
        for _ in range(200):
            await client.count(await client.initialize())
            held.append(len(fake.leases))
        assert max(held) == 16
        await client.count(first)  # it has had no lease yet, so that it was not counted
        assert len(fake.leases) == 16


@pytest.mark.parametrize("meta", [MODERN, {}])
async def test_first_calls_without_a_session_have_at_most_the_limit_of_leases(
    fake: FakeLeaseway, meta: dict[str, object]
) -> None:
    async with front(fake, limits=SessionLimits(3)) as url, host(url) as client:
        first = session_of(await client.call(meta=meta))
        second = session_of(await client.call(meta=meta))
        await client.count(meta=meta, session=first)  # the second is idle for longer now
        for _ in range(2):
            await client.call(meta=meta)
            assert len(fake.leases) <= 3
        refused = await client.call(meta=meta, session=second)
        assert "Unknown session" in refused["content"][0]["text"]
        assert (await client.count(meta=meta, session=first))[1] == 3


async def test_leases_that_a_model_acquires_have_at_most_the_limit(fake: FakeLeaseway) -> None:
    params = {"name": "lease_acquire", "arguments": {"serverId": "counter"}, "_meta": MODERN}
    async with front(fake, limits=SessionLimits(2)) as url, host(url) as client:
        for _ in range(4):
            acquired = await client.send("tools/call", params)
            assert len(fake.leases) <= 2
        handle = acquired["structuredContent"]["handle"]
        assert (await client.count(meta=MODERN, session=handle))[1] == 1
        assert len(fake.leases) == 2


async def test_subscriptions_have_at_most_the_limit_of_leases(fake: FakeLeaseway) -> None:
    fake.server("notes", stateful=True).resource("note://a", "text")
    async with front(fake, limits=SessionLimits(2)) as url, host(url) as client:
        for _ in range(4):
            session = await client.initialize()
            await client.send("resources/subscribe", {"uri": "note://a"}, session)
            assert len(fake.leases) <= 2


async def test_other_clients_and_principals_count_for_themselves(fake: FakeLeaseway) -> None:
    async with front(fake, limits=SessionLimits(1)) as url, host(url) as client:
        one, other = await client.initialize("one"), await client.initialize("other")
        for number in (1, 2):
            assert (await client.count(one))[1] == number
            assert (await client.count(other))[1] == number


async def test_a_session_with_a_call_in_flight_is_not_ended(fake: FakeLeaseway) -> None:
    async with (
        front(fake, limits=SessionLimits(1)) as url,
        host(url) as client,
        asyncio.timeout(BOUND),
        asyncio.TaskGroup() as tasks,
    ):
        one, other = await client.initialize(), await client.initialize()
        with fake.hold("count") as held:
            running = tasks.create_task(client.count(one))
            await asyncio.to_thread(held.wait)
            waiting = tasks.create_task(client.count(other))
    assert running.result()[1] == waiting.result()[1] == 1
    assert len({running.result()[0], waiting.result()[0]}) == 2
    assert len(fake.leases) == 1


async def test_a_client_whose_sessions_are_all_in_use_is_told(
    fake: FakeLeaseway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_limits, "_WAIT", 0.05)
    async with (
        front(fake, limits=SessionLimits(1)) as url,
        host(url) as client,
        asyncio.timeout(BOUND),
        asyncio.TaskGroup() as tasks,
    ):
        one, other = await client.initialize(), await client.initialize()
        with fake.hold("count") as held:
            running = tasks.create_task(client.count(one))
            await asyncio.to_thread(held.wait)
            with pytest.raises(LookupError, match="sessions-per-client"):
                await client.count(other)
    assert running.result()[1] == 1


async def test_a_session_for_one_call_ends_when_its_client_has_a_newer_one(
    fake: FakeLeaseway, quick: None
) -> None:
    async with front(fake) as url, host(url) as client, asyncio.timeout(BOUND):
        twice = await client.initialize()
        await client.count(twice)
        await client.count(twice)
        listening = await client.initialize()
        opened = {**listening, "Accept": "text/event-stream"}
        streams = [await client.http.get(url, headers=opened)]
        await client.count(listening)
        renewed: dict[str, str] = {}
        for _ in range(8):
            last = await client.initialize()
            await client.count(last)
            if not renewed:
                renewed = await client.initialize()  # its results say a handle
                opened = {**renewed, "Accept": "text/event-stream"}
                streams.append(await client.http.get(url, headers=opened))
                await client.count(renewed)
        while len(fake.leases) > 4:
            await asyncio.sleep(0.02)
        for kept, number in ((twice, 3), (listening, 2), (renewed, 2), (last, 2)):
            assert (await client.count(kept))[1] == number
        for stream in streams:
            stream.close()


async def test_a_session_is_kept_whose_client_goes_on_in_conversations(
    fake: FakeLeaseway, quick: None
) -> None:
    chat = {"openai/session": "conversation-1"}
    async with front(fake) as url, host(url) as client, asyncio.timeout(BOUND):
        session = await client.initialize()
        await client.count(session)
        await client.count(session, chat)
        for _ in range(2):
            await client.count(await client.initialize())
        while len(fake.leases) > 3:  # the first of the two has ended
            await asyncio.sleep(0.02)
        assert (await client.count(session, chat))[1] == 2
        assert (await client.count(session))[1] == 2


async def test_a_conversation_that_made_room_is_told_once(fake: FakeLeaseway) -> None:
    async with front(fake, limits=SessionLimits(1)) as url, host(url) as client:
        one, other = ({**MODERN, "openai/session": name} for name in ("one", "other"))
        await client.count(meta=one)
        await client.count(meta=other)
        with pytest.raises(LookupError, match="Its state is lost"):
            await client.count(meta=one)
        assert (await client.count(meta=one))[1] == 1
