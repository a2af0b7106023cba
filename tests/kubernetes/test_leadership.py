"""Leader election of control planes by a Lease of a real API."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.e2e.system import Part, eventually, kit, python_server
from tests.kubernetes.cluster import ApiRefused, Cluster
from tests.kubernetes.processes import Planes
from tests.postgres_server import PostgresServer, postgres_server

from leaseway.control_plane.config.kubernetes.api import KubernetesLease, open_api
from leaseway.control_plane.leadership import LeaseFailure, LeaseRecord
from leaseway.control_plane.store.port import Delete, Room, StoreFenced
from leaseway.control_plane.store.postgresql import PostgresStore
from leaseway.sdk import AsyncClient, ConfirmationRequired, ControlPlaneUnavailable, NotLeader

_LEASE = "control-plane"


@pytest.fixture
async def planes(cluster: Cluster, namespace: str, tmp_path: Path) -> AsyncIterator[Planes]:
    """Return two control planes and two workers with a shared and a leased server."""
    shared = {**kit(tmp_path), "truely-stateless": True, "tools": {"whitelist": ["current_time"]}}
    leased = {**kit(tmp_path), "tools": {"blacklist": ["current_time"]}}
    cluster.apply("MCPServer", "time", shared, namespace=namespace)
    cluster.apply("MCPServer", "files", leased, namespace=namespace)
    async with Planes(cluster, namespace, tmp_path, lease=_LEASE) as made:
        await made.control_plane()
        await made.control_plane()
        await made.worker("worker-1")
        await made.worker("worker-2")
        yield made


def lease_path(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{_LEASE}"


async def leader_of(cluster: Cluster, namespace: str) -> str:
    try:
        found = await asyncio.to_thread(cluster.request, "GET", lease_path(namespace))
    except ApiRefused:
        return ""
    return str(found["spec"].get("holderIdentity") or "").rpartition("_")[0]


async def leading(cluster: Cluster, namespace: str, planes: Planes) -> tuple[Part, Part]:
    """Return the leader and the other control plane."""

    async def known() -> bool:
        return await leader_of(cluster, namespace) in {part.address for part in planes.planes}

    await eventually(known)
    address = await leader_of(cluster, namespace)
    first, second = planes.planes
    return (first, second) if first.address == address else (second, first)


_OUTAGE = 60.0
"""Seconds of the API's outage: ten times the duration of the Lease."""


async def call(client: AsyncClient) -> None:
    result = await client.call_tool("current_time", {"timezone": "UTC"}, timeout=20)
    assert not result.is_error


