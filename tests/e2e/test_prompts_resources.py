"""Prompts and resources through a whole system: filters, names, leases, losses, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncIterator

import pytest
from tests.conftest import BOUND, descendants
from tests.e2e.system import System, eventually, official_server, running

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

Running = tuple[System, AsyncClient]


def notes(*words: str, **settings: object) -> dict[str, object]:
    """Return the entry of a leased server with prompts and resources."""
    return official_server("offering_stdio.py", *words, **settings)


def shared(*words: str, **settings: object) -> dict[str, object]:
    return notes(*words, **{"truely-stateless": True, **settings})


CONFIGURATIONS: dict[str, dict[str, object]] = {
    "filtered": {
        "notes": shared(
            prompts={"blacklist": ["secret_*"]},
            resources={"blacklist": ["note://secret/*"]},
            transform=[{"prefix": "own_"}],
        )
    },
    "leased": {"notes": notes()},
    "shared": {"notes": shared()},
    "limited": {
        "failing": shared("broken=prompts"),
        "mute": shared("mute", transform=[{"prefix": "mute_"}]),
    },
}


@pytest.fixture(scope="module", autouse=True)
async def _no_process_remains() -> AsyncIterator[None]:
    """Check that no process outlives the systems of the module."""
    before = descendants(os.getpid()).keys()
    yield
    await eventually(lambda: descendants(os.getpid()).keys() <= before)


@pytest.fixture(scope="module")
async def filtered(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with running(tmp_path_factory.mktemp("filtered"), CONFIGURATIONS["filtered"]) as both:
        yield both


@pytest.fixture(scope="module")
async def leased(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with running(tmp_path_factory.mktemp("leased"), CONFIGURATIONS["leased"]) as both:
        yield both


@pytest.fixture(scope="module")
async def stateless(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with running(tmp_path_factory.mktemp("shared"), CONFIGURATIONS["shared"]) as both:
        yield both


@pytest.fixture(scope="module")
async def limited(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with running(tmp_path_factory.mktemp("limited"), CONFIGURATIONS["limited"]) as both:
        yield both


async def next_update(updates: AsyncResourceUpdates) -> str:
    return await updates.next(timeout=BOUND)


async def write(client: AsyncClient, text: str, tool: str = "write") -> None:
    await client.call_tool(tool, {"name": "a", "text": text}, timeout=BOUND)


async def test_prompts_and_resources_are_used_by_their_exposed_names(filtered: Running) -> None:
    _, client = filtered
    prompt = await client.get_prompt("own_greet", {"name": "Ada"}, timeout=BOUND)
    assert (prompt.description, prompt.text) == ("A greeting", "greet: hello Ada")
    assert prompt.messages[0]["role"] == "user"
    qualified = await client.get_prompt("notes:greet", {"name": "Bo"}, server="notes")
    assert qualified.text == "greet: hello Bo"
    assert (await client.read_resource("note://a")).text == "first"
    blob = await client.read_resource("note://blob")  # not listed, matches a template
    assert blob.blob == bytes(range(256))
    assert blob.text == ""
    completion = await client.complete("name", "a", prompt="own_greet", context={"x": "y"})
    assert completion.values == ["ada", "alan", "x=y"]
    assert (completion.total, completion.has_more) == (9, True)
    template = await client.complete("name", "s", template="note://{name}")
    assert template.values == ["secret/x"]


async def test_filtered_prompts_and_resources_are_not_found(filtered: Running) -> None:
    _, client = filtered
    assert [prompt.name for prompt in await client.list_prompts()] == ["own_greet", "own_plain"]
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


async def test_a_subscription_continues_after_its_server_is_replaced(stateless: Running) -> None:
    system, client = stateless
    async with client.subscribe_resource("note://a") as updates:
        with pytest.raises(TimeoutError):
            await updates.next(timeout=0.05)
        await write(client, "one")
        assert await next_update(updates) == "note://a"
        assert (await client.read_resource("note://a")).text == "one"
        newer = secrets.token_hex(4)  # also if the test runs again on this system
        system.write({"notes": shared(env={"NEWER": newer})})
        assert await next_update(updates) == "note://a"  # updates may have been missed
        assert (await client.read_resource("note://a")).text == "first"
        await write(client, "two")
        assert await next_update(updates) == "note://a"
    with pytest.raises(RuntimeError, match="ended with its"):
        await updates.next()
    with pytest.raises(RuntimeError, match="used before"):
        await updates.__aenter__()


async def test_a_subscription_continues_after_its_shared_server_dies(stateless: Running) -> None:
    _, client = stateless
    async with client.subscribe_resource("note://a") as updates:
        pids: list[int] = []

        async def is_reported() -> bool:
            (server,) = await client.servers()
            pids[:] = [instance.pid for instance in server.instances if instance.pid]
            return len(pids) == 1

        await eventually(is_reported)
        os.kill(pids[0], signal.SIGKILL)
        assert await next_update(updates) == "note://a"
        await write(client, "again")
        assert await next_update(updates) == "note://a"


async def test_a_subscription_of_a_session_ends_with_its_lease(leased: Running) -> None:
    _, client = leased
    async with client.session("one") as one, client.session("two") as two:
        async with one.subscribe_resource("note://a") as updates:
            (lease,) = one.leases()
            await one.call_tool("write", {"name": "a", "text": "mine"})
            assert await next_update(updates) == "note://a"
            assert (await one.read_resource("note://a")).text == "mine"
            other = await two.read_resource("note://a")
            assert other.text == "first"
            assert other.new_lease is not None
            with pytest.raises(TimeoutError):
                await updates.next(timeout=0.1)
            assert await one.release(lease)
            with pytest.raises(LeaseReleased):
                await next_update(updates)
        again = await one.get_prompt("greet", {"name": "Ada"})
        assert again.new_lease is not None


async def test_a_subscription_keeps_its_lease_alive(leased: Running) -> None:
    _, client = leased
    async with client.session("subscriber") as session:
        # Long enough that a busy machine, which stops processes for some seconds, ends no lease.
        await session.acquire("notes", ttl=10)
        async with session.subscribe_resource("note://a") as updates:
            with pytest.raises(TimeoutError):
                await updates.next(timeout=12.0)
            await session.call_tool("write", {"name": "a", "text": "mine"})
            assert await next_update(updates) == "note://a"


async def test_prompts_and_resources_survive_a_restart_of_the_control_plane(
    filtered: Running,
) -> None:
    system, client = filtered
    before = [prompt.name for prompt in await client.list_prompts()]
    await write(client, "zero", "own_write")
    async with client.subscribe_resource("note://a") as updates:
        assert system.control_plane is not None
        await system.control_plane.end()
        assert (await client.read_resource("note://a")).text == "zero"
        await write(client, "one", "own_write")
        assert await next_update(updates) == "note://a"
        await system.start_control_plane()
        await system.ready()
        await write(client, "two", "own_write")
        assert await next_update(updates) == "note://a"
    async with AsyncClient(system.address) as other:
        assert [prompt.name for prompt in await other.list_prompts()] == before
        assert (await other.get_prompt("own_greet", {"name": "x"})).text == "greet: hello x"
        with pytest.raises(ToolNotFound):
            await other.read_resource("note://secret/x")


async def test_new_prompts_are_listed_without_a_probe(stateless: Running) -> None:
    _, client = stateless
    count = len(await client.list_prompts())
    await client.call_tool("offer", {})

    async def has_more() -> bool:
        return len(await client.list_prompts()) == count + 1

    await eventually(has_more)
    prompt = await client.get_prompt(f"more{count}", {"name": "x"})
    assert prompt.text == f"more{count}: hello x"


async def test_a_server_whose_prompts_cannot_be_listed_keeps_its_tools_and_resources(
    limited: Running,
) -> None:
    _, client = limited
    assert (await client.call_tool("failing:said", {})).text == "[]"
    assert list(await client.list_prompts(["failing"])) == []
    assert (await client.read_resource("note://a", server="failing")).text == "first"

    async def is_reported() -> bool:
        return "OFFERS_NOT_LISTED" in [problem.reason for problem in await client.problems()]

    await eventually(is_reported)


async def test_a_subscription_fails_if_unsupported_or_at_its_deadline(limited: Running) -> None:
    _, client = limited
    with pytest.raises(ServerError, match="does not support subscriptions"):
        async with client.subscribe_resource("note://a", server="mute"):
            pass
    with pytest.raises(DeadlineExceeded):
        async with client.subscribe_resource("note://a", server="mute", timeout=0):
            pass


async def test_the_synchronous_client_uses_prompts_and_resources(leased: Running) -> None:
    def use(address: str) -> None:
        with Client(address) as client:
            assert client.get_prompt("greet", {"name": "Ada"}).text == "greet: hello Ada"
            assert client.read_resource("note://a").text == "first"
            assert client.complete("name", "g", prompt="greet").values == ["grace"]
            with (
                client.session("blocking") as session,
                session.subscribe_resource("note://a") as updates,
            ):
                with pytest.raises(TimeoutError):
                    updates.next(timeout=0.05)
                session.call_tool("write", {"name": "a", "text": "mine"})
                assert updates.next(timeout=BOUND) == "note://a"
                session.call_tool("write", {"name": "a", "text": "more"})
                assert next(iter(updates)) == "note://a"
                assert session.read_resource("note://a").text == "more"

    await asyncio.to_thread(use, leased[0].address)


async def test_each_of_many_subscribers_gets_the_updates_of_its_resource(
    stateless: Running,
) -> None:
    _, client = stateless
    async with contextlib.AsyncExitStack() as stack:
        subscriptions = [
            await stack.enter_async_context(client.subscribe_resource(f"note://n{n % 10}"))
            for n in range(40)
        ]
        for n in range(10):
            await client.call_tool("write", {"name": f"n{n}", "text": "x"})
        for n, updates in enumerate(subscriptions):
            assert await next_update(updates) == f"note://n{n % 10}"
