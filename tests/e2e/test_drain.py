"""A worker drained by an operator or SIGTERM fails no shared call and revokes its leases."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import BOUND, descendants
from tests.e2e.counting import counts, have_exited
from tests.e2e.forking import Completed, run_leaseway
from tests.e2e.system import Part, System, eventually, python_server, running

from leaseway.sdk import AsyncClient, AsyncSession, LeaseRevoked, LeasewayError
from leaseway.telemetry.trace_file import TraceCollector, otlp_environment, read_spans

SERVERS = {
    "shared": python_server(
        "echo_raw.py", **{"truely-stateless": True, "transform": [{"prefix": "shared_"}]}
    ),
    "counter": python_server("counter.py"),
}
SESSIONS = 6


@dataclass
class Load:
    """Callers of a shared server during a block."""

    client: AsyncClient
    answered: int = 0
    failures: list[str] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Call all the time; check at the end that no call failed."""
        over = asyncio.Event()
        tasks = [asyncio.create_task(self._call(str(n), over)) for n in range(8)]
        await eventually(lambda: self.answered > 50)
        yield
        answered = self.answered
        await eventually(lambda: self.answered > answered + 50)
        over.set()
        async with asyncio.timeout(BOUND):
            await asyncio.gather(*tasks)
        assert self.failures == []

    async def _call(self, text: str, over: asyncio.Event) -> None:
        while not over.is_set():
            try:
                result = await self.client.call_tool("shared_echo", {"text": text}, timeout=60)
            except LeasewayError as error:
                self.failures.append(repr(error))
            else:
                self.answered += result.text == text
            await asyncio.sleep(0.01)


async def command(system: System, *words: str) -> Completed:
    """Run `leaseway` with the address of a system."""
    return await run_leaseway(*words, "--address", system.address)


async def drain_by_command(system: System, name: str) -> Part:
    done = await command(system, "worker", "drain", name, "--wait")
    assert done == (0, f"Worker {name} is draining.\nWorker {name} has exited.\n", "")
    return system.workers[name]


async def drain_by_signal(system: System, name: str) -> Part:
    system.workers[name].process.send_signal(signal.SIGTERM)
    return system.workers[name]


async def exit_status(part: Part) -> int:
    async with asyncio.timeout(BOUND):
        return await part.process.wait()


async def in_flight(worker: Part) -> bool:
    """Return whether a worker has a call in flight."""
    return (await counts(worker)).facts["calls"] > 0


async def leased(client: AsyncClient) -> dict[str, list[AsyncSession]]:
    """Return sessions with a lease, by the worker of the lease."""
    holders: dict[str, list[AsyncSession]] = {}
    for number in range(SESSIONS):
        session = client.session(f"s{number}")
        lease = await session.acquire("counter")
        if number:  # the first session never calls and is notified all the same
            assert (await session.call_tool("next")).text == "1"
        holders.setdefault(lease.worker, []).append(session)
    return holders


@pytest.mark.usefixtures("leak_guard")
@pytest.mark.parametrize("drain", [drain_by_command, drain_by_signal])
async def test_a_drained_worker_fails_no_shared_call_and_revokes_its_leases(
    tmp_path: Path, drain: object
) -> None:
    trace = tmp_path / "spans.jsonl"
    async with (
        TraceCollector(trace) as collector,
        running(tmp_path, SERVERS, workers=2, environment=otlp_environment(collector.endpoint)) as (
            system,
            client,
        ),
    ):
        holders = await leased(client)
        assert set(holders) == {"worker-1", "worker-2"}
        name = next(worker for worker, held in holders.items() if client.session("s0") in held)
        (other,) = holders.keys() - {name}
        processes = descendants(system.workers[name].process.pid)
        last = holders[name][-1]
        slow = asyncio.create_task(last.call_tool("counter:sleep", {"seconds": 1.5}))
        async with Load(client).running():
            assert (await exit_status(await drain(system, name))) == 0  # type: ignore[operator]
            assert (await slow).text == "slept"
            for session in holders[name]:
                with pytest.raises(LeaseRevoked, match=name):
                    await session.call_tool("next")
            for session in holders[other]:
                assert (await session.call_tool("next")).text in ("1", "2")
            fresh = [await client.session(f"new{n}").acquire("counter") for n in range(3)]
            assert {lease.worker for lease in fresh} == {other}
        await have_exited(processes)
        del system.workers[name]
        spans = read_spans(trace)
        assert any(
            span.attributes.get("leaseway.worker") == name
            and span.attributes.get("gen_ai.tool.name") == "sleep"
            for span in spans
        )


