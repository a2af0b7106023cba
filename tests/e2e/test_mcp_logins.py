"""The official MCP client at a front, whose calls need a login at a real oidc-provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError
from tests.conftest import BOUND
from tests.data_plane.oauth.authority import Resource, answer_pages, browser, provider
from tests.e2e.logins import Person, entry, is_answered, log_in, open_link, vault_of
from tests.e2e.mcp_front import ERAS, front, text_of
from tests.e2e.system import eventually, running

from leaseway.sdk import AsyncClient

OWN = {"lease_acquire", "lease_release", "mcp_release"}

pytestmark = pytest.mark.usefixtures("leak_guard")


@pytest.fixture(params=["shared", "leased"])
async def url(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Run a front of a server that needs a login of each tenant; one tenant has logged in."""
    environment = vault_of(tmp_path)
    async with provider() as authority, Resource() as resource:
        await resource.trust(authority)
        auth = {"authorization_code": {"for": "tenant"}}
        servers = {
            "whoami": entry(resource, auth, **{"truely-stateless": request.param == "shared"})
        }
        async with (
            running(tmp_path, servers, environment=environment, console=True) as (system, _),
            AsyncClient(system.address, agent="test", tenant="beta") as beta,
            front(system) as address,
        ):
            await log_in(system, environment, "beta", "bob")  # so that its tool is listed
            await eventually(lambda: is_answered(beta))
            yield address


async def decline(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="decline")


@pytest.mark.parametrize(
    ("url", "era"), list(zip(("shared", "leased"), ERAS, strict=True)), indirect=["url"]
)
async def test_a_call_of_the_official_client_waits_for_the_login_and_goes_on(
    url: str, era: str
) -> None:
    async with browser() as pages:
        person = Person(pages, "alice")
        async with Client(url, mode=era, elicitation_callback=decline) as client:
            with pytest.raises(MCPError) as declined:
                await client.call_tool("whoami", {}, read_timeout_seconds=BOUND)
            assert declined.value.data["reason"] == "LOGIN_REQUIRED"
        async with Client(url, mode=era, elicitation_callback=person.accept) as client:
            for _ in range(2):
                result = await client.call_tool("whoami", {}, read_timeout_seconds=BOUND)
                assert text_of(result) == "alice"
        assert person.asked == ["Log in to whoami to go on."]


@pytest.mark.parametrize(
    ("url", "scope", "arguments"),
    [("leased", "", {"serverId": "whoami"}), ("shared", "/whoami", {})],
    ids=["all", "one"],
    indirect=["url"],
)
async def test_who_has_not_logged_in_is_listed_a_login_and_the_tools_after_it(
    url: str, scope: str, arguments: dict[str, Any]
) -> None:
    async def names() -> set[str]:
        return {tool.name for tool in (await client.list_tools()).tools} - OWN

    async def has_tools() -> bool:
        return await names() == {"whoami"}

    async with browser() as pages:
        person = Person(pages, "alice")
        address = f"{url}{scope}"
        async with Client(address) as client:
            with pytest.raises(MCPError) as refused:
                await client.call_tool("whoami", {}, read_timeout_seconds=BOUND)
            assert refused.value.data["reason"] == "LOGIN_REQUIRED"
        async with Client(address, elicitation_callback=person.accept) as client:
            assert await names() == {"mcp_login"}
            [login] = [
                tool for tool in (await client.list_tools()).tools if tool.name == "mcp_login"
            ]
            assert set(login.input_schema.get("properties", ())) == {*arguments}
            result = await client.call_tool("mcp_login", arguments, read_timeout_seconds=BOUND)
            assert text_of(result).startswith("You are logged in to server whoami.")
            await eventually(has_tools)
            result = await client.call_tool("whoami", {}, read_timeout_seconds=BOUND)
            assert text_of(result) == "alice"


@pytest.mark.parametrize("url", ["shared"], indirect=True)
@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_opens_no_addresses_gets_the_address_in_the_error(
    url: str, era: str
) -> None:
    async with Client(url, mode=era) as client:
        with pytest.raises(MCPError, match="needs a login") as refused:
            await client.call_tool("whoami", {}, read_timeout_seconds=BOUND)
        assert refused.value.data["reason"] == "LOGIN_REQUIRED"
        assert "leaseway login" not in refused.value.message
        async with browser() as pages:
            address = await open_link(pages, refused.value.data["url"])
            assert "You are logged in" in await answer_pages(pages, address, "alice")

        async def is_alice() -> bool:
            try:
                result = await client.call_tool("whoami", {}, read_timeout_seconds=BOUND)
            except MCPError:  # the worker looks for new logins once a second
                return False
            return text_of(result) == "alice"

        await eventually(is_alice)
