"""The client command of the official suite: tests the worker's MCP client with a server at a URL.

It runs a whole Leaseway with that server, and uses its tools, prompts and resources through the
SDK. The suite checks the requests of the worker. The URL is the last argument.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from leaseway.sdk import AsyncClient, LeasewayError, LoginRequired

BOUND = 60.0
SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
VERSION = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "")
CONTEXT = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
SUBJECT_TOKEN = CONTEXT.get("idp_id_token")
ARGUMENTS = {"add_numbers": {"a": 5, "b": 3}, "valid_tool": {"region": "us-west1"}}


METADATA = "https://conformance-test.local/client-metadata.json"
"""The client metadata document that the suite knows."""


def auth() -> dict[str, Any]:
    """Return the `auth` of a scenario, with what its context says about the client."""
    client = {name: CONTEXT[name] for name in ("client_id", "client_secret") if name in CONTEXT}
    if "private_key_pem" in CONTEXT:
        client["private_key"] = CONTEXT["private_key_pem"]
        client["algorithm"] = CONTEXT.get("signing_algorithm", "ES256")
    if "client-credentials" in SCENARIO:
        return {"client_credentials": client}
    if "valid_jwt" in CONTEXT:
        return {"workload_identity": {**client, "assertion": CONTEXT["valid_jwt"]}}
    if "enterprise-managed" in SCENARIO:
        provider = {
            "identity_provider": CONTEXT["idp_issuer"],
            "identity_provider_client_id": CONTEXT["idp_client_id"],
        }
        return {"id_jag": {**client, **provider, "listing_token": SUBJECT_TOKEN}}
    if "client_id" not in client:
        client["client_metadata_url"] = METADATA
    return {"authorization_code": {"for": "tenant", **client}}


class Logins:
    """Logs in by `leaseway login`; the suite's pages need no person."""

    def __init__(self, folder: Path, config: Path) -> None:
        self.environment = {
            **os.environ,
            "LEASEWAY_VAULT": str(folder / "vault"),
            "LEASEWAY_VAULT_KEY": "the key of this scenario's vault",
        }
        self._config = config

    async def log_in(self) -> bool:
        """Log in once; return whether that succeeded."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "leaseway.cli.main", "login", "suite", "--no-browser"),
            *("--config", str(self._config)),
            env=self.environment,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        async for line in process.stderr:
            print(line.decode().rstrip(), file=sys.stderr)
            if line.startswith(b"http"):
                async with aiohttp.ClientSession() as browser:
                    (await browser.get(line.decode().strip())).release()
        return await process.wait() == 0


@contextlib.asynccontextmanager
async def leaseway(url: str) -> AsyncIterator[tuple[str, Logins]]:
    """Run a Leaseway with one server; yields its address."""
    server: dict[str, Any] = {
        "transport": "streamable_http",
        "url": url,
        "truely-stateless": VERSION >= "2026",
    }
    if VERSION < "2026":
        server["protocol"] = "legacy"
    if SCENARIO.startswith("auth/"):
        server["auth"] = auth()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "mcp.yaml"
        config.write_text(yaml.safe_dump({"version": 1, "servers": {"suite": server}}))
        logins = Logins(Path(folder), config)
        if "authorization_code" in server.get("auth", {}):
            await logins.log_in()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "leaseway.cli.main", "up"),
            *("--config", str(config), "--listen", "127.0.0.1:0", "--artifacts", folder),
            stdout=asyncio.subprocess.PIPE,
            env=logins.environment,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(BOUND):
                line = (await process.stdout.readline()).decode()
            yield line.removeprefix("ready ").strip(), logins
        finally:
            process.terminate()
            await process.wait()


def accept(params: dict[str, Any]) -> dict[str, Any]:
    """Accept an elicitation with all defaults."""
    properties = params.get("requestedSchema", {}).get("properties", {})
    content = {name: item["default"] for name, item in properties.items() if "default" in item}
    return {"action": "accept", "content": content or {"confirmed": True}}


async def use(client: AsyncClient, logins: Logins) -> None:
    """Call all tools, get all prompts and read all resources."""
    problems = await client.problems()
    # Such as at another authorization server than before.
    if any(problem.reason == "LOGIN_REQUIRED" for problem in problems) and await logins.log_in():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BOUND / 4):
                while not (await client.list_tools()):
                    await asyncio.sleep(0.1)
    tools = {tool.name: tool for tool in await client.list_tools()}
    arguments: dict[str, Any] = dict(ARGUMENTS)
    if focal := tools.get("json_schema_2020_12_tool"):
        arguments["json_schema_echo"] = {"schema": focal.input_schema}  # the suite compares it
    calls = CONTEXT.get("toolCalls") or [
        {"name": name, "arguments": arguments.get(name, {})} for name in tools
    ]
    async with asyncio.TaskGroup() as group:
        for call in calls:
            if call["name"] in tools:
                group.create_task(call_tool(client, logins, call["name"], call["arguments"]))
    for prompt in await client.list_prompts():
        with contextlib.suppress(LeasewayError):
            await client.get_prompt(prompt.name)
    for resource in await client.list_resources():
        with contextlib.suppress(LeasewayError):
            await client.read_resource(resource.uri)


async def call_tool(
    client: AsyncClient, logins: Logins, name: str, arguments: dict[str, Any]
) -> None:
    """Call a tool and print an error, because the suite judges the requests."""
    for _ in range(2):
        try:
            await client.call_tool(name, arguments, on_elicitation=accept, timeout=BOUND)
        except LoginRequired as error:  # such as for more scopes
            print(f"{name}: {error}", file=sys.stderr)
            await logins.log_in()
            await asyncio.sleep(3)  # the workers look once a second
        except LeasewayError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return
        else:
            return


async def main() -> None:
    """Run one scenario."""
    async with (
        leaseway(sys.argv[-1]) as (address, logins),
        AsyncClient(address, subject_token=SUBJECT_TOKEN) as client,
    ):
        await use(client, logins)


asyncio.run(main())