class Caller:
    """Calls repeatedly and counts; a failed call fails the test."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.calls = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await call(self._client)
            self.calls += 1
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self._task


async def test_one_control_plane_leads_and_clients_of_both_find_it(
    cluster: Cluster, namespace: str, planes: Planes
) -> None:
    for part in await leading(cluster, namespace, planes):
        async with AsyncClient(part.address) as client:
            await call(client)
            workers = await client.workers()
            assert {worker.id for worker in workers} == {"worker-1", "worker-2"}


async def test_a_killed_leader_is_replaced_without_a_failed_call_or_a_lost_lease(
    cluster: Cluster, namespace: str, planes: Planes
) -> None:
    leader, other = await leading(cluster, namespace, planes)
    async with AsyncClient(planes.address) as client, client.session("dialog") as session:
        lease = await session.acquire("files", ttl=60, wait=20)
        before = (await client.list_tools()).registry_version
        await call(client)
        calls = Caller(client)

        killed_at = time.monotonic()
        await leader.end(signal.SIGKILL)

        async def taken_over() -> bool:
            return await leader_of(cluster, namespace) == other.address

        await eventually(taken_over)
        async with AsyncClient(other.address) as fresh:
            await call(fresh)  # lists from the new leader
            took = time.monotonic() - killed_at

            async def all_here() -> bool:
                return len(await fresh.workers()) == 2

            await eventually(all_here)
            assert (await fresh.list_tools()).registry_version >= before
            assert [each_lease.id for each_lease in await fresh.leases()] == [lease.id]
        await calls.stop()
        assert calls.calls > 0
        assert not (await session.call_tool("list_files", {})).is_error
        print(f"taken over, and answering a first call, after {took:.1f} s")


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


async def test_an_approval_holds_once_however_often_its_leader_is_killed(
    cluster: Cluster, namespace: str, tmp_path: Path, database: PostgresServer
) -> None:
    bank = python_server("counter.py", **{"truely-stateless": True, "risk": {"add": "financial"}})
    cluster.apply("MCPServer", "bank", bank, namespace=namespace)
    name = database.database()
    environment = {"LEASEWAY_STORE": "env:STORE_DSN", "STORE_DSN": database.dsn(name)}
    async with Planes(
        cluster, namespace, tmp_path, lease=_LEASE, environment=environment
    ) as planes:
        await planes.control_plane()
        await planes.control_plane()
        await planes.worker("worker-1")
        async with AsyncClient(planes.address) as client:
            with pytest.raises(ConfirmationRequired) as asked:
                await client.call_tool("add", {"by": 5}, timeout=60)
            await client.approve(asked.value.confirmation_id)
            epochs = [claimed_epoch(database, name)]

            await kill_leader(cluster, namespace, planes, client)
            both = await asyncio.gather(
                *(client.call_tool("add", {"by": 5}, timeout=60) for _ in range(2)),
                return_exceptions=True,
            )
            assert sorted(type(outcome).__name__ for outcome in both) == [
                "ConfirmationRequired", "ToolResult",
            ]  # fmt: skip
            epochs.append(claimed_epoch(database, name))

            await kill_leader(cluster, namespace, planes, client)
            with pytest.raises(ConfirmationRequired) as again:
                await client.call_tool("add", {"by": 5}, timeout=60)
            epochs.append(claimed_epoch(database, name))
            states = {approval.id: approval.state for approval in await client.approvals()}
        assert states[asked.value.confirmation_id] == "used"
        assert states[again.value.confirmation_id] == "waiting"

    assert epochs == sorted(set(epochs)), "each leader has claimed the store with a newer epoch"
    store = PostgresStore(partial(database.dsn, name))
    for epoch in epochs[:-1]:
        with pytest.raises(StoreFenced):
            await store.write(epoch, [Delete(Room.APPROVALS, asked.value.confirmation_id)])
    await store.close()


async def kill_leader(
    cluster: Cluster, namespace: str, planes: Planes, client: AsyncClient
) -> None:
    """Kill the leader, start it again, and wait until another one leads and has the worker."""
    leader, other = await leading(cluster, namespace, planes)
    await leader.end(signal.SIGKILL)
    planes.planes.remove(leader)
    await planes.control_plane(int(leader.address.rpartition(":")[2]))

    async def taken_over() -> bool:
        if await leader_of(cluster, namespace) != other.address:
            return False
        with contextlib.suppress(NotLeader, ControlPlaneUnavailable):
            return len(await client.workers()) == 1
        return False

    await eventually(taken_over)


def claimed_epoch(database: PostgresServer, name: str) -> int:
    return int(database.sql("SELECT epoch FROM leaseway.meta", name))


async def test_a_lease_that_its_namespace_does_not_take_is_a_failure(
    cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig("admin", namespace)))
    record = LeaseRecord("127.0.0.1:1_me", 3, 0)
    async with open_api(namespace) as api:
        with pytest.raises(LeaseFailure, match=r'namespaces "nowhere" not found\.$'):
            await KubernetesLease(api.client, "nowhere", "one").create(record)

        cluster.request("DELETE", f"/api/v1/namespaces/{namespace}")
        with pytest.raises(LeaseFailure, match=r"because it is being terminated\.$"):
            await KubernetesLease(api.client, namespace, "one").create(record)


async def test_a_leader_releases_the_lease_when_it_stops(
    cluster: Cluster, namespace: str, planes: Planes
) -> None:
    leader, other = await leading(cluster, namespace, planes)

    assert await leader.end(signal.SIGTERM) == 0

    async def taken_over() -> bool:
        return await leader_of(cluster, namespace) == other.address

    await eventually(taken_over)
    async with AsyncClient(other.address) as client:
        await call(client)


async def test_a_leader_whose_lease_is_stolen_steps_down_and_names_the_leader(
    cluster: Cluster, namespace: str, planes: Planes
) -> None:
    leader, other = await leading(cluster, namespace, planes)

    def steal() -> dict[str, Any]:
        while True:
            found = cluster.request("GET", lease_path(namespace))
            found["spec"]["holderIdentity"] = f"{other.address}_thief"
            found["spec"]["leaseTransitions"] += 1
            try:
                made = cluster.request("PUT", lease_path(namespace), found)
            except ApiRefused as refused:
                if refused.code != 409:  # the leader has renewed it meanwhile
                    raise
            else:
                return dict(made)

    async with AsyncClient(planes.address) as client:
        await call(client)
        calls = Caller(client)
        await asyncio.to_thread(steal)

        await eventually(lambda: any("is no longer the leader" in line for line in leader.log))
        # It is not renewed, so one of the two acquires it when it expires.
        await leading(cluster, namespace, planes)

        async def settled() -> bool:
            with contextlib.suppress(NotLeader):
                return len(await client.workers()) == 2
            return False

        await eventually(settled)
        await calls.stop()
    assert leader.process.returncode is None


async def test_an_outage_of_the_api_fails_no_call(
    cluster: Cluster, namespace: str, planes: Planes
) -> None:
    await leading(cluster, namespace, planes)
    async with AsyncClient(planes.address) as client, client.session("dialog") as session:
        await session.acquire("files", ttl=60, wait=20)
        await session.call_tool("list_files", {})
        await call(client)
        await asyncio.to_thread(cluster.stop_api)
        try:
            until = asyncio.get_running_loop().time() + _OUTAGE
            while asyncio.get_running_loop().time() < until:
                await call(client)
                assert not (await session.call_tool("list_files", {})).is_error
        finally:
            await asyncio.to_thread(cluster.start_api)

        async def settled() -> bool:
            with contextlib.suppress(NotLeader):
                return len(await client.workers()) == 2
            return False

        await leading(cluster, namespace, planes)
        await eventually(settled)
        assert not (await session.call_tool("list_files", {})).is_error


async def test_a_stopped_leader_that_lost_its_lease_changes_nothing_when_continued(
    cluster: Cluster, namespace: str, planes: Planes
) -> None:
    leader, other = await leading(cluster, namespace, planes)
    async with AsyncClient(planes.address) as client, client.session("dialog") as session:
        lease = await session.acquire("files", ttl=300, wait=20)
        await call(client)
        calls = Caller(client)
        leader.process.send_signal(signal.SIGSTOP)
        try:

            async def taken_over() -> bool:
                return await leader_of(cluster, namespace) == other.address

            await eventually(taken_over, within=4 * BOUND)
            async with AsyncClient(other.address) as fresh:

                async def all_here() -> bool:
                    return len(await fresh.workers()) == 2

                await eventually(all_here, within=4 * BOUND)
                version = (await fresh.list_tools()).registry_version
                # It continues with the pending messages and writes of its old term.
                leader.process.send_signal(signal.SIGCONT)
                await eventually(
                    lambda: any("is no longer the leader" in line for line in leader.log)
                )
                assert await leader_of(cluster, namespace) == other.address
                assert len(await fresh.workers()) == 2
                assert (await fresh.list_tools()).registry_version >= version
                assert [each_lease.id for each_lease in await fresh.leases()] == [lease.id]
        finally:
            leader.process.send_signal(signal.SIGCONT)
        await calls.stop()
        assert calls.calls > 0
        assert not (await session.call_tool("list_files", {})).is_error
    assert leader.process.returncode is None
