"""docs/remote-servers.md: its walk works as printed, with servers behind npm oidc-provider."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.conftest import BOUND, ROOT
from tests.data_plane.oauth.authority import SECRET, Resource, consent, provider

pytestmark = pytest.mark.usefixtures("leak_guard")
PAGE = (ROOT / "docs" / "remote-servers.md").read_text()
WALK = PAGE[PAGE.index("## From nothing to a call") : PAGE.index("## A service's own access")]


def block(language: str) -> str:
    [found] = re.findall(rf"^```{language}\n(.*?)^```$", WALK, flags=re.MULTILINE | re.DOTALL)
    return str(found)


async def start(
    line: str, folder: Path, environment: Mapping[str, str]
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        "bash",
        *("-e", "-o", "pipefail", "-c", f"exec {line}" if "|" not in line else line),
        cwd=folder,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def run(line: str, folder: Path, environment: Mapping[str, str], status: int = 0) -> str:
    """Run a command of the page; log in where it asks for that; return what it printed."""
    process = await start(line, folder, environment)
    assert process.stdout is not None
    assert process.stderr is not None
    said: list[str] = []
    async with asyncio.timeout(2 * BOUND):
        async for raw in process.stderr:
            said.append(raw.decode().strip())
            if said[-1].startswith("http"):
                await consent(said[-1], "alice")
        printed = (await process.stdout.read()).decode()
        assert await process.wait() == status, (line, said, printed)
    return printed


async def test_the_walk_leads_from_nothing_to_a_call(tmp_path: Path) -> None:
    (tmp_path / ".minds").mkdir()
    environment = {
        **{name: text for name, text in os.environ.items() if "LEASEWAY" not in name},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "SECRET": SECRET,
        "BROWSER": "true",
    }
    async with provider() as authority, Resource() as tracker, Resource() as mail:
        await tracker.trust(authority)
        await mail.trust(authority)
        text = block("yaml").replace("https://tracker.example.com", tracker.base)
        text = text.replace("https://mail.example.com", mail.base)
        (tmp_path / ".minds" / "mcp.yaml").write_text(text)
        *before, up = block("sh").strip().splitlines()
        for line in before:
            await run(line, tmp_path, environment)
        system = await start(f"{up} --listen 127.0.0.1:0", tmp_path, environment)
        assert system.stdout is not None
        try:
            async with asyncio.timeout(2 * BOUND):
                ready = (await system.stdout.readline()).decode()
            environment["LEASEWAY_ADDRESS"] = ready.removeprefix("ready ").strip()
            console = block("console").replace("--timeout 30", f"--timeout {BOUND:g}")
            lines = [line.removeprefix("$ ") for line in console.strip().splitlines()]
            printed = {shlex.join(shlex.split(line)): "" for line in lines}
            for line in printed:
                printed[line] = await run(line, tmp_path, environment)
        finally:
            system.terminate()
            _, log = await system.communicate()
        said = "".join(printed.values()) + log.decode()
        assert printed["leaseway call tracker_whoami"].strip() == "leaseway"
        assert printed["leaseway call mail_whoami"].strip() == "alice"
        assert "LOGIN_REQUIRED" in printed["leaseway problems"]
        assert "mail" in printed["leaseway logins"]
        assert not re.search(rf"eyJ|{re.escape(SECRET)}", said)
        assert {event["event"] for event in authority.events} <= {"success", "revoked"}
