"""What fronts tell each other of a session: that it has ended, its log level, its subscriptions."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.e2e.system import eventually
from tests.front.harness import ACCEPT, host
from tests.front.harness import front as serve

from leaseway.front.http.streamable import HttpFront
from leaseway.front.methods import Methods
from leaseway.front.sessions import ended as ended_sessions
from leaseway.front.sessions.ended import EndedSessions, SharedEnds
from leaseway.front.sessions.sealing import Owner, Sealer
from leaseway.front.sessions.table import SessionTable
from leaseway.sdk import AsyncClient, LeasewayError
from leaseway.sdk.testing import CallContext, FakeLeaseway


@pytest.fixture
def fake() -> Iterator[FakeLeaseway]:
    with FakeLeaseway() as fake:
        yield fake


@asynccontextmanager
async def front(fake: FakeLeaseway, tenant: str = "default") -> AsyncIterator[SessionTable]:
    async with fake.async_client(tenant=tenant) as client:
        ended = EndedSessions()
        table = SessionTable(
            client,
            Sealer("key", "mcp session"),
            Owner(tenant),
            idle=1.0,
            ended=ended,
            ends=SharedEnds(client, ended),
        )
        yield table


async def test_an_ended_session_is_refused_by_another_front_and_after_a_restart() -> None:
    with FakeLeaseway() as fake:
        async with front(fake) as first:
            live, kept = (first.create("", "2025-11-25", {}) for _ in range(2))
            await first.end(live)
            assert await first.open(live.id, "") is None
        async with front(fake) as other:
            assert await other.open(live.id, "") is None
            assert await other.open(kept.id, "") is not None


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("stateful", [True, False])
async def test_requests_in_flight_of_a_session_that_ends_get_an_error(
    *, streams: bool, stateful: bool
) -> None:
    with FakeLeaseway() as fake:

        def work(ctx: CallContext) -> str:
            ctx.progress(1)
            return "done"

        fake.server("worker", stateful=stateful).tool(work)
        async with asyncio.timeout(BOUND), serve(fake) as url, host(url) as client:
            session = await client.initialize()
            await client.send("tools/call", {"name": "work", "arguments": {}}, session)
            with fake.hold("work") as held:
                accepted = ACCEPT if streams else {"Accept": "application/json"}

                async def call(number: int) -> Any:
                    params = {"name": "work", "arguments": {}}
                    message = {"jsonrpc": "2.0", "id": number, "method": "tools/call"}
                    body, headers = {**message, "params": params}, {**accepted, **session}
                    async with client.http.post(url, json=body, headers=headers) as answer:
                        assert answer.status == 200
                        return await answer.json()

                calls = [asyncio.create_task(call(number)) for number in (1, 2)]
                await asyncio.to_thread(held.wait, 2)
                async with client.http.delete(url, headers=session) as answer:
                    assert answer.status == 204
                for number, response in enumerate(await asyncio.gather(*calls), 1):
                    assert response["id"] == number
                    assert "session of this request was ended" in response["error"]["message"]
                    assert response["error"]["data"]["started"] == "unknown"


async def test_the_lease_of_a_first_call_in_flight_ends_with_its_session(
    fake: FakeLeaseway,
) -> None:
    def work() -> str:
        return "done"

    fake.server("worker", stateful=True).tool(work)
    async with asyncio.timeout(BOUND), serve(fake) as url, host(url) as client:
        session = await client.initialize()
        with fake.hold("work") as held:
            params = {"name": "work", "arguments": {}}
            call = asyncio.create_task(client.send("tools/call", params, session))
            await asyncio.to_thread(held.wait, 1)
            async with client.http.delete(url, headers=session) as answer:
                assert answer.status == 204
            with pytest.raises(LookupError, match="session of this request was ended"):
                await call
            assert await asyncio.to_thread(lambda: fake.leases) == []


async def test_sessions_are_forgotten_although_one_cannot_be_stopped(
    fake: FakeLeaseway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise RuntimeError("odd")

    async with fake.async_client() as client:
        table = SessionTable(client, Sealer("key", "mcp session"), Owner("default"), idle=0.05)
        caller = HttpFront(Methods(client), table)
        caller.start()
        try:
            monkeypatch.setattr(table.create("", "2025-11-25", {}), "stop", fail)
            await eventually(lambda: not len(table))
            table.create("", "2025-11-25", {})
            await eventually(lambda: not len(table))
        finally:
            await caller.close()


async def test_a_session_that_is_opened_anew_while_idle_ones_are_forgotten_stays(
    fake: FakeLeaseway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with front(fake) as table:
        first, second = (table.create("", "2025-11-25", {}) for _ in range(2))
        first.last_used = second.last_used = -math.inf
        stop, opened = first.stop, []

        async def stop_meanwhile() -> None:
            await stop()
            table.forget_oldest()  # for a new session at the limit
            opened.append(table.find(second.id, ""))

        monkeypatch.setattr(first, "stop", stop_meanwhile)
        await table.check(0.0)
        assert opened[0] is not second
        assert list(table) == opened
        assert await table.open(second.id, "") is opened[0]
        await table.close()


async def test_a_session_that_both_fronts_serve_ends_on_both() -> None:
    with FakeLeaseway() as fake:
        async with front(fake) as first, front(fake) as other:
            live = first.create("", "2025-11-25", {})
            here = await other.open(live.id, "")
            assert here is not None
            await first.end(live)
            assert other._ends is not None
            await other._ends.exchange([here.sealed.key])
            assert await other.open(live.id, "") is None


async def test_a_front_that_serves_a_session_hears_at_once_that_another_has_ended_it(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as first, front(fake) as other:
        live = first.create("", "2025-11-25", {})
        assert first._ends is not None
        hearing = asyncio.create_task(first._ends.hear(BOUND))
        await eventually(lambda: first._ends is not None and first._ends._heard[1] > 0)
        here = await other.open(live.id, "")
        assert here is not None
        await other.end(here)
        await eventually(lambda: first.find(live.id, "") is None)
        hearing.cancel()


async def test_a_session_has_ended_before_its_leases_are_released(
    fake: FakeLeaseway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with front(fake) as first, front(fake) as other:
        live = first.create("", "2025-11-25", {})
        releases = asyncio.Event()

        async def hang() -> None:
            releases.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(live, "release", hang)
        ending = asyncio.create_task(first.end(live))
        async with asyncio.timeout(BOUND):
            await releases.wait()
        assert await other.open(live.id, "") is None
        ending.cancel()


async def test_leases_of_a_session_that_another_front_ended_are_released(
    fake: FakeLeaseway,
) -> None:
    fake.server("files", stateful=True)
    async with front(fake) as first, front(fake) as other:
        live = first.create("", "2025-11-25", {})
        await first.admit(live)
        await live.sdk.acquire("files")
        here = await other.open(live.id, "")
        assert here is not None
        await other.end(here)
        assert fake.leases, "the other front has none of its own"
        await first.check(since=time.monotonic())
        assert not fake.leases


async def test_a_restarted_control_plane_is_told_again_by_the_fronts() -> None:
    with FakeLeaseway() as fake:
        async with front(fake) as first, front(fake) as other:
            live = first.create("", "2025-11-25", {})
            await first.end(live)
            plane = fake._running().plane
            plane.ended_sessions = type(plane.ended_sessions)()  # what a new one knows
            assert first._ends is not None
            first._ends._run = "the run before"
            await first._ends.exchange(())
            assert await other.open(live.id, "") is None


async def test_an_unreachable_control_plane_ends_no_session() -> None:
    with FakeLeaseway() as fake:
        async with front(fake) as first:
            live = first.create("", "2025-11-25", {})
    async with fake_client_of_nobody() as table:
        assert await table.open(live.id, "") is not None


@asynccontextmanager
async def fake_client_of_nobody() -> AsyncIterator[SessionTable]:
    async with AsyncClient("127.0.0.1:1") as client:
        ended = EndedSessions()
        yield SessionTable(
            client,
            Sealer("key", "mcp session"),
            Owner("default"),
            ended=ended,
            ends=SharedEnds(client, ended),
        )


LISTS = ("tools", "resources")  # no server has prompts


async def test_log_level_and_subscriptions_move_to_another_front(fake: FakeLeaseway) -> None:
    notes = fake.server("notes")
    notes.resource("note://a", "old")

    @notes.tool
    def work(ctx: CallContext) -> str:
        ctx.log("working", level="debug")
        return "done"

    def line(answer: bytes) -> Any:
        return json.loads(answer.partition(b"data: ")[2])

    async with asyncio.timeout(BOUND), serve(fake) as first, serve(fake) as second:
        async with host(first) as client:
            session = await client.initialize()
            await client.send("logging/setLevel", {"level": "debug"}, session)
            await client.send("resources/subscribe", {"uri": "note://a"}, session)
        headers = {**ACCEPT, **session}
        async with host(second) as client, client.http.get(second, headers=headers) as stream:
            assert await stream.content.readuntil(b"\n\n") == b": ping\n\n"
            lists = [line(await stream.content.readuntil(b"\n\n"))["method"] for _ in LISTS]
            assert set(lists) == {f"notifications/{n}/list_changed" for n in LISTS}
            updated = line(await stream.content.readuntil(b"\n\n"))
            assert updated["params"]["uri"] == "note://a", "it may have changed in between"
            notes.resource("note://a", "new")
            assert line(await stream.content.readuntil(b"\n\n")) == updated
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "work"}}
            async with client.http.post(second, json=call, headers=headers) as answer:
                logged = line(await answer.content.readuntil(b"\n\n"))
            assert logged["params"]["data"] == "working"
            await client.send("resources/unsubscribe", {"uri": "note://a"}, session)


async def test_a_request_that_opens_a_session_undoes_nothing_of_one_beside_it(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as first, front(fake) as other:
        live = first.create("", "2025-11-25", {})
        live.log_level = "warning"
        await first.save(live)

        async def set_level() -> None:
            moved = await other.open(live.id, "")
            assert moved is not None
            assert moved.log_level == "warning"
            moved.log_level = "debug"

        _, beside = await asyncio.gather(set_level(), other.open(live.id, ""))
        assert beside is not None
        assert beside.log_level == "debug"


async def test_a_restarted_control_plane_is_told_the_states_of_sessions_again(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as first, front(fake) as other:
        live = first.create("", "2025-11-25", {})
        live.log_level = "error"
        await first.save(live)
        plane = fake._running().plane
        plane.session_states = type(plane.session_states)()
        assert first._ends is not None
        first._ends._run = "the run before"
        await first._ends.exchange(())
        moved = await other.open(live.id, "")
        assert moved is not None
        assert moved.log_level == "error"


async def test_an_outage_leaves_only_the_newest_states_to_send(
    monkeypatch: pytest.MonkeyPatch, fake: FakeLeaseway
) -> None:
    monkeypatch.setattr(ended_sessions, "_MAX_STATES", 2)
    monkeypatch.setattr(ended_sessions, "_PAUSE", 0.0)
    sent: list[dict[str, bytes]] = []

    async def fail(*args: Any) -> None:
        sent.append(args[-1])
        raise LeasewayError("unreachable")

    monkeypatch.setattr(ended_sessions, "share_session_ends", fail)
    async with fake.async_client() as client:
        ends = SharedEnds(client, EndedSessions())
        for number in range(4):
            await ends.save(f"session-{number}", b"{}")
    assert list(sent[-1]) == ["session-2", "session-3"]
