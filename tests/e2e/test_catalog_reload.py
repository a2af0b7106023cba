"""Changed filters of prompts and resources, and the commands that list and read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.forking import run_leaseway
from tests.e2e.system import eventually, official_server, running

from leaseway.sdk import AsyncClient, ServerInfo

pytestmark = pytest.mark.usefixtures("leak_guard")


NOTES = official_server("offering_stdio.py", **{"truely-stateless": True})


async def only_server(client: AsyncClient) -> ServerInfo:
    (server,) = await client.servers()
    return server


async def test_new_filters_restart_no_process(tmp_path: Path) -> None:
    async with running(tmp_path, {"notes": NOTES}) as (system, client):

        async def is_up() -> bool:
            return [instance.state for instance in (await only_server(client)).instances] == [
                "ready"
            ]

        await eventually(is_up)
        before = await only_server(client)
        assert (before.prompt_count, before.resource_count) == (3, 4)
        system.write(
            {
                "notes": {
                    **NOTES,
                    "prompts": {"whitelist": ["greet"]},
                    "resources": {"blacklist": ["note://secret/*"]},
                }
            }
        )

        async def filtered() -> bool:
            return [prompt.name for prompt in await client.list_prompts()] == ["greet"]

        await eventually(filtered)
        assert "note://secret/x" not in [resource.uri for resource in await client.list_resources()]
        after = await only_server(client)
        assert [instance.pid for instance in after.instances] == [
            instance.pid for instance in before.instances
        ]
        assert await client.problems() == []
        assert (await client.get_prompt("greet", {"name": "x"})).text == "greet: hello x"


async def test_commands_list_and_read_prompts_and_resources(tmp_path: Path) -> None:
    async with running(tmp_path, {"notes": NOTES}) as (system, _client):
        address = ("--address", system.address)
        _, out, _ = await run_leaseway("prompts", "notes", "--json", *address)
        assert [row["name"] for row in json.loads(out)] == ["greet", "plain", "secret_prompt"]
        _, out, _ = await run_leaseway("resources", "--json", *address)
        kinds = {row["uri"]: row["template"] for row in json.loads(out)}
        assert (kinds["note://a"], kinds["note://{name}"]) == (False, True)
        assert await run_leaseway("resource", "note://a", *address) == (0, "first\n", "")
        assert await run_leaseway("prompt", "greet", "name=Ada", *address) == (
            0,
            "user: greet: hello Ada\n",
            "",
        )
        file = tmp_path / "blob"
        await run_leaseway("resource", "note://blob", "--output", str(file), *address)
        assert file.read_bytes() == bytes(range(256))
        status, _, err = await run_leaseway("resource", "nota://a", *address)
        assert status == 1
        assert "There is no resource 'nota://a'. Did you mean 'note://a'" in err
