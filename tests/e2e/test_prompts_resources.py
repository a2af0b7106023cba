"""Prompts and resources through a whole system: filters, names, leases, losses, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest
from tests.e2e.system import System, eventually, python_server, running

from leaseway.sdk import (
    AsyncClient,
    AsyncResourceUpdates,
    Client,
    DeadlineExceeded,
    InvalidArguments,
    LeaseReleased,
    ServerError,
    ToolNotFound,
)

WAIT = 60.0
pytestmark = pytest.mark.usefixtures("leak_guard")


def notes(**settings: object) -> dict[str, object]:
    """Return the entry of the server with prompts and resources."""
    return python_server("offering_stdio.py", **settings)


def shared(**settings: object) -> dict[str, object]:
    return notes(**{"truely-stateless": True, **settings})


FILTERED = shared(
    prompts={"blacklist": ["secret_*"]},
    resources={"blacklist": ["note://secret/*"]},
    transform=[{"prefix": "own_"}],
)


async def changed(updates: AsyncResourceUpdates) -> str:
    return await updates.next(timeout=WAIT)


async def write(client: AsyncClient, text: str, tool: str = "write") -> None:
    await client.call_tool(tool, {"name": "a", "text": text}, timeout=WAIT)


async def test_prompts_and_resources_are_used_by_their_exposed_names(tmp_path: Path) -> None:
    async with running(tmp_path, {"notes": FILTERED}) as (_system, client):
        prompt = await client.get_prompt("own_greet", {"name": "Ada"}, timeout=WAIT)
        assert (prompt.description, prompt.text) == ("A greeting", "greet: hello Ada")
        assert prompt.messages[0]["role"] == "user"
        qualified = await client.get_prompt("notes:greet", {"name": "Bo"}, server="notes")
        assert qualified.text == "greet: hello Bo"
        assert (await client.read_resource("note://a")).text == "first"
        blob = await client.read_resource("note://blob")  # not listed; a template stands for it
        assert blob.blob == bytes(range(256))
        assert blob.text == ""
        completion = await client.complete("name", "a", prompt="own_greet", context={"x": "y"})
        assert completion.values == ["ada", "alan", "x=y"]
        assert (completion.total, completion.has_more) == (9, True)
        template = await client.complete("name", "s", template="note://{name}")
        assert template.values == ["secret/x"]


async def test_what_is_filtered_does_not_exist(tmp_path: Path) -> None:
    async with running(tmp_path, {"notes": FILTERED}) as (_system, client):
        assert [each.name for each in await client.list_prompts()] == ["own_greet", "own_plain"]
        with pytest.raises(ToolNotFound, match="prompt"):
            await client.get_prompt("own_secret_prompt", {"name": "x"})
        with pytest.raises(ToolNotFound, match="prompt"):
            await client.get_prompt("greet", {"name": "x"})
        for uri in ("note://secret/x", "note://open/../secret/x", "note://%73ecret/x"):
            with pytest.raises(ToolNotFound):
                await client.read_resource(uri)
            with pytest.raises(ToolNotFound):
                async with client.subscribe_resource(uri):
                    pass
        with pytest.raises(ToolNotFound):
            await client.read_resource("other://a")
        with pytest.raises(ServerError) as caught:
            await client.read_resource("note://none")
        assert caught.value.code == -32602
        with pytest.raises(TypeError, match="str\\(\\)"):
            await client.get_prompt("own_greet", {"name": 3})  # type: ignore[dict-item]
        with pytest.raises(TypeError, match="either prompt= or template="):
            await client.complete("name", "x")
        with pytest.raises((InvalidArguments, ToolNotFound)):
            await client.read_resource("note://a\n")


async def test_a_subscription_goes_on_beside_other_calls_and_over_a_servers_replacement(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, {"notes": shared()}) as (system, client):
        async with client.subscribe_resource("note://a") as updates:
            with pytest.raises(TimeoutError):
                await updates.next(timeout=0.05)
            await write(client, "one")
            assert await changed(updates) == "note://a"
            assert (await client.read_resource("note://a")).text == "one"
            system.write({"notes": shared(env={"NEWER": "1"})})
            assert await changed(updates) == "note://a"  # what it missed nobody knows
            assert (await client.read_resource("note://a")).text == "first"
            await write(client, "two")
            assert await changed(updates) == "note://a"
        with pytest.raises(RuntimeError, match="ended with its"):
            await updates.next()
        with pytest.raises(RuntimeError, match="used before"):
            await updates.__aenter__()


async def test_a_subscription_outlives_a_shared_server_that_dies(tmp_path: Path) -> None:
    async with (
        running(tmp_path, {"notes": shared()}) as (_system, client),
        client.subscribe_resource("note://a") as updates,
    ):
        pids: list[int] = []

        async def reported() -> bool:
            (server,) = await client.servers()
            pids[:] = [instance.pid for instance in server.instances if instance.pid]
            return len(pids) == 1

        await eventually(reported)
        os.kill(pids[0], signal.SIGKILL)
        assert await changed(updates) == "note://a"
        await write(client, "again")
        assert await changed(updates) == "note://a"


async def test_a_session_reads_what_it_wrote_and_its_subscription_ends_with_its_lease(
    tmp_path: Path,
) -> None:
    async with (
        running(tmp_path, {"notes": notes()}) as (_system, client),
        client.session("one") as one,
        client.session("two") as two,
    ):
        async with one.subscribe_resource("note://a") as updates:
            (lease,) = one.leases()
            await one.call_tool("write", {"name": "a", "text": "mine"})
            assert await changed(updates) == "note://a"
            assert (await one.read_resource("note://a")).text == "mine"
            other = await two.read_resource("note://a")
            assert other.text == "first"
            assert other.new_lease is not None
            with pytest.raises(TimeoutError):
                await updates.next(timeout=0.1)
            assert await one.release(lease)
            with pytest.raises(LeaseReleased):
                await changed(updates)
        again = await one.get_prompt("greet", {"name": "Ada"})
        assert again.new_lease is not None


async def test_a_lease_is_kept_alive_while_only_a_subscription_uses_it(tmp_path: Path) -> None:
    async with (
        running(tmp_path, {"notes": notes()}) as (_system, client),
        client.session("one") as one,
    ):
        # Long enough that some seconds in which the machine gives nobody time end no lease.
        await one.acquire("notes", ttl=10)
        async with one.subscribe_resource("note://a") as updates:
            with pytest.raises(TimeoutError):
                await updates.next(timeout=12.0)
            await one.call_tool("write", {"name": "a", "text": "mine"})
            assert await changed(updates) == "note://a"


async def test_offers_outlive_a_restart_of_the_control_plane(tmp_path: Path) -> None:
    async with System(tmp_path, {"notes": FILTERED}) as system:
        async with AsyncClient(system.address) as client:
            before = await client.list_prompts()
            await write(client, "zero", "own_write")
            async with client.subscribe_resource("note://a") as updates:
                assert system.control_plane is not None
                await system.control_plane.end()
                assert (await client.read_resource("note://a")).text == "zero"
                await write(client, "one", "own_write")
                assert await changed(updates) == "note://a"
                await system.start_control_plane()
                await system.ready()
                await write(client, "two", "own_write")
                assert await changed(updates) == "note://a"
        async with AsyncClient(system.address) as client:
            assert [each.name for each in await client.list_prompts()] == [
                each.name for each in before
            ]
            assert (await client.get_prompt("own_greet", {"name": "x"})).text == "greet: hello x"
            with pytest.raises(ToolNotFound):
                await client.read_resource("note://secret/x")


async def test_new_prompts_are_listed_without_a_probe(tmp_path: Path) -> None:
    async with running(tmp_path, {"notes": shared()}) as (_system, client):
        assert len(await client.list_prompts()) == 3
        await client.call_tool("offer", {})

        async def has_more() -> bool:
            return len(await client.list_prompts()) == 4

        await eventually(has_more)
        assert (await client.get_prompt("more3", {"name": "x"})).text == "more3: hello x"


async def test_a_list_that_fails_leaves_the_tools(tmp_path: Path) -> None:
    broken = python_server("offering_stdio.py", "broken=prompts", **{"truely-stateless": True})
    async with running(tmp_path, {"notes": broken}) as (_system, client):
        assert (await client.call_tool("said", {})).text == "[]"
        assert list(await client.list_prompts()) == []
        assert (await client.read_resource("note://a")).text == "first"

        async def is_said() -> bool:
            found = [each.reason for each in await client.problems()]
            return "OFFERS_NOT_LISTED" in found

        await eventually(is_said)


async def test_a_server_that_tells_nothing_and_one_that_does_not_answer(tmp_path: Path) -> None:
    mute = python_server("offering_stdio.py", "mute", **{"truely-stateless": True})
    async with running(tmp_path, {"notes": mute}) as (_system, client):
        with pytest.raises(ServerError, match="does not support subscriptions"):
            async with client.subscribe_resource("note://a"):
                pass
        with pytest.raises(DeadlineExceeded):
            async with client.subscribe_resource("note://a", timeout=0):
                pass


async def test_the_synchronous_client_does_the_same(tmp_path: Path) -> None:
    def use(address: str) -> None:
        with Client(address) as client:
            assert client.get_prompt("greet", {"name": "Ada"}).text == "greet: hello Ada"
            assert client.read_resource("note://a").text == "first"
            assert client.complete("name", "g", prompt="greet").values == ["grace"]
            with (
                client.session("one") as session,
                session.subscribe_resource("note://a") as updates,
            ):
                with pytest.raises(TimeoutError):
                    updates.next(timeout=0.05)
                session.call_tool("write", {"name": "a", "text": "mine"})
                assert updates.next(timeout=WAIT) == "note://a"
                session.call_tool("write", {"name": "a", "text": "more"})
                assert next(iter(updates)) == "note://a"
                assert session.read_resource("note://a").text == "more"

    async with running(tmp_path, {"notes": notes()}) as (system, _):
        await asyncio.to_thread(use, system.address)


async def test_many_follow_at_once_and_each_hears_of_its_own(tmp_path: Path) -> None:
    async with (
        running(tmp_path, {"notes": shared()}) as (_system, client),
        contextlib.AsyncExitStack() as stack,
    ):
        followed = [
            await stack.enter_async_context(client.subscribe_resource(f"note://n{n % 10}"))
            for n in range(40)
        ]
        for n in range(10):
            await client.call_tool("write", {"name": f"n{n}", "text": "x"})
        for n, updates in enumerate(followed):
            assert await changed(updates) == f"note://n{n % 10}"
