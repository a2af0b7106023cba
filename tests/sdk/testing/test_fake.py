"""`FakeLeaseway` as users' tests see it."""

from __future__ import annotations

import asyncio
import doctest
import subprocess
import sys
import threading
import time

import pytest
from tests.sdk.fakes import BOUND, until

import leaseway.sdk.testing
from leaseway.identity.tokens import MAX_TOKEN
from leaseway.sdk import (
    AsyncClient,
    Client,
    LeasewayError,
    ToolNotFound,
    runtime,
)
from leaseway.sdk.testing import FakeLeaseway


def test_the_documented_example_works() -> None:
    failures, examples = doctest.testmod(leaseway.sdk.testing)
    assert failures == 0
    assert examples >= 3


async def test_both_clients_work_in_one_test(fake: FakeLeaseway) -> None:
    async with fake.async_client(agent="billing", tenant="acme") as client:
        assert (await client.call_tool("add", {"a": 2, "b": 3})).text == "5"
        assert (await client.call_tool("tools:add", {"a": 2})).structured == {"result": 3}
    assert fake.client().call_tool("echo", {"text": "so"}).text == "so"
    first, _, third = fake.calls
    assert (first.tool, first.server_id, first.arguments) == ("add", "tools", {"a": 2, "b": 3})
    assert (first.agent, first.tenant) == ("billing", "acme")
    assert (third.agent, third.tenant, third.lease_id) == ("", "default", "")


async def test_a_fake_serves_clients_of_several_loops_and_threads(fake: FakeLeaseway) -> None:
    client = fake.client()

    async def use() -> str:
        async with fake.async_client() as own:
            return (await own.call_tool("add", {"a": 1})).text

    def work() -> tuple[str, str]:
        return asyncio.run(use()), client.call_tool("add", {"a": 1}).text

    async with asyncio.timeout(BOUND):
        answers = await asyncio.gather(*(asyncio.to_thread(work) for _ in range(4)))
    assert answers == [("2", "2")] * 4


async def test_watches_report_added_and_removed_tools(fake: FakeLeaseway) -> None:
    async with fake.async_client() as client, asyncio.timeout(BOUND):
        watch = client.watch_tools(["tools"])
        assert [tool.name for tool in await anext(watch)] == ["add", "echo"]
        fake.tool(name="zip")(lambda: "z")
        assert [tool.name for tool in await anext(watch)] == ["add", "echo", "zip"]
        assert (await client.call_tool("zip")).text == "z"
        fake.remove_tool("zip")
        assert [tool.name for tool in await anext(watch)] == ["add", "echo"]
        with pytest.raises(ToolNotFound):
            await client.call_tool("zip")


def test_a_fake_answers_requests_of_operators(fake: FakeLeaseway) -> None:
    client = fake.client()
    client.session("one").acquire("desk")
    client.report_problem("PROVIDER_REFUSED", "Something is odd.", server="desk")
    assert client.status().ready
    assert [server.id for server in client.servers()] == ["desk", "tools"]
    assert [worker.id for worker in client.workers()] == ["fake-worker"]
    assert client.find_lease("one", "desk") == client.leases()[0].id
    assert client.revoke_lease(client.leases()[0].id)
    assert client.leases() == []
    assert client.logs("desk") == []
    assert [problem.reason for problem in fake.problems] == ["PROVIDER_REFUSED"]
    assert client.problems()[0].message == "Something is odd."
    assert {tool.server_id for tool in client.list_tools(["desk"])} == {"desk"}


async def test_a_drained_fake_serves_no_calls(fake: FakeLeaseway) -> None:
    async with fake.async_client() as client:
        await client.session("one").acquire("desk")
        await client.drain_worker("fake-worker")
        await until(lambda: not fake.leases)
        with pytest.raises(LeasewayError):
            await client.call_tool("add", {"a": 1}, timeout=1.0)


def test_tools_can_be_added_before_the_fake_runs_but_clients_cannot_be_made() -> None:
    fake = FakeLeaseway()
    fake.tool(name="early")(lambda: "bird")
    with pytest.raises(RuntimeError, match="does not run"):
        fake.client()
    with fake:
        assert fake.client().call_tool("early").text == "bird"
    with pytest.raises(RuntimeError, match="does not run"):
        fake.async_client()


async def test_a_stopped_fake_leaves_no_threads() -> None:
    before = {thread.name for thread in threading.enumerate()}
    for _ in range(3):
        with FakeLeaseway() as fake:
            fake.tool(name="nothing")(lambda: None)
            fake.client().call_tool("nothing")
            async with AsyncClient(fake.address) as client:
                await client.call_tool("nothing")

    def left() -> set[str]:
        names = {thread.name for thread in threading.enumerate()} - before
        return {name for name in names if "fake" in name}

    await until(lambda: not left())


def test_a_fake_serves_in_one_block_after_the_other() -> None:
    fake = FakeLeaseway()

    @fake.tool
    def double(n: int) -> int:
        return 2 * n

    for _ in range(2):
        with fake:
            assert fake.client().call_tool("double", {"n": 2}).text == "4"


def test_the_fake_closes_its_synchronous_clients() -> None:
    with FakeLeaseway() as fake:
        client: Client = fake.client()
        client.list_tools()
    with pytest.raises(RuntimeError, match="closed"):
        client.list_tools()


async def test_a_tool_can_use_its_own_fake(fake: FakeLeaseway) -> None:
    @fake.tool
    async def grow() -> int:
        fake.tool(name="grown")(lambda: "new")
        return len(fake.calls)

    @fake.tool
    def call_on() -> str:
        return fake.client().call_tool("grown").text

    client = fake.client()
    assert client.call_tool("grow").text == "1"
    assert client.call_tool("call_on").text == "new"


def test_an_import_without_the_extra_names_what_to_install() -> None:
    code = "import sys; sys.modules['pydantic'] = None; import leaseway.sdk.testing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'leaseway[testing]'" in done.stderr


def test_the_longest_token_reaches_both_planes(fake: FakeLeaseway) -> None:
    client = fake.client(key="x" * MAX_TOKEN)
    assert client.call_tool("add", {"a": 1}).text == "2"
    assert client.session("s").call_tool("desk_open", {"name": "a"}).text == "opened a"


def test_the_end_of_a_client_waits_for_no_stream_of_the_planes(
    fake: FakeLeaseway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_CANCEL_TIMEOUT", BOUND)
    client = fake.client()
    assert client.call_tool("add", {"a": 1}).text == "2"
    begun = time.monotonic()
    client.close()
    assert time.monotonic() - begun < BOUND
