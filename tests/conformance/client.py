"""The client that the official suite tests: the worker's MCP client, with a server at a URL.

A whole Leaseway runs with that server, whose tools, prompts and resources are used through the SDK.
The suite checks the requests of the worker. The suite starts `caller.py`, which asks the test's
process for a client: there, planes are forked, and no scenario waits for their imports.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import sys
import traceback
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from tests.conftest import BOUND
from tests.e2e.forking import fork_leaseway
from tests.e2e.system import System
from tests.vaults import QUICK_VAULTS

from leaseway.sdk import AsyncClient, LeasewayError, LoginRequired, Tool

CALLER = Path(__file__).with_name("caller.py")
ARGUMENTS = {"add_numbers": {"a": 5, "b": 3}, "valid_tool": {"region": "us-west1"}}
METADATA = "https://conformance-test.local/client-metadata.json"
"""The client metadata document that the suite knows."""


async def _own_tools(client: AsyncClient) -> dict[str, Tool]:
    """Return the suite's tools by name."""
    return {tool.name: tool for tool in await client.list_tools() if tool.server_id == "suite"}


@dataclass
class Scenario:
    """What the suite asks of a client.

    Attributes:
        folder: A folder for its files.
        name: The scenario's name.
        version: The version of MCP that the server speaks.
        context: What the suite says about the client.
        url: The server.
        said: What the client has to say about its failures.
    """

    folder: Path
    name: str
    version: str
    context: dict[str, Any]
    url: str
    said: list[str] = field(default_factory=list)
    config: Path = Path()

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LEASEWAY_VAULT": str(self.folder / "vault"),
            "LEASEWAY_VAULT_KEY": "the key of this scenario's vault",
            **QUICK_VAULTS,
        }

    def auth(self) -> dict[str, Any]:
        """Return the `auth` of the server, with what the context says about the client."""
        context = self.context
        names = ("client_id", "client_secret")
        client: dict[str, Any] = {name: context[name] for name in names if name in context}
        if "private_key_pem" in context:
            client["private_key"] = context["private_key_pem"]
            client["algorithm"] = context.get("signing_algorithm", "ES256")
        if "client-credentials" in self.name:
            return {"client_credentials": client}
        if "valid_jwt" in context:
            return {"workload_identity": {**client, "assertion": context["valid_jwt"]}}
        if "enterprise-managed" in self.name:
            provider = {
                "identity_provider": context["idp_issuer"],
                "identity_provider_client_id": context["idp_client_id"],
            }
            return {"id_jag": {**client, **provider, "listing_token": context.get("idp_id_token")}}
        if "client_id" not in client:
            client["client_metadata_url"] = METADATA
        return {"authorization_code": {"for": "tenant", **client}}

    def server(self) -> dict[str, Any]:
        """Return the server's entry."""
        server: dict[str, Any] = {
            "transport": "streamable_http",
            "url": self.url,
            "truely-stateless": self.version >= "2026",
        }
        if self.version < "2026":
            server["protocol"] = "legacy"
        if self.name.startswith("auth/"):
            server["auth"] = self.auth()
        return server

    async def run(self) -> None:
        """Run a Leaseway with the server and use the server."""
        server = self.server()
        system = System(self.folder, {"suite": server}, environment=self.environment)
        system.worker_options = ("--artifacts", str(self.folder))
        self.config = system.config
        if "authorization_code" in server.get("auth", {}):
            await self._log_in()
        token = self.context.get("idp_id_token")
        async with system, AsyncClient(system.address, subject_token=token) as client:
            await self._use(client)

    async def _log_in(self) -> bool:
        """Log in by `leaseway login`; the suite's pages need no person. Return whether it did."""
        words = ("login", "suite", "--no-browser", "--config", str(self.config))
        process = await fork_leaseway(words, {**os.environ, **self.environment}, None)
        async for line in process.stderr:
            self.said.append(line.decode().rstrip())
            if line.startswith(b"http"):
                async with aiohttp.ClientSession() as browser:
                    (await browser.get(line.decode().strip())).release()
        return await process.wait() == 0

    async def _use(self, client: AsyncClient) -> None:
        """Call all tools, get all prompts and read all resources."""
        problems = await client.problems()
        # Such as at another authorization server than before.
        if any(problem.reason == "LOGIN_REQUIRED" for problem in problems) and await self._log_in():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BOUND / 4):
                    while not await _own_tools(client):
                        await asyncio.sleep(0.1)
        tools = await _own_tools(client)
        arguments: dict[str, Any] = dict(ARGUMENTS)
        if focal := tools.get("json_schema_2020_12_tool"):
            arguments["json_schema_echo"] = {"schema": focal.input_schema}  # the suite compares it
        calls = self.context.get("toolCalls") or [
            {"name": name, "arguments": arguments.get(name, {})} for name in tools
        ]
        async with asyncio.TaskGroup() as group:
            for call in calls:
                if call["name"] in tools:
                    group.create_task(self._call_tool(client, call["name"], call["arguments"]))
        for prompt in await client.list_prompts():
            with contextlib.suppress(LeasewayError):
                await client.get_prompt(prompt.name)
        for resource in await client.list_resources():
            with contextlib.suppress(LeasewayError):
                await client.read_resource(resource.uri)

    async def _call_tool(self, client: AsyncClient, name: str, arguments: dict[str, Any]) -> None:
        """Call a tool and note an error, because the suite judges the requests."""
        for _ in range(2):
            try:
                await client.call_tool(name, arguments, on_elicitation=accept, timeout=BOUND)
            except LoginRequired as error:  # such as for more scopes
                self.said.append(f"{name}: {error}")
                await self._log_in()
                await asyncio.sleep(3)  # the workers look once a second
            except LeasewayError as error:
                self.said.append(f"{name}: {error}")
                return
            else:
                return


def accept(params: dict[str, Any]) -> dict[str, Any]:
    """Accept an elicitation with all defaults."""
    properties = params.get("requestedSchema", {}).get("properties", {})
    content = {name: item["default"] for name, item in properties.items() if "default" in item}
    return {"action": "accept", "content": content or {"confirmed": True}}


@contextlib.asynccontextmanager
async def command(folder: Path) -> AsyncIterator[str]:
    """Run clients for the suite; yields the command that starts one."""

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked: Mapping[str, str] = json.loads(await reader.readline())
        scenario = Scenario(
            folder=folder,
            name=asked["MCP_CONFORMANCE_SCENARIO"],
            version=asked["MCP_CONFORMANCE_PROTOCOL_VERSION"],
            context=json.loads(asked["MCP_CONFORMANCE_CONTEXT"] or "{}"),
            url=asked["url"],
        )
        try:
            await scenario.run()
        except Exception:
            scenario.said.append(traceback.format_exc())
        writer.write("\n".join(scenario.said).encode())
        writer.close()

    server = await asyncio.start_server(run, "127.0.0.1", limit=1 << 20)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield shlex.join((sys.executable, "-S", "-E", str(CALLER), str(port)))
