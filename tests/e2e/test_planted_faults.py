"""Twelve faults planted in a running system: each is found in three steps, on two ways.

The commands an operator types and the pages that the console asks for; what the last step shows
has to name the cause.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import aiohttp
import pytest
from tests.e2e.system import LEASEWAY, System, eventually, python_server

from leaseway.sdk import AsyncClient, LeasewayError


@dataclass(frozen=True)
class Way:
    """A way to a cause: at most three commands or paths, and what the last one shows."""

    steps: Sequence[str]
    shows: str


FAULTS: dict[str, tuple[Way, Way]] = {
    "a command that is not found": (
        Way(("status", "runbook COMMAND_NOT_FOUND"), "Install it there"),
        Way(("overview", "server?id=missing"), "no-such-command-anywhere"),
    ),
    "a bad schema": (
        Way(("status", "problems"), "SCHEMA_NOT_COMPILED"),
        Way(("overview", "problems?q=schema"), "bad-schema"),
    ),
    "a slow server": (
        Way(("top --count 1 --sort slow", "trace --slow --server slow"), "the server works"),
        Way(("overview", "calls?select=slow&server=slow"), "the server works"),
    ),
    "leases that are not given back": (
        Way(("status", "leases"), "leaky-11"),
        Way(("overview", "leases?sort=age&q=leaky"), "leaky-11"),
    ),
    "a credential that is refused": (
        Way(("status", "servers"), "401"),
        Way(("overview", "server?id=refused"), "401"),
    ),
    "two servers that want one name": (
        Way(("problems",), "TOOL_NAME_CLASH"),
        Way(("overview", "problems?q=clash"), "TOOL_NAME_CLASH"),
    ),
    "a wrong reference": (
        Way(("status", "problems"), "NO_SUCH_VARIABLE"),
        Way(("overview", "server?id=unresolved"), "NO_SUCH_VARIABLE"),
    ),
    "a server that flaps": (
        Way(("events --server flapping --kind instance",), "out of ideas"),
        Way(("overview", "server?id=flapping"), "out of ideas"),
    ),
    "no room": (
        Way(("trace --failed", "events --server tight --kind lease"), "tight"),
        Way(("leases?q=tight",), "tight-1"),
    ),
    "a reload that is half broken": (
        Way(("status", "events --kind reload --last 1"), "partly applied"),
        Way(("overview", "events?kind=reload&last=1"), "partly applied"),
    ),
    "a worker that is lost": (
        Way(("status", "events --kind worker"), "worker-2"),
        Way(("overview", "events?kind=worker"), "worker-2 has disconnected"),
    ),
    "a disk that is full": (
        Way(("status", "problems"), "ARTIFACTS_NOT_KEPT"),
        Way(("overview", "problems?q=artifacts"), "ARTIFACTS_NOT_KEPT"),
    ),
}


class _Refusing(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_args: Any) -> None:
        pass


def _servers(port: int) -> dict[str, object]:
    def planted(fault: str, **settings: object) -> dict[str, object]:
        return python_server("planted.py", fault, **settings)

    stateless = {"truely-stateless": True}
    return {
        "missing": {"transport": "stdio", "command": "no-such-command-anywhere"},
        "bad-schema": planted("bad_schema", **stateless),
        "slow": planted("slow", **stateless),
        "leaky": planted("echo", transform=[{"prefix": "leaky_"}]),
        "refused": {"transport": "streamable_http", "url": f"http://127.0.0.1:{port}/mcp"},
        "clash-a": planted("clash", **stateless),
        "clash-b": planted("clash", **stateless),
        "unresolved": planted("echo", env={"TOKEN": {"env": "NO_SUCH_VARIABLE"}}),
        "flapping": planted("flapping", **stateless),
        "tight": planted("echo", transform=[{"prefix": "tight_"}], max_instances=1),
        "pictures": python_server("pictures.py", **stateless),
    }


@pytest.fixture(scope="module")
async def system(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[System]:
    """Run a system and plant every fault in it, in an order in which none hides another."""
    folder = tmp_path_factory.mktemp("planted")
    refusing = ThreadingHTTPServer(("127.0.0.1", 0), _Refusing)
    Thread(target=refusing.serve_forever, daemon=True).start()
    servers = _servers(refusing.server_address[1])
    try:
        temporary = folder / "temporary"
        temporary.mkdir()
        environment = {"TMPDIR": str(temporary)}
        async with (
            System(folder, servers, workers=2, environment=environment, console=True) as system,
            AsyncClient(system.address, agent="leaker") as leaker,
        ):
            await _plant(system, leaker, temporary, servers)
            yield system
    finally:
        refusing.shutdown()


async def _plant(
    system: System, leaker: AsyncClient, temporary: Path, servers: dict[str, object]
) -> None:
    async with AsyncClient(system.address, agent="planter") as client:
        await system.workers["worker-2"].end(signal.SIGKILL)

        async def alone() -> bool:
            return [w.state for w in await client.workers() if w.id == "worker-2"] != ["connected"]

        await eventually(alone)
        await client.call_tool("wait", {}, timeout=60)
        with pytest.raises(LeasewayError):
            await client.call_tool("die", {}, timeout=60)
        for each in [path for path in temporary.iterdir() if path.is_dir()]:
            shutil.rmtree(each)
            each.write_text("in the way of a folder")
        await client.call_tool("gallery", {}, timeout=60)
    for number in range(12):
        await leaker.session(f"leaky-{number}").acquire("leaky", ttl=3_600)
    await leaker.session("tight-1").acquire("tight", ttl=3_600)
    async with AsyncClient(system.address) as other:
        with pytest.raises(LeasewayError):
            await other.session("tight-2").acquire("tight")
    system.write({**servers, "slow": {"transport": "stdio", "command": 7}})

    async def reloaded() -> bool:
        return "partly applied" in await _typed(system, "events --kind reload --last 1")

    await eventually(reloaded, within=120)


async def _typed(system: System, line: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *LEASEWAY,
        *line.split(),
        env={**os.environ, "LEASEWAY_ADDRESS": system.address},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(120):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return output.decode()


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_commands_lead_to_the_cause_in_three_steps(system: System, fault: str) -> None:
    way = FAULTS[fault][0]
    assert len(way.steps) <= 3
    shown = [await _typed(system, step) for step in way.steps]
    assert way.shows in shown[-1], "\n".join(shown)


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_console_leads_to_the_cause_in_three_steps(system: System, fault: str) -> None:
    way = FAULTS[fault][1]
    assert len(way.steps) <= 3
    async with aiohttp.ClientSession() as session:
        shown = []
        for step in way.steps:
            async with session.get(f"{system.console}api/{step}") as answer:
                assert answer.status == 200, step
                shown.append(json.dumps(await answer.json()))
    assert way.shows in shown[-1], shown[-1]


async def test_the_first_step_says_that_something_is_wrong(system: System) -> None:
    assert "error" in await _typed(system, "status")
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{system.console}api/overview") as answer,
    ):
        overview = await answer.json()
    assert overview["problems"]["error"] > 0
    assert overview["servers"]["failed"] > 0
    assert overview["last_reload"]["action"] == "partly applied"
