"""Errors that callers get when stdio servers, workers or the control plane fail.

| fault | outcome of the call | after | recovery |
|---|---|---|---|
| the server dies, or is SIGKILLed | `ServerLost`, started yes, `.exit_status`, `.stderr` | at once | shared: a new process answers; leased: `LeaseLost` until `acquire` |
| it dies after half a line | the same | at once | a new process answers |
| it dies at each call | `ServerLost` each time, in between `ServerLost` with started no | at once | restarts with backoff; other servers are not blocked |
| it is SIGSTOPped, or hangs | `DeadlineExceeded`, started yes or unknown | at the timeout | pinged, and replaced after 10 s without a message |
| it responds after the deadline | `DeadlineExceeded`, started yes or unknown | at the timeout | the late response is dropped |
| it responds twice | the first response | at once | the second is dropped |
| it floods stdout with other text than JSON-RPC | the result | when it arrives | the lines are counted and dropped |
| it floods stderr | the result | when it arrives | the last 100 lines are kept |
| it responds with a line of more than 32 MiB | `ResultTooLarge`, started yes | at once | the same process continues |
| a result of more than 16 MiB, its artifacts not counted | `ResultTooLarge`, started yes | at once | the same process continues |
| a result that is not UTF-8 | `ServerError`, started yes | at once | the same process continues |
| it closes its output but stays alive | `ServerLost`, started yes | at once | the process is replaced |
| it does not read its input | `DeadlineExceeded`, started yes or unknown | at the timeout | as for a hang |
| it ends after `initialize`, or never answers that | `ServerNotReady` with the reason | at its start | retried with backoff |
| its worker is SIGKILLed | `FateUnknown`; idempotent tools are retried on another worker | at once | another worker answers |
| the control plane is SIGKILLed | nothing | - | calls and leases continue |
"""  # noqa: E501 - a table's rows

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import BOUND, descendants
from tests.e2e.counting import MORE_THREADS
from tests.e2e.system import System, eventually, python_server, running

from leaseway.sdk import (
    AsyncClient,
    AsyncSession,
    DeadlineExceeded,
    FateUnknown,
    LeaseLost,
    LeasewayError,
    ResultTooLarge,
    ServerLost,
    ServerNotReady,
    ToolResult,
)
from leaseway.wire.bounds import MAX_RESULT

AT_ONCE = 30.0
"""Limit in seconds for anything that does not wait, on a busy machine."""

MODES = (
    "dies",
    "half_line",
    "floods_stdout",
    "floods_stderr",
    "twice",
    "late",
    "oversize",
    "large",
    "invalid_utf8",
    "closes_stdout",
    "stops_reading",
    "plain",
)


def faulty(mode: str, *args: str, **settings: Any) -> dict[str, object]:
    """Return the entry of a shared server with one fault, which is the prefix of its tools."""
    settings = {"truely-stateless": True, "restart": {"initial": 0.05, "max": 0.5}, **settings}
    return python_server("faults.py", mode, *args, transform=[{"prefix": f"{mode}_"}], **settings)


def leased(mode: str, *args: str) -> dict[str, object]:
    """Return the entry of a leased server."""
    return {**python_server("faults.py", mode, *args), "transform": [{"prefix": "leased_"}]}


async def start_call(
    caller: AsyncClient | AsyncSession, tool: str, **options: Any
) -> asyncio.Task[ToolResult]:
    """Start a call and wait until its server has read it."""
    read = asyncio.Event()
    call = caller.call_tool(tool, on_progress=lambda *_: read.set(), **options)
    task = asyncio.create_task(call)
    async with asyncio.timeout(AT_ONCE):
        await read.wait()
    return task


