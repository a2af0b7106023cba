"""Sessions call while servers, workers, fronts, the control plane and links are killed at random.

Callers use the SDK, or MCP at one of two fronts. Each call ends with a result or a typed error; no
call runs twice; an error with `started="no"` is right; no session has two processes; at the end no
lease and no server process remains.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.conftest import BOUND, descendants
from tests.e2e.counting import memory
from tests.e2e.links import Link
from tests.e2e.mcp_front import INITIALIZE, JSON
from tests.e2e.system import Part, System, eventually, python_server
from tests.mcp_answers import response_in
from tests.ports import free_port

from leaseway.sdk import (
    AsyncClient,
    AsyncSession,
    InternalError,
    LeaseError,
    LeasewayError,
    ToolNotFound,
)

SECONDS = float(os.environ.get("LEASEWAY_SOAK_SECONDS", "600"))
SESSIONS = 12
MCP_SESSIONS = 4
KEY = "a-key-that-all-know"
WORKERS = ("one", "two", "three")
FRONTS = ("left", "right")
SESSION_IDLE = 60
"""Seconds after which a front ends the session of a client that a killed front left behind."""

CALL_BOUND = 120.0
"""Seconds after which a call that has neither result nor error counts as lost."""

MAX_GROWTH = 1.25
SETTLED_AFTER = 60.0
"""Age of a process in seconds after which its memory must stay constant."""


@dataclass
class Record:
    """The outcomes of calls.

    Attributes:
        results: The tokens of calls with a result.
        not_started: The tokens of failed calls with `started="no"`.
        errors: All errors, by kind.
        faults: Events that must not happen.
    """

    results: set[str] = field(default_factory=set)
    not_started: set[str] = field(default_factory=set)
    errors: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class Caller:
    """Uses one session after the other, with calls of a leased and a shared server."""

    def __init__(self, client: AsyncClient, name: str, record: Record) -> None:
        self._client = client
        self._name = name
        self._record = record
        self._draw = random.Random(name)
        self._numbers = itertools.count()
        self.stopped = False

    async def run(self) -> None:
        for number in itertools.count():
            if self.stopped:
                return
            async with self._client.session(f"{self._name}-{number}") as session:
                await self._use_session(session)

    async def _use_session(self, session: AsyncSession) -> None:
        process = ""
        for _ in range(self._draw.randrange(5, 60)):
            if self.stopped:
                return
            tool = "leased_run" if self._draw.random() < 0.7 else "shared_run"
            answered, error = await self._call(session, tool)
            if isinstance(error, LeaseError):
                with suppress(LeasewayError):
                    await session.acquire("leased", wait=10)
            if error is not None:
                process = ""
            elif tool == "leased_run":
                if process and answered != process:
                    self._record.faults.append(f"{session} went from {process} to {answered}")
                process = answered
            await asyncio.sleep(self._draw.uniform(0.0, 0.1))

    async def _call(self, session: AsyncSession, tool: str) -> tuple[str, LeasewayError | None]:
        """Make a call; return the process that answered it, or the error."""
        token = f"{self._name}.{next(self._numbers)}"
        record = self._record
        try:
            async with asyncio.timeout(CALL_BOUND):
                result = await session.call_tool(tool, {"token": token}, timeout=20)
        except LeasewayError as error:
            record.errors[f"{type(error).__name__} {error.started}"] += 1
            if isinstance(error, ToolNotFound | InternalError):  # the tool always exists
                record.faults.append(f"call {token} of {tool}: {error!r}")
            if error.started == "no":
                record.not_started.add(token)
            return "", error
        except TimeoutError:
            record.faults.append(f"call {token} of {tool} did not end")
            raise
        returned, process, _ = result.text.split()
        if result.is_error or returned != token:
            record.faults.append(f"call {token} of {tool} got {result.text}")
        record.results.add(token)
        return process, None


class McpCaller:
    """Uses one MCP session after the other, each at two fronts in turn."""

    def __init__(
        self, http: aiohttp.ClientSession, fleet: Fleet, name: str, record: Record
    ) -> None:
        self._http = http
        self._fleet = fleet
        self._name = name
        self._record = record
        self._draw = random.Random(name)
        self._numbers = itertools.count()
        self._port = 0
        self.stopped = False

    async def run(self) -> None:
        while not self.stopped:
            self._draw_front()
            try:
                async with self._http.post(self._url(), json=INITIALIZE) as answer:
                    session = answer.headers.get("Mcp-Session-Id", "")
            except aiohttp.ClientError:  # the front is being restarted
                await asyncio.sleep(0.1)
                continue
            if session:
                await self._use_session(session)
                with suppress(aiohttp.ClientError):
                    await self._http.delete(self._url(), headers={"Mcp-Session-Id": session})

    def _draw_front(self) -> None:
        self._port = self._draw.choice(list(self._fleet.front_ports.values()))

    def _url(self) -> str:
        return f"http://127.0.0.1:{self._port}/mcp"

    async def _use_session(self, session: str) -> None:
        process = ""
        for _ in range(self._draw.randrange(5, 60)):
            if self.stopped:
                return
            tool = "leased_run" if self._draw.random() < 0.7 else "shared_run"
            answered = await self._call(session, tool)
            if answered is None:  # a lost answer may have told the end of the lease
                process = ""
            elif tool == "leased_run":
                if process and answered != process:
                    self._record.faults.append(f"{session} went from {process} to {answered}")
                process = answered
            await asyncio.sleep(self._draw.uniform(0.0, 0.1))

    async def _call(self, session: str, tool: str) -> str | None:
        """Make a call; return the process that answered it, or None without a result."""
        token = f"{self._name}.{next(self._numbers)}"
        record = self._record
        params = {"name": tool, "arguments": {"token": token}}
        message = {"jsonrpc": "2.0", "id": token, "method": "tools/call", "params": params}
        headers = {"Mcp-Session-Id": session}
        self._draw_front()
        try:
            async with (
                asyncio.timeout(CALL_BOUND),
                self._http.post(self._url(), json=message, headers=headers) as answer,
            ):
                if answer.status != 200:
                    record.errors[f"front {answer.status}"] += 1
                    return None
                response = await response_in(answer)
        except aiohttp.ClientError:  # with its front; its client knows no more than that
            record.errors["front lost"] += 1
            return None
        except TimeoutError:
            record.faults.append(f"call {token} of {tool} did not end")
            raise
        if response["id"] != token:
            record.faults.append(f"call {token} of {tool} got {response}")
        if "error" in response:
            self._note_error(token, response["error"])
            return None
        returned, process, _ = response["result"]["content"][0]["text"].split()
        if response["result"].get("isError") or returned != token:
            record.faults.append(f"call {token} of {tool} got {response}")
        record.results.add(token)
        return str(process)

    def _note_error(self, token: str, error: dict[str, Any]) -> None:
        facts = error.get("data") or {}
        reason, started = facts.get("reason"), facts.get("started")
        self._record.errors[f"front {reason} {started}"] += 1
        if started not in ("no", "yes", "unknown") or reason in ("TOOL_NOT_FOUND", "INTERNAL"):
            self._record.faults.append(f"call {token} at a front: {error}")
        if started == "no":
            self._record.not_started.add(token)


class Fleet:
    """A system whose connections all use links that can be cut."""

    def __init__(self, folder: Path) -> None:
        self.journal = folder / "journal"
        entry = python_server("journal.py", str(self.journal))
        self.system = System(
            folder,
            {
                "leased": {**entry, "start": "lazy", "transform": [{"prefix": "leased_"}]},
                "shared": {**entry, "truely-stateless": True, "transform": [{"prefix": "shared_"}]},
            },
            workers=len(WORKERS),
            environment={"LEASEWAY_KEY": KEY},
        )
        self.links: dict[str, Link] = {}
        self.fronts: dict[str, Part] = {}
        self.front_ports = {name: free_port() for name in FRONTS}
        self._ports = {name: free_port() for name in WORKERS}
        self._plane = ""

    async def start(self, stack: AsyncExitStack) -> None:
        await self.start_control_plane()
        await self._link("plane", self._plane, stack)
        self.system.address = self.links["plane"].address
        for name, port in self._ports.items():
            await self._link(name, f"127.0.0.1:{port}", stack)
            await self.start_worker(name)
        stack.push_async_callback(self.system.stop)
        await self.system.ready()
        stack.push_async_callback(self._end_fronts)
        for name in FRONTS:
            await self.start_front(name)

    async def _end_fronts(self) -> None:
        await asyncio.gather(*(front.end() for front in self.fronts.values()))

    async def start_front(self, name: str) -> None:
        self.fronts[name] = await self.system.start_front(
            f"127.0.0.1:{self.front_ports[name]}", "--session-idle", str(SESSION_IDLE)
        )

    async def start_control_plane(self) -> None:
        through, self.system.address = self.system.address, self._plane
        await self.system.start_control_plane()
        self._plane, self.system.address = self.system.address, through

    async def start_worker(self, name: str) -> None:
        listen = f"127.0.0.1:{self._ports[name]}"
        advertise = self.links[name].address
        await self.system.start_worker(name, "--listen", listen, "--advertise", advertise)

    async def _link(self, name: str, target: str, stack: AsyncExitStack) -> None:
        link = self.links[name] = Link(target)
        await link.open()
        stack.push_async_callback(link.close)

    def parts(self) -> list[Part]:
        assert self.system.control_plane is not None
        return [
            self.system.control_plane,
            *self.system.workers.values(),
            *self.fronts.values(),
        ]

    def servers(self) -> list[int]:
        """Return the processes of servers, whatever their parents."""
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdecimal() and str(self.journal).encode() in (
                    entry / "cmdline"
                ).read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found


class Disturbance:
    """Kills or cuts one part after the other, and restarts or restores it."""

    def __init__(self, fleet: Fleet, draw: random.Random) -> None:
        self._fleet = fleet
        self._draw = draw
        self.made: Counter[str] = Counter()

    async def make(self, seconds: float) -> None:
        kinds: list[Callable[[], Awaitable[None]]] = [
            *(self.kill_server, self.kill_server, self.cut_link, self.cut_link),
            *(self.kill_worker, self.end_worker, self.stop_worker, self.kill_control_plane),
            *(self.kill_front, self.end_front),
        ]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for kind in self._draw.sample(kinds, len(kinds)):
                await asyncio.sleep(self._draw.uniform(0.5, 2.0))
                self.made[kind.__name__] += 1
                await kind()

    async def kill_server(self) -> None:
        servers = self._fleet.servers()
        if servers:
            with suppress(ProcessLookupError):
                os.kill(self._draw.choice(servers), signal.SIGKILL)

    async def cut_link(self) -> None:
        link = self._fleet.links[self._draw.choice(list(self._fleet.links))]
        link.cut()
        # From a short interruption to one after which a worker counts as lost.
        await asyncio.sleep(self._draw.choice([0.0, 0.5, 3.0, 14.0]))
        link.join()

    async def kill_worker(self) -> None:
        name = self._draw.choice(WORKERS)
        await self._fleet.system.workers[name].end(signal.SIGKILL)
        await self._fleet.start_worker(name)

    async def end_worker(self) -> None:
        name = self._draw.choice(WORKERS)
        await self._fleet.system.workers[name].end(within=2 * BOUND)
        await self._fleet.start_worker(name)

    async def kill_front(self) -> None:
        name = self._draw.choice(FRONTS)
        await self._fleet.fronts[name].end(signal.SIGKILL)
        await self._fleet.start_front(name)

    async def end_front(self) -> None:
        name = self._draw.choice(FRONTS)
        await self._fleet.fronts[name].end(within=2 * BOUND)
        await self._fleet.start_front(name)

    async def stop_worker(self) -> None:
        process = self._fleet.system.workers[self._draw.choice(WORKERS)].process
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self._draw.choice([0.5, 3.0, 16.0]))
        process.send_signal(signal.SIGCONT)

    async def kill_control_plane(self) -> None:
        plane = self._fleet.system.control_plane
        assert plane is not None
        await plane.end(signal.SIGKILL)
        await asyncio.sleep(self._draw.choice([0.0, 2.0]))
        await self._fleet.start_control_plane()


async def watch_memory(fleet: Fleet, grown: dict[str, tuple[float, float]]) -> None:
    """Record the memory of each process after it has settled and now, in MiB."""
    born: dict[int, float] = {}
    while True:
        for part in fleet.parts():
            with suppress(OSError, ValueError):
                pid, now = part.process.pid, time.monotonic()
                if now - born.setdefault(pid, now) > SETTLED_AFTER:
                    held = memory(part)
                    first, _ = grown.get(str(pid), (held, held))
                    grown[str(pid)] = (first, held)
        await asyncio.sleep(5)


def violations(journal: Path, record: Record) -> list[str]:
    """Return calls whose execution contradicts their outcome."""
    lines = journal.read_text().splitlines()
    runs = Counter(line.split()[0] for line in lines)
    twice = [f"{token} ran {times} times" for token, times in runs.items() if times > 1]
    unseen = [f"{token} has a result and did not run" for token in record.results - set(runs)]
    started = [f"{token} ran in spite of started=no" for token in record.not_started & set(runs)]
    return [*record.faults, *twice, *unseen, *started]


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 900)
@pytest.mark.usefixtures("leak_guard")
async def test_random_kills_lose_no_call_run_none_twice_and_leak_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEWAY_KEY", KEY)
    seed = int(os.environ.get("SEED", "1"))
    fleet, record = Fleet(tmp_path), Record()
    disturbance = Disturbance(fleet, random.Random(seed))
    grown: dict[str, tuple[float, float]] = {}
    async with AsyncExitStack() as stack:
        await fleet.start(stack)
        watch = asyncio.create_task(watch_memory(fleet, grown))
        stack.callback(watch.cancel)
        bearer = {**JSON, "Authorization": f"Bearer {KEY}"}
        async with (
            AsyncClient(fleet.system.address, agent="kills") as client,
            aiohttp.ClientSession(headers=bearer) as http,
        ):
            callers: list[Caller | McpCaller] = [
                *(Caller(client, f"caller{number}", record) for number in range(SESSIONS)),
                *(McpCaller(http, fleet, f"mcp{number}", record) for number in range(MCP_SESSIONS)),
            ]
            tasks = [asyncio.create_task(caller.run()) for caller in callers]
            try:
                await disturbance.make(SECONDS)
            finally:
                for caller in callers:
                    caller.stopped = True
            async with asyncio.timeout(2 * CALL_BOUND):
                await asyncio.gather(*tasks)
            # Everything has recovered, and no session has more than one process.
            await fleet.system.ready()
            async with client.session("after") as session:
                await eventually(lambda: answers(session), within=2 * BOUND)
        async with AsyncClient(fleet.system.address, agent="after") as client:
            await eventually(lambda: nothing_remains(fleet, client), within=3 * BOUND)
        print(
            f"{SECONDS:g} s, seed {seed}: {len(record.results)} results, errors"
            f" {dict(record.errors)}, disturbances {dict(disturbance.made)}, memory in MiB {grown}"
        )
        assert violations(fleet.journal, record) == []
        assert len(record.results) > SECONDS
        for first, last in grown.values():
            assert last < first * MAX_GROWTH, grown
    await eventually(lambda: not fleet.servers())


async def answers(session: AsyncSession) -> bool:
    try:
        return bool(await session.call_tool("leased_run", {"token": f"after-{time.time()}"}))
    except LeaseError:
        await session.acquire("leased", wait=10)
    except LeasewayError:
        pass
    return False


async def nothing_remains(fleet: Fleet, client: AsyncClient) -> bool:
    """Return whether there are no leases, and each worker has only its shared server."""
    workers = [part.process.pid for part in fleet.system.workers.values()]
    mine = [set(descendants(pid)) & set(fleet.servers()) for pid in workers]
    return (
        not await client.leases()
        and [len(own) for own in mine] == [1] * len(workers)
        and len(fleet.servers()) == len(workers)
    )