@pytest.mark.usefixtures("leak_guard")
async def test_a_draining_worker_is_listed_and_gets_no_new_lease(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    servers = {**SERVERS, "slow": python_server("faults.py", "plain", str(mark))}
    async with running(tmp_path, servers, workers=2) as (system, client):
        session = client.session("busy")
        name = (await session.acquire("slow")).worker
        busy = asyncio.create_task(session.call_tool("slow:wait"))
        await eventually(partial(in_flight, system.workers[name]))
        await client.drain_worker(name)
        await client.drain_worker(name)  # a second request changes nothing

        async def draining() -> bool:
            return {worker.id: worker.state for worker in await client.workers()}[
                name
            ] == "draining"

        await eventually(draining)
        leases = [await client.session(f"s{n}").acquire("counter") for n in range(4)]
        assert name not in {lease.worker for lease in leases}
        assert await draining()
        mark.touch()
        assert (await busy).text == "waited"
        assert await exit_status(system.workers.pop(name)) == 0


@pytest.mark.usefixtures("leak_guard")
async def test_a_second_signal_stops_a_worker_whose_call_never_ends(tmp_path: Path) -> None:
    async with running(tmp_path, SERVERS) as (system, client):
        session = client.session("stuck")
        await session.acquire("counter")
        stuck = asyncio.create_task(session.call_tool("counter:sleep", {"seconds": 600}))
        part = system.workers.pop("worker-1")
        await eventually(partial(in_flight, part))
        processes = descendants(part.process.pid)
        part.process.send_signal(signal.SIGTERM)
        await eventually(lambda: any("shuts down" in line for line in part.log))
        ending = asyncio.create_task(exit_status(part))
        # A signal within a second of the first is the same request; one that comes when the worker
        # no longer listens to any, at its very end, is its exit status.
        await asyncio.wait([ending], timeout=1.1)
        part.process.send_signal(signal.SIGTERM)
        assert await ending == 0  # ten times sooner than the call ends
        with pytest.raises(LeasewayError):
            await stuck
        await have_exited(processes)


@pytest.mark.usefixtures("leak_guard")
async def test_the_commands_drain_and_revoke_reject_unknown_names(tmp_path: Path) -> None:
    async with running(tmp_path, SERVERS, workers=2) as (system, client):
        status, out, err = await command(system, "worker", "drain", "worker-9")
        assert (status, out) == (1, "")
        assert err == (
            "leaseway: No worker 'worker-9' is connected. Connected are: worker-1, worker-2.\n"
        )
        status, out, err = await command(system, "lease", "revoke", "nonsense")
        assert (status, out) == (1, "")
        assert "No worker holds lease 'nonsense'" in err
        session = client.session("job")
        lease = await session.acquire("counter")

        async def known() -> bool:
            return [each_lease.id for each_lease in await client.leases()] == [lease.id]

        await eventually(known)
        status, out, err = await command(
            system, "lease", "revoke", lease.id, "--reason", "it is stuck"
        )
        assert (status, out, err) == (0, f"Lease {lease.id} is revoked.\n", "")
        with pytest.raises(LeaseRevoked, match="it is stuck"):
            await session.call_tool("next")