@dataclass
class Site:
    """A running system with one server per fault, and a neighbour that is called all the time."""

    system: System
    client: AsyncClient
    slowest: float = 0.0
    answers: int = 0
    failed: list[BaseException] = field(default_factory=list)

    @property
    def worker(self) -> int:
        return self.system.workers["worker-1"].process.pid

    async def call_neighbour(self) -> None:
        """Call a server without faults repeatedly."""
        while True:
            begun = time.monotonic()
            try:
                assert (await self.client.call_tool("neighbour_echo", {"text": "x"})).text == "x"
            except LeasewayError as error:
                self.failed.append(error)
                return
            self.slowest = max(self.slowest, time.monotonic() - begun)
            self.answers += 1
            await asyncio.sleep(0.01)

    async def pid(self, server: str) -> int:
        return int((await self.client.call_tool(f"{server}_pid", timeout=AT_ONCE)).text)

    async def responds(self, server: str) -> bool:
        """Return whether a server responds; calls during its start wait."""
        try:
            return (await self.client.call_tool(f"{server}_echo", {"text": "!"})).text == "!"
        except ServerLost:
            return False

    async def counts(self) -> dict[str, int]:
        """Return the resources of the worker and the number of processes below it."""
        part = self.system.workers["worker-1"]
        seen = len(self._reports(part.log))
        os.kill(self.worker, signal.SIGUSR1)
        await eventually(lambda: len(self._reports(part.log)) > seen)
        counts = re.findall(r"(\w+)=(\d+)", self._reports(part.log)[-1])
        below = len(descendants(self.worker))
        return {"processes": below, **{name: int(count) for name, count in counts}}

    @staticmethod
    def _reports(log: list[str]) -> list[str]:
        return [line for line in log if "Now: " in line]

    async def has_settled(self, before: Mapping[str, int]) -> bool:
        """Return whether the worker has no more processes, calls, tasks and threads than before."""
        now = await self.counts()
        now["threads"] -= MORE_THREADS
        return all(now[name] <= count for name, count in before.items())


