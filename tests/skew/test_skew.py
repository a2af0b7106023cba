"""Planes, workers and the SDK with parts of an earlier commit, installed from its wheel.

`make skew` says which commit; without it these tests are skipped, for they build that wheel.
"""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from tests.conftest import ROOT, absent
from tests.e2e.system import LEASEWAY, System, eventually, python_server

from leaseway.sdk import AsyncClient, LeaseLost, LeaseRevoked, RateLimited

_USES = """
import asyncio, sys
from leaseway.sdk import AsyncClient

async def main():
    async with AsyncClient(sys.argv[1], agent="skew") as client:
        assert {"next", "shared_next"} <= {tool.name for tool in await client.list_tools()}
        assert (await client.call_tool("shared_next", {}, timeout=30)).text.isdecimal()
        async with client.session("one") as session:
            assert (await session.call_tool("next", {}, timeout=30)).text == "1"
            assert (await session.call_tool("next", {}, timeout=30)).text == "2"
        print("used", flush=True)

asyncio.run(main())
"""
_SHARED = {"truely-stateless": True, "transform": [{"prefix": "shared_"}]}
_SERVERS = {"held": python_server("counter.py"), "shared": python_server("counter.py", **_SHARED)}


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a python with the earlier commit's wheel and this environment's other packages."""
    revision = os.environ.get("LEASEWAY_SKEW")
    if not revision:
        absent("skew", "no LEASEWAY_SKEW says which commit is the earlier one; run `make skew`.")
    folder = tmp_path_factory.mktemp("skew")
    made = subprocess.run(
        ["git", "archive", str(revision)], cwd=ROOT, check=True, capture_output=True
    )
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        archive.extractall(folder / "source", filter="data")
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*wheel, folder, folder / "source"], check=True, timeout=240)
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60)
    (site,) = venv.glob("lib/python*/site-packages")
    (packed,) = folder.glob("leaseway-*.whl")
    with zipfile.ZipFile(packed) as files:
        files.extractall(site)
    # Only as a path, so that editable installations of it are not used.
    (packages,) = Path(sys.prefix).glob("lib/python*/site-packages")
    (site / "packages.pth").write_text(f"{packages}\n")
    found = venv / "bin" / "python"
    where = "import leaseway.sdk; print(leaseway.sdk.__file__)"
    told = subprocess.run([found, "-c", where], check=True, capture_output=True, text=True)
    assert str(site) in told.stdout
    return str(found)


async def use(python: str, address: str) -> None:
    """Use a system with the SDK of an installation."""
    process = await asyncio.create_subprocess_exec(
        python, "-c", _USES, address, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert output == b"used\n", errors.decode()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("older", ["control-plane", "worker", "both", "sdk"])
async def test_older_and_newer_parts_work_together(
    earlier: str, tmp_path: Path, older: str
) -> None:
    system = System(tmp_path, _SERVERS)
    for role in ("control-plane", "worker"):
        if older in (role, "both"):
            system.programs[role] = (earlier, *LEASEWAY[1:])
    async with system:
        await use(earlier if older == "sdk" else sys.executable, system.address)

        system.write({**_SERVERS, "later": python_server("counter.py", transform=_later())})
        async with AsyncClient(system.address) as client:

            async def is_listed() -> bool:
                return "later_next" in {tool.name for tool in await client.list_tools()}

            await eventually(is_listed)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("older", ["control-plane", "worker"])
async def test_limits_hold_between_older_and_newer_parts(
    earlier: str, tmp_path: Path, older: str
) -> None:
    system = System(tmp_path, _SERVERS, workers=2)
    system.programs[older] = (earlier, *LEASEWAY[1:])
    tenants = {"*": {"limits": {"calls": "6/h", "concurrent": 4}}}
    system.write_text(yaml.safe_dump({"version": 1, "servers": _SERVERS, "tenants": tenants}))
    async with system, AsyncClient(system.address) as client:
        passed = 0
        for _ in range(20):
            with suppress(RateLimited):
                await client.call_tool("shared_next", {}, timeout=10)
                passed += 1
        # A worker from before limits held over the fleet enforces them on itself.
        assert 6 <= passed <= 12


@pytest.mark.timeout(600)
async def test_an_upgrade_in_any_order_loses_no_lease_of_a_running_worker(
    earlier: str, tmp_path: Path
) -> None:
    system = System(tmp_path, _SERVERS)
    for role in ("control-plane", "worker"):
        system.programs[role] = (earlier, *LEASEWAY[1:])
    async with system, AsyncClient(system.address) as client:
        session = client.session("one")
        assert (await session.call_tool("next", {}, timeout=30)).text == "1"

        assert system.control_plane is not None
        await system.control_plane.end()
        system.programs.clear()
        await system.start_control_plane()
        await system.ready()
        assert (await session.call_tool("next", {}, timeout=30)).text == "2"

        await system.start_worker("worker-2")
        await system.workers.pop("worker-1").end()
        assert (await client.call_tool("shared_next", {}, timeout=30)).text == "1"
        with pytest.raises((LeaseLost, LeaseRevoked)):
            await session.call_tool("next", {}, timeout=30)


def _later() -> list[dict[str, str]]:
    return [{"prefix": "later_"}]
