"""Hosts that begin a new session before each call keep state by what their models pass back."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.front.harness import Host, front, host

from leaseway.front.sessions.limits import SessionLimits
from leaseway.sdk.testing import CallContext, FakeLeaseway


@pytest.fixture
def fake() -> Iterator[FakeLeaseway]:
    """A system with a leased server, of which one tool cannot have one more argument."""
    with FakeLeaseway() as fake:
        counter = fake.server("counter", stateful=True)

        @counter.tool
        def count(ctx: CallContext) -> str:
            """Count."""
            ctx.state["n"] = ctx.state.get("n", 0) + 1
            return f"{ctx.lease_id} {ctx.state['n']}"

        yield fake


def has_argument(listed: Any) -> bool:
    """Return whether the tool is listed with the argument."""
    (count,) = (tool for tool in listed["tools"] if tool["name"] == "count")
    return "session" in count["inputSchema"]["properties"]


class Renewing:
    """A host with a new session for each request; its model passes back what a result says."""

    def __init__(self, client: Host, program: str = "renewing") -> None:
        self.client = client
        self.program = program
        self.known: dict[str, Any] = {}

    async def listed(self) -> Any:
        return await self.client.send("tools/list", {}, await self.client.initialize(self.program))

    async def count(self) -> tuple[str, int]:
        headers = await self.client.initialize(self.program)
        result = await self.client.call(headers, **self.known)
        said = result.get("_meta", {}).get("leaseway/session")
        if said is not None:
            assert f"Session: {said}\n" in result["content"][-1]["text"]
            assert "structuredContent" not in result or "session" not in result["structuredContent"]
            self.known = {"session": said}
        lease, number = result["content"][0]["text"].split()
        return lease, int(number)


async def test_eight_calls_of_a_host_that_renews_its_session_have_one_process(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as url, host(url) as client:
        one = Renewing(client)
        assert not has_argument(await one.listed()), "nothing is known of its program yet"
        counted = [await one.count() for _ in range(8)]
        assert [number for _, number in counted] == [1, 2, 3, 4, 5, 6, 7, 8]
        assert len({lease for lease, _ in counted}) == 1
        assert len(fake.leases) == 1
        assert has_argument(await one.listed())
        other = Renewing(client)
        assert [(await other.count())[1] for _ in range(2)] == [1, 2]
        assert (await one.count())[1] == 9
        assert len(fake.leases) == 2, "two conversations have two processes"


async def test_a_host_that_never_lists_is_known_after_its_first_call(fake: FakeLeaseway) -> None:
    async with front(fake) as url, host(url) as client:
        model = Renewing(client)
        assert [(await model.count())[1] for _ in range(4)] == [1, 1, 2, 3]


async def test_a_program_that_continues_its_sessions_is_not_bothered(fake: FakeLeaseway) -> None:
    async with front(fake) as url, host(url) as client:
        await client.send("tools/list", {}, await client.initialize())  # ended without a DELETE
        headers = await client.initialize()
        first = await client.call(headers)
        assert "leaseway/session" in first["_meta"], "it looks like one that renews its sessions"
        for number in (2, 3):
            result = await client.call(headers)
            assert result["content"][0]["text"].endswith(f" {number}")
            assert len(result["content"]) == 1
        assert not has_argument(await client.send("tools/list", {}, await client.initialize()))
        assert len(fake.leases) == 1


@pytest.mark.parametrize("ends", ["stream", "delete", "calls"])
async def test_a_session_that_was_not_left_tells_nothing(fake: FakeLeaseway, ends: str) -> None:
    async with front(fake) as url, host(url) as client:
        headers = await client.initialize()
        await client.count(headers)
        if ends == "calls":
            await client.count(headers)
        elif ends == "delete":
            (await client.http.delete(url, headers=headers)).close()
        accept = {**headers, "Accept": "text/event-stream"}
        stream = await client.http.get(url, headers=accept) if ends == "stream" else None
        result = await client.call(await client.initialize())
        assert len(result["content"]) == 1
        if stream is not None:
            stream.close()


async def test_the_handle_ends_with_the_session_that_its_client_deletes(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as url, host(url) as client:
        await Renewing(client, "host").listed()
        headers = await client.initialize()
        await client.count(headers)
        (await client.http.delete(url, headers=headers)).close()
        assert not fake.leases


async def test_a_session_whose_handle_made_room_is_told_once(fake: FakeLeaseway) -> None:
    async with front(fake, limits=SessionLimits(1)) as url, host(url) as client:
        await Renewing(client, "host").listed()
        one, other = await client.initialize(), await client.initialize()
        await client.count(one)
        await client.count(other)
        with pytest.raises(LookupError, match="Its state is lost"):
            await client.count(one)
        assert (await client.count(one))[1] == 1
        assert (await client.count(one))[1] == 2


async def test_another_front_goes_on_with_a_session_that_was_told_a_handle(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as first, front(fake) as second:
        async with host(first) as client:
            await Renewing(client, "host").listed()
            headers = await client.initialize()
            lease, _ = await client.count(headers)
        async with host(second) as client:
            assert await client.count(headers) == (lease, 2)


class Balanced(Host):
    """A host whose requests go to each of several fronts in turn."""

    def balance(self, *urls: str) -> None:
        self.turns = itertools.cycle(urls)

    async def send(
        self, method: str, params: dict[str, Any], headers: dict[str, str] | None = None
    ) -> Any:
        self.url = next(self.turns)
        return await super().send(method, params, headers)


@asynccontextmanager
async def balanced(*urls: str) -> AsyncIterator[Balanced]:
    """Run a host behind a balancer that knows no sessions."""
    async with host("") as client:
        balanced = Balanced(client.http, "")
        balanced.balance(*urls)
        yield balanced


@pytest.mark.parametrize("others", [0, 1], ids=["in step", "out of step"])
async def test_two_fronts_learn_together_that_a_program_renews_its_sessions(
    fake: FakeLeaseway, others: int
) -> None:
    async with front(fake) as first, front(fake) as second, balanced(first, second) as client:
        model, counted = Renewing(client), list[int]()
        for _ in range(8):
            counted.append((await model.count())[1])
            for _ in range(others):  # so that either front begins and continues sessions
                await client.send("ping", {}, await client.initialize("another"))
                next(client.turns)
        assert counted[-5:] == list(range(counted[-1] - 4, counted[-1] + 1))
        assert counted[-1] >= 5, "at most three processes of first calls are lost"


async def test_a_front_that_starts_later_knows_which_programs_renew_their_sessions(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as url, host(url) as client:
        await Renewing(client).count()
        await Renewing(client).count()
    async with front(fake) as url, host(url) as client:
        assert has_argument(await Renewing(client).listed())


async def test_other_fronts_learn_that_a_program_continues_its_sessions(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as url, host(url) as client:
        await Renewing(client, "host").listed()
        headers = await client.initialize()
        for _ in range(2):
            await client.call(headers)
    async with front(fake) as url, host(url) as client:
        assert not has_argument(await client.send("tools/list", {}, await client.initialize()))


async def test_a_session_that_is_only_taken_for_renewed_has_one_process_at_all_fronts(
    fake: FakeLeaseway,
) -> None:
    async with front(fake) as first, front(fake) as second:
        async with host(first) as client:
            await Renewing(client, "host").listed()
            headers = await client.initialize()
        async with balanced(second, first) as client:
            counted = [
                (await client.call(headers))["content"][0]["text"].split()[1] for _ in range(4)
            ]
        assert counted == ["1", "2", "3", "4"]
        assert len(fake.leases) == 1