@pytest.fixture(scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    servers = {mode: faulty(mode) for mode in MODES}
    servers["neighbour"] = python_server(
        "echo_raw.py", **{"truely-stateless": True}, transform=[{"prefix": "neighbour_"}]
    )
    servers["leased"] = leased("plain")
    before = descendants(os.getpid()).keys()
    async with running(tmp_path_factory.mktemp("faults"), servers) as (system, client):
        yield Site(system, client)
        # A call in flight would delay the drain.
        async with asyncio.timeout(BOUND):
            assert await system.workers["worker-1"].end() == 0
    await eventually(lambda: descendants(os.getpid()).keys() <= before)


@pytest.fixture(autouse=True)
async def _check_neighbour(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Check that each fault affects no other server and leaks nothing."""
    if "site" not in request.fixturenames:
        yield
        return
    site: Site = request.getfixturevalue("site")
    await site.client.call_tool("neighbour_echo")
    before = await site.counts()
    assert before["calls"] == 0
    site.slowest, site.answers, site.failed = 0.0, 0, []
    neighbour = asyncio.create_task(site.call_neighbour())
    yield
    await eventually(lambda: site.answers > 3)
    neighbour.cancel()
    assert site.failed == []
    assert site.slowest < AT_ONCE
    await eventually(lambda: site.has_settled(before))


@dataclass
class Case:
    """A fault and the outcome of its call.

    Attributes:
        mode: The fault.
        error: The exception's class, or None for a result.
        says: A part of the message, or the text of the result.
        arguments: The call's arguments.
        timeout: The call's timeout.
        started: The allowed values of the error's `started`.
        survives: Whether the process survives.
    """

    mode: str
    error: type[LeasewayError] | None
    says: str
    arguments: dict[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    started: tuple[str, ...] = ("yes",)
    survives: bool = False


FATES = ("yes", "unknown")
"""Of a call that timed out: either the worker or the client notices first."""

CASES = [
    Case("dies", ServerLost, "exited with status 3; it wrote last: last words"),
    Case("half_line", ServerLost, "exited with status 4"),
    Case("closes_stdout", ServerLost, "closed its end"),
    Case("oversize", ResultTooLarge, str(MAX_RESULT), survives=True),
    Case("large", ResultTooLarge, str(MAX_RESULT), {"size": MAX_RESULT}, survives=True),
    Case("invalid_utf8", None, "caf\ufffd", survives=True),
    Case("twice", None, "first", survives=True),
    Case("floods_stdout", None, "flooded", survives=True),
    Case("floods_stderr", None, "flooded", survives=True),
    Case(
        mode="late",
        error=DeadlineExceeded,
        says="passed",
        arguments={"seconds": 8.0},
        timeout=2.0,
        started=FATES,
        survives=True,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mode)
async def test_a_fault_fails_only_its_own_call_with_a_reason(site: Site, case: Case) -> None:
    pid = await site.pid(case.mode)
    begun = time.monotonic()
    call = site.client.call_tool(f"{case.mode}_fault", case.arguments, timeout=case.timeout)
    if case.error is None:
        assert (await call).text == case.says
    else:
        with pytest.raises(case.error) as caught:
            await call
        assert case.says in caught.value.message
        assert caught.value.started in case.started
        assert time.monotonic() - begun < AT_ONCE
    await eventually(lambda: site.responds(case.mode), within=AT_ONCE)
    assert (await site.pid(case.mode) == pid) is case.survives


async def test_the_error_has_the_exit_status_and_last_stderr_of_a_dead_server(site: Site) -> None:
    await eventually(lambda: site.responds("dies"), within=AT_ONCE)
    with pytest.raises(ServerLost) as caught:
        await site.client.call_tool("dies_fault")
    assert caught.value.exit_status == 3
    assert caught.value.stderr == "last words"
    await eventually(lambda: site.responds("dies"), within=AT_ONCE)


async def test_only_the_last_lines_of_a_flood_are_kept(site: Site) -> None:
    await site.client.call_tool("floods_stderr_fault")
    (log,) = await site.client.logs("floods_stderr", 1000)
    assert len(log.lines) == 100
    assert all(set(line) == {"f"} for line in log.lines)


async def test_calls_of_a_server_that_dies_at_each_call_never_hang(site: Site) -> None:
    begun = time.monotonic()
    fates = []
    for _ in range(8):
        with pytest.raises(ServerLost) as caught:
            await site.client.call_tool("dies_fault", timeout=AT_ONCE)
        fates.append(caught.value.started)
    assert "yes" in fates
    assert time.monotonic() - begun < 8 * AT_ONCE
    await eventually(lambda: site.responds("dies"))


async def test_a_killed_server_fails_its_calls_and_is_replaced(site: Site) -> None:
    pid = await site.pid("plain")
    calls = [await start_call(site.client, "plain_hold") for _ in range(20)]
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(AT_ONCE):
        ends = await asyncio.gather(*calls, return_exceptions=True)
    for end in ends:
        assert isinstance(end, ServerLost)
        assert (end.exit_status, end.started) == (-signal.SIGKILL, "yes")
        assert "SIGKILL" in end.message
    await eventually(lambda: site.responds("plain"), within=AT_ONCE)
    assert await site.pid("plain") != pid


async def test_a_lease_of_a_killed_server_is_lost_until_the_next_acquire(site: Site) -> None:
    async with site.client.session("dialog") as session:
        pid = int((await session.call_tool("leased_pid")).text)
        call = await start_call(session, "leased_hold")
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(AT_ONCE):
            with pytest.raises(ServerLost) as caught:
                await call
            assert (caught.value.exit_status, caught.value.started) == (-signal.SIGKILL, "yes")
            for _ in range(3):
                with pytest.raises(LeaseLost):
                    await session.call_tool("leased_pid")
            await session.acquire("leased")
            assert int((await session.call_tool("leased_pid")).text) != pid


@pytest.mark.parametrize("mode", ["plain", "stops_reading"])
async def test_calls_of_a_hanging_server_time_out_and_it_is_replaced(site: Site, mode: str) -> None:
    pid = await site.pid(mode)
    if mode == "plain":
        os.kill(pid, signal.SIGSTOP)
    tool = "plain_hold" if mode == "plain" else "stops_reading_fault"
    begun = time.monotonic()
    with pytest.raises(DeadlineExceeded) as caught:
        await site.client.call_tool(tool, timeout=1.5)
    assert 1.49 <= time.monotonic() - begun < AT_ONCE
    assert caught.value.started in FATES
    # It is pinged without a message since the call, and replaced 10 s later.
    await eventually(lambda: not Path(f"/proc/{pid}").exists())
    await eventually(lambda: site.responds(mode), within=AT_ONCE)


async def test_the_error_of_a_server_that_never_starts_has_the_reason(tmp_path: Path) -> None:
    servers = {
        "exits": faulty("exits"),
        "mute": faulty("mute", startup_timeout=1.5),
        "plain": faulty("plain"),
    }
    async with running(tmp_path, servers) as (_, client):
        begun = time.monotonic()
        assert (await client.call_tool("plain_echo", {"text": "x"})).text == "x"
        for server, reason in (("exits", "no licence found"), ("mute", "1.5 s")):
            with pytest.raises(ServerNotReady, match=reason) as caught:
                await client.call_tool(f"{server}:echo", timeout=AT_ONCE)
            assert caught.value.started == "no"
        assert time.monotonic() - begun < 3 * AT_ONCE
        problems = {problem.server_id for problem in await client.problems()}
        assert problems >= {"exits", "mute"}


@pytest.mark.usefixtures("leak_guard")
async def test_calls_of_a_lost_worker_are_retried_only_if_the_tool_is_idempotent(
    tmp_path: Path,
) -> None:
    marks = {name: tmp_path / name for name in ("once", "once_safe")}
    servers = {
        name: faulty("plain", str(mark)) | {"transform": [{"prefix": f"{name}_"}]}
        for name, mark in marks.items()
    }
    async with running(tmp_path, servers, workers=3) as (system, client):
        call = await start_call(client, "once_once")
        assert marks["once"].exists()
        await kill_the_busy_worker(system, client)
        async with asyncio.timeout(AT_ONCE):
            with pytest.raises(FateUnknown) as caught:
                await call
            assert caught.value.started == "unknown"
            assert (await client.call_tool("once_once")).text == "repeated"
        call = await start_call(client, "once_safe_once_safe")
        assert marks["once_safe"].exists()
        await kill_the_busy_worker(system, client)
        async with asyncio.timeout(AT_ONCE):
            assert (await call).text == "repeated"


async def kill_the_busy_worker(system: System, client: AsyncClient) -> None:
    """Kill the worker of the client's only call in flight."""
    assert client._open_runtime is not None
    links = client._open_runtime.pool._links.items()
    (busy,) = [worker.id for worker, link in links if link.load]
    await system.workers.pop(busy).end(signal.SIGKILL)


@pytest.mark.usefixtures("leak_guard")
async def test_the_loss_of_the_control_plane_affects_no_call(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    servers = {
        "plain": faulty("plain", str(mark)),
        "leased": leased("plain", str(mark)),
    }
    async with running(tmp_path, servers) as (system, client):
        session = client.session("dialog")
        pid = (await session.call_tool("leased_pid")).text
        await client.call_tool("plain_echo")
        calls = [await start_call(client, "plain_wait"), await start_call(session, "leased_wait")]
        assert system.control_plane is not None
        await system.control_plane.end(signal.SIGKILL)
        mark.touch()
        async with asyncio.timeout(AT_ONCE):
            assert [(await call).text for call in calls] == ["waited"] * 2
            assert (await session.call_tool("leased_pid")).text == pid
            assert (await client.call_tool("plain_echo", {"text": "on"})).text == "on"
