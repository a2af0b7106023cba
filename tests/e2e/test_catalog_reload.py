"""Filters of prompts and resources, changed while a system runs, and what a person sees of it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from tests.e2e.system import LEASEWAY, eventually, python_server, running

from leaseway.sdk import AsyncClient, ServerInfo

pytestmark = pytest.mark.usefixtures("leak_guard")


def notes(**settings: object) -> dict[str, object]:
    return python_server("offering_stdio.py", **{"truely-stateless": True, **settings})


async def only_server(client: AsyncClient) -> ServerInfo:
    (server,) = await client.servers()
    return server


async def leaseway(address: str, *words: str) -> tuple[int | None, str, str]:
    """Run the command and return its exit status and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *LEASEWAY,
        *words,
        "--address",
        address,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ,
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_new_filters_touch_no_process(tmp_path: Path) -> None:
    async with running(tmp_path, {"notes": notes()}) as (system, client):

        async def is_up() -> bool:
            return [one.state for one in (await only_server(client)).instances] == ["ready"]

        await eventually(is_up)
        before = await only_server(client)
        assert (before.prompt_count, before.resource_count) == (3, 4)
        system.write(
            {
                "notes": notes(
                    prompts={"whitelist": ["greet"]}, resources={"blacklist": ["note://secret/*"]}
                )
            }
        )

        async def filtered() -> bool:
            return [each.name for each in await client.list_prompts()] == ["greet"]

        await eventually(filtered)
        assert "note://secret/x" not in [each.uri for each in await client.list_resources()]
        after = await only_server(client)
        assert [one.pid for one in after.instances] == [one.pid for one in before.instances]
        reasons = {problem.reason for problem in await client.problems()}
        assert {"PROMPTS_FILTERED", "RESOURCES_FILTERED"} <= reasons
        assert (await client.get_prompt("greet", {"name": "x"})).text == "greet: hello x"


async def test_the_command_lists_and_reads_what_a_server_offers(tmp_path: Path) -> None:
    async with running(tmp_path, {"notes": notes()}) as (system, _client):
        address = system.address
        _, out, _ = await leaseway(address, "prompts", "notes", "--json")
        assert [one["name"] for one in json.loads(out)] == ["greet", "plain", "secret_prompt"]
        _, out, _ = await leaseway(address, "resources", "--json")
        kinds = {one["uri"]: one["template"] for one in json.loads(out)}
        assert (kinds["note://a"], kinds["note://{name}"]) == (False, True)
        assert await leaseway(address, "resource", "note://a") == (0, "first\n", "")
        assert await leaseway(address, "prompt", "greet", "name=Ada") == (
            0,
            "user: greet: hello Ada\n",
            "",
        )
        file = tmp_path / "blob"
        await leaseway(address, "resource", "note://blob", "--output", str(file))
        assert file.read_bytes() == bytes(range(256))
        status, _, err = await leaseway(address, "resource", "nota://a")
        assert status == 1
        assert "There is no resource 'nota://a'. Did you mean 'note://a'" in err
