"""Server statuses combine the reports of all workers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.control_plane.conftest import Running
from tests.control_plane.core.builders import spec
from tests.control_plane.fake_worker import worker

from leaseway.control_plane.core.problems import Problem, ProblemTable
from leaseway.spec.model import VariantKey
from leaseway.v1 import catalog_pb2, sync_pb2


def instance(server_id: str, name: str) -> catalog_pb2.InstanceStatus:
    variant = catalog_pb2.VariantKey(server_id=server_id)
    return catalog_pb2.InstanceStatus(id=name, state="ready", variant=variant)


async def test_each_server_has_its_instances_of_all_workers(running: Running) -> None:
    running.load(spec("a"), spec("b"))
    async with worker(running.address) as w1, worker(running.address, "w2") as w2:
        for fake in (w1, w2):
            mine = [instance("a", f"{fake.id}-a"), instance("b", f"{fake.id}-b")]
            await fake.send(report=sync_pb2.Report(instances=mine, instances_changed=True))
        for _ in range(2):  # both are tried where there was a worker first
            await w1.serve("echo")
        await w1.apply_until("a", "b")
        await running.until(lambda state: state.ready)
        await running.until(
            lambda state: all(each_worker.instances.all for each_worker in state.workers.values())
        )
        listed = await running.catalog.ListServers(catalog_pb2.ListServersRequest())
    found = {
        server.server_id: sorted(each_instance.id for each_instance in server.instances)
        for server in listed.servers
    }
    assert found == {"a": ["w1-a", "w2-a"], "b": ["w1-b", "w2-b"]}


async def test_problems_are_read_once_for_all_servers(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"s{number:02}" for number in range(50)]
    problems = [Problem("server", "BAD_VALUE", f"{name} is wrong.", name) for name in ids]
    looked: list[None] = []
    everything = ProblemTable.open

    def counting(table: ProblemTable) -> object:
        looked.append(None)
        return everything(table)

    with running.plane.transition() as (state, now):
        state.apply_config({}, frozenset(ids), problems, now)
    async with worker(running.address):
        await running.until(lambda state: state.settled)
        monkeypatch.setattr(ProblemTable, "open", counting)
        listed = await running.catalog.ListServers(catalog_pb2.ListServersRequest(), timeout=30)
    assert [server.problem for server in listed.servers] == [f"{name} is wrong." for name in ids]
    assert len(looked) == 1


async def test_a_temporarily_hidden_server_is_shown_as_pending(running: Running) -> None:
    own = replace(spec("a", command="own"), key=VariantKey("a", "acme"))
    running.load(spec("a"))
    async with worker(running.address) as w1:
        await w1.serve("echo")
        await w1.apply_until("a")
        await running.until(lambda state: state.ready)
        running.load(spec("a"), own)
        await w1.receive("probe")
        await w1.receive("delta")
        await running.until(lambda state: own.key in state.visible.served)
        request = catalog_pb2.ListServersRequest(tenant="acme")
        listed = await running.catalog.ListServers(request)
    (status,) = listed.servers
    assert (status.tenant, status.tool_count) == ("acme", 0)
    assert status.state == catalog_pb2.SERVER_STATE_PENDING
    assert status.launch_hash == own.launch_hash
    assert list(listed.pending) == ["a"]


async def test_a_server_status_contains_current_and_wanted_launch_hashes(running: Running) -> None:
    async def status() -> catalog_pb2.ServerStatus:
        answer = await running.catalog.ListServers(catalog_pb2.ListServersRequest())
        (only,) = answer.servers
        return only

    running.load(spec("a"))
    async with worker(running.address) as w1:
        await w1.serve("x")
        await w1.apply_until("a")
        assert (await status()).wanted_launch_hash == ""
        newer = spec("a", command="newer")
        running.load(newer)
        told = await status()
        assert told.launch_hash == spec("a").launch_hash
        assert told.wanted_launch_hash == newer.launch_hash
        running.load(spec("a"))
        assert (await status()).wanted_launch_hash == ""
