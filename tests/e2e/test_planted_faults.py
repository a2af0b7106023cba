"""Twelve faults in a running system: operators find the cause of each in at most three steps.

The steps are commands, or requests of the console; the last one must show the cause.
"""

from __future__ import annotations

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
from tests.e2e.forking import run_leaseway
from tests.e2e.system import System, eventually, python_server

from leaseway.sdk import AsyncClient, LeasewayError


@dataclass(frozen=True)
class Search:
    """At most three commands or paths, and the text that the last one must show."""

    steps: Sequence[str]
    shows: str


FAULTS: dict[str, tuple[Search, Search]] = {
    "a command that is not found": (
        Search(("status", "runbook COMMAND_NOT_FOUND"), "Install it there"),
        Search(("overview", "server?id=missing"), "no-such-command-anywhere"),
    ),
    "a bad schema": (
        Search(("status", "problems"), "SCHEMA_NOT_COMPILED"),
        Search(("overview", "problems?q=schema"), "bad-schema"),
    ),
    "a slow server": (
        Search(("top --count 1 --sort slow", "trace --slow --server slow"), "the server works"),
        Search(("overview", "calls?select=slow&server=slow"), "the server works"),
    ),
    "leases that are not released": (
        Search(("status", "leases"), "leaky-11"),
        Search(("overview", "leases?sort=age&q=leaky"), "leaky-11"),
    ),
    "a credential that is refused": (
        Search(("status", "servers"), "401"),
        Search(("overview", "server?id=refused"), "401"),
    ),
    "two servers that want one name": (
        Search(("problems",), "TOOL_NAME_CLASH"),
        Search(("overview", "problems?q=clash"), "TOOL_NAME_CLASH"),
    ),
    "a wrong reference": (
        Search(("status", "problems"), "NO_SUCH_VARIABLE"),
        Search(("overview", "server?id=unresolved"), "NO_SUCH_VARIABLE"),
    ),
    "a server that flaps": (
        Search(("events --server flapping --kind instance",), "out of ideas"),
        Search(("overview", "server?id=flapping"), "out of ideas"),
    ),
    "no capacity": (
        Search(("trace --failed", "events --server tight --kind lease"), "tight"),
        Search(("leases?q=tight",), "tight-1"),
    ),
    "a partly invalid reload": (
        Search(("status", "events --kind reload --last 1"), "partly applied"),
        Search(("overview", "events?kind=reload&last=1"), "partly applied"),
    ),
    "a worker that is lost": (
        Search(("status", "events --kind worker"), "worker-2"),
        Search(("overview", "events?kind=worker"), "worker-2 has disconnected"),
    ),
    "a disk that is full": (
        Search(("status", "problems"), "ARTIFACTS_NOT_KEPT"),
        Search(("overview", "problems?q=artifacts"), "ARTIFACTS_NOT_KEPT"),
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
    """Run a system and cause every fault, in an order in which none hides another."""
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
    async with AsyncClient(system.address, agent="operator") as client:
        await system.workers["worker-2"].end(signal.SIGKILL)

        async def is_lost() -> bool:
            return [w.state for w in await client.workers() if w.id == "worker-2"] != ["connected"]

        await eventually(is_lost)
        await client.call_tool("wait", {}, timeout=60)
        with pytest.raises(LeasewayError):
            await client.call_tool("die", {}, timeout=60)
        for each_path in [path for path in temporary.iterdir() if path.is_dir()]:
            shutil.rmtree(each_path)
            each_path.write_text("not a folder")
        await client.call_tool("gallery", {}, timeout=60)
    for number in range(12):
        await leaker.session(f"leaky-{number}").acquire("leaky", ttl=3_600)
    await leaker.session("tight-1").acquire("tight", ttl=3_600)
    async with AsyncClient(system.address) as other:
        with pytest.raises(LeasewayError):
            await other.session("tight-2").acquire("tight")
    system.write({**servers, "slow": {"transport": "stdio", "command": 7}})

    async def reloaded() -> bool:
        return "partly applied" in await _command(system, "events --kind reload --last 1")

    await eventually(reloaded, within=120)


async def _command(system: System, line: str) -> str:
    environment = {**os.environ, "LEASEWAY_ADDRESS": system.address}
    done = await run_leaseway(*line.split(), environment=environment)
    return done.stdout + done.stderr


@pytest.mark.parametrize("fault", FAULTS)
async def test_three_commands_show_the_cause(system: System, fault: str) -> None:
    search = FAULTS[fault][0]
    assert len(search.steps) <= 3
    shown = [await _command(system, step) for step in search.steps]
    assert search.shows in shown[-1], "\n".join(shown)


@pytest.mark.parametrize("fault", FAULTS)
async def test_three_requests_of_the_console_show_the_cause(system: System, fault: str) -> None:
    search = FAULTS[fault][1]
    assert len(search.steps) <= 3
    async with aiohttp.ClientSession() as session:
        shown = []
        for step in search.steps:
            async with session.get(f"{system.console}api/{step}") as answer:
                assert answer.status == 200, step
                shown.append(json.dumps(await answer.json()))
    assert search.shows in shown[-1], shown[-1]


async def test_the_first_step_reports_that_there_are_problems(system: System) -> None:
    assert "error" in await _command(system, "status")
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{system.console}api/overview") as answer,
    ):
        overview = await answer.json()
    assert overview["problems"]["error"] > 0
    assert overview["servers"]["failed"] > 0
    assert overview["last_reload"]["action"] == "partly applied"
