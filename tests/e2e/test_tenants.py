"""Configuration layers in a running system: each tenant gets the servers of its domain."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from tests.e2e.forking import run_leaseway
from tests.e2e.system import System, eventually, python_server
from tests.ports import free_port

from leaseway.sdk import AsyncClient, ToolNotFound

SHARED = python_server("echo_raw.py", env={"WHO": "everyone", "SAME": "same"})
SERVERS: dict[str, object] = {
    "echo": SHARED | {"truely-stateless": True, "domain_may": ["transform", "args"]},
    "spare": SHARED | {"enabled": False, "transform": [{"prefix": "spare_"}]},
    "other": python_server("echo_raw.py", transform=[{"prefix": "other_"}]),
}
ACME = {
    "echo": {"env": {"WHO": "acme"}, "transform": [{"prefix": "acme_"}]},
    "other": {"enabled": False},
}
GLOBEX = {
    "echo": {"env": {"WHO": "globex"}, "tools": {"whitelist": ["env"]}},
    "spare": {"enabled": True},
}


class Layered(System):
    """A system with a domain for each file of a folder."""

    async def start_control_plane(self) -> None:
        listen = self.address or f"127.0.0.1:{free_port()}"
        self.control_plane = await self._start(
            "control-plane",
            *(word for path in self.words for word in ("--config", path)),
            *("--listen", listen, "--expect-workers", "1"),
        )
        self.address = self.control_plane.address

    @property
    def words(self) -> tuple[str, str]:
        """The values of `--config`."""
        return f"system={self.config}", f"domain={self.config.parent / 'tenants'}"

    def write_domain(self, tenant: str, servers: object) -> None:
        """Replace a tenant's domain."""
        path = self.config.parent / "tenants" / f"{tenant}.yaml"
        fresh = path.with_suffix(".new")
        fresh.write_text(yaml.safe_dump({"version": 1, "servers": servers}))
        fresh.replace(path)


@asynccontextmanager
async def layered(folder: Path) -> AsyncIterator[Layered]:
    (folder / "tenants").mkdir()
    made = Layered(folder, SERVERS)
    made.write_domain("acme", ACME)
    made.write_domain("globex", GLOBEX)
    async with made:
        yield made


async def command(system: System, *words: str) -> tuple[int, str]:
    done = await run_leaseway(*words, "--address", system.address)
    return done.status, done.stdout + done.stderr


async def names(client: AsyncClient) -> set[str]:
    return {tool.name for tool in await client.list_tools()}


async def who(client: AsyncClient, tool: str) -> tuple[str, str]:
    variables = json.loads((await client.call_tool(tool, {}, timeout=60)).text)
    return variables["WHO"], variables["SAME"]


@pytest.mark.usefixtures("leak_guard")
async def test_two_tenants_get_their_own_tools_and_variables(tmp_path: Path) -> None:
    async with (
        layered(tmp_path) as system,
        AsyncClient(system.address, tenant="acme") as acme,
        AsyncClient(system.address, tenant="globex") as globex,
        AsyncClient(system.address) as common,
    ):
        assert await who(common, "env") == ("everyone", "same")
        assert await who(acme, "acme_env") == ("acme", "same")
        assert await who(globex, "env") == ("globex", "same")
        assert await who(globex, "spare_env") == ("everyone", "same")
        assert "other_env" in await names(common)
        assert "other_env" in await names(globex)
        assert {name for name in await names(acme) if not name.startswith("acme_")} == set()
        assert {name for name in await names(globex) if "_" not in name} == {"env"}
        for client, missing in ((acme, "other:env"), (common, "spare:env"), (acme, "env")):
            with pytest.raises(ToolNotFound):
                await client.call_tool(missing, {})
        assert {server.id for server in await acme.servers()} == {"echo"}
        status, out = await command(system, "call", "acme_env", "--tenant", "acme")
        assert (status, '"acme"' in out.replace("\\", "")) == (0, True)
        status, _ = await command(system, "call", "acme_env", "--tenant", "globex")
        assert status == 1


@pytest.mark.usefixtures("leak_guard")
async def test_diff_shows_the_changes_of_a_domain_before_its_reload(tmp_path: Path) -> None:
    async with (
        layered(tmp_path) as system,
        AsyncClient(system.address, tenant="acme") as acme,
    ):
        assert (await command(system, "diff", *system.words))[0] == 0
        next_domain = tmp_path / "next.yaml"
        changed = {"echo": {"enabled": False}, "spare": {"enabled": True}}
        next_domain.write_text(yaml.safe_dump({"version": 1, "servers": changed}))
        globex = tmp_path / "tenants" / "globex.yaml"
        words = (
            f"system={system.config}",
            f"domain=acme:{next_domain}",
            f"domain=globex:{globex}",
        )
        status, out = await command(system, "diff", *words, "--json")
        rows = {(row["server"], row["tenant"]): row["change"] for row in json.loads(out)}
        assert status == 2
        assert {key: change for key, change in rows.items() if change != "same"} == {
            ("echo", "acme"): "hidden",
            ("spare", "acme"): "added",
            ("other", "acme"): "removed",
        }
        system.write_domain("acme", changed)

        async def reloaded() -> bool:
            seen = await names(acme)
            return "spare_env" in seen and "acme_env" not in seen and "other_env" in seen

        await eventually(reloaded)
        assert (await command(system, "diff", *system.words))[0] == 0


@pytest.mark.usefixtures("leak_guard")
async def test_a_tenant_with_an_invalid_override_keeps_its_previous_servers(tmp_path: Path) -> None:
    async with (
        layered(tmp_path) as system,
        AsyncClient(system.address, tenant="acme") as acme,
    ):
        system.write_domain("acme", {"echo": {"call_timeout": "soon"}, "other": {"command": "x"}})

        async def is_reported() -> bool:
            return {"echo", "other"} <= {problem.server_id for problem in await acme.problems()}

        await eventually(is_reported)
        assert await who(acme, "acme_env") == ("acme", "same")
        assert "other_env" not in await names(acme)
        assert system.control_plane is not None
        await system.control_plane.end()
        await system.start_control_plane()
        await system.ready()
        assert await who(acme, "acme_env") == ("acme", "same")
        assert "other_env" not in await names(acme)


@pytest.mark.usefixtures("leak_guard")
async def test_a_tenant_whose_override_fails_does_not_get_the_common_server(tmp_path: Path) -> None:
    async with (
        layered(tmp_path) as system,
        AsyncClient(system.address, tenant="initech") as initech,
        AsyncClient(system.address, tenant="other") as other,
    ):
        assert "env" in await names(initech)
        only = {"tools": {"blacklist": ["env"]}}
        system.write_domain("initech", {"echo": only | {"args": ["no_such_program.py"]}})

        async def is_reported() -> bool:
            return "initech" in {problem.tenant for problem in await other.problems()}

        await eventually(is_reported)
        assert not {"env", "echo"} & await names(initech)
        assert {server.id: server.state for server in await initech.servers()}["echo"] == "failed"
        assert {"env", "echo"} <= await names(other)
        system.write_domain("initech", {"echo": only})

        async def filtered() -> bool:
            return {"env", "echo"} & await names(initech) == {"echo"}

        await eventually(filtered)
