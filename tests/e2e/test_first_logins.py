"""The first login to a server: whoever sees the server is offered it, on a fresh installation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from tests.conftest import BOUND
from tests.data_plane.oauth.authority import Resource, answer_pages, browser, provider
from tests.e2e.logins import Person, entry, open_link, vault_of
from tests.e2e.mcp_front import front, stdio, text_of
from tests.e2e.system import eventually, running

from leaseway.sdk import AsyncClient, LoginRequired

pytestmark = pytest.mark.usefixtures("leak_guard")
LOGIN = {"serverId": "whoami"}


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Return what starts two workers of a server to which nobody has logged in."""
    environment = vault_of(tmp_path)
    async with provider() as authority, Resource() as resource:
        await resource.trust(authority)

        def begin(whose: str, *, shared: bool) -> Any:
            auth = {"authorization_code": {"for": whose}}
            servers = {"whoami": entry(resource, auth, **{"truely-stateless": shared})}
            return running(tmp_path, servers, workers=2, environment=environment, console=True)

        yield begin


@pytest.mark.parametrize(("transport", "shared"), [("http", True), ("stdio", False)])
async def test_the_first_user_of_an_ai_client_logs_in_and_hears_of_the_tools(
    start: Callable[..., Any], transport: str, shared: bool
) -> None:
    changed = asyncio.Event()

    async def on_message(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            changed.set()

    async with (
        start("tenant", shared=shared) as (system, _),
        front(system) as url,
        browser() as pages,
    ):
        person = Person(pages, "alice")
        async with Client(
            url if transport == "http" else stdio(system),
            mode="legacy",
            message_handler=on_message,
            elicitation_callback=person.accept,
        ) as client:

            async def lists(*names: str) -> bool:
                found = {tool.name for tool in (await client.list_tools()).tools}
                return found - {"lease_acquire", "lease_release", "mcp_release"} == {*names}

            await eventually(lambda: lists("mcp_login"))
            changed.clear()
            result = await client.call_tool("mcp_login", LOGIN, read_timeout_seconds=BOUND)
            assert text_of(result).startswith("You are logged in to server whoami.")
            async with asyncio.timeout(BOUND):
                await changed.wait()
            await eventually(lambda: lists("whoami"))
            result = await client.call_tool("whoami", {}, read_timeout_seconds=BOUND)
            assert text_of(result) == "alice"


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "leased"])
async def test_users_log_in_first_by_the_sdk_also_after_a_restart(
    start: Callable[..., Any], shared: bool
) -> None:
    async with start("user", shared=shared) as (system, _), browser() as pages:

        async def accept(params: Mapping[str, Any]) -> dict[str, str]:
            address = await open_link(pages, params["url"])
            assert "You are logged in" in await answer_pages(pages, address, "alice")
            return {"action": "accept"}

        async with AsyncClient(system.address, user="anna") as anna:
            assert await lists(anna, "mcp_login")
            for name, arguments in (("whoami:whoami", {}), ("mcp_login", LOGIN)):
                with pytest.raises(LoginRequired) as needed:
                    await anna.session("a").call_tool(name, arguments, timeout=BOUND)
                assert needed.value.url.startswith(f"{system.console}login/")
            assert not [problem for problem in await anna.problems() if "anna" in problem.message]
            await system.control_plane.end()
            await system.start_control_plane()
            await system.ready()  # a link of a worker that has not joined yet would be refused
            await eventually(lambda: lists(anna, "mcp_login"))
            result = await anna.session("a").call_tool(
                "whoami:whoami", timeout=BOUND, on_elicitation=accept
            )
            assert result.text == "alice"
            await eventually(lambda: lists(anna, "whoami"))
        async with AsyncClient(system.address, user="bob") as bob:
            assert await lists(bob, "mcp_login")


async def lists(client: AsyncClient, *names: str) -> bool:
    found = {tool.name for tool in await client.list_tools()}
    return found - {"mcp_release"} == {*names}
