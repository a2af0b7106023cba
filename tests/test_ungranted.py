"""A tenant with a valid credential and no grant: each RPC answers as if nothing existed.

One row for each RPC that a caller may send, made from the table of roles, so that a new one without
a row fails. A row asks for what another tenant has, and for what nobody has, under names of one
length; the two answers must be equal but for the name, and an answer that asks for no name must
hold nothing of what others have.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf import message_factory
from tests.calls import call_message
from tests.conftest import BOUND
from tests.control_plane.conftest import Running
from tests.control_plane.conftest import serving as plane_serving
from tests.control_plane.core.builders import spec
from tests.control_plane.fake_worker import worker
from tests.data_plane.conftest import Bench, worker_bench
from tests.identity.rpcs import METHODS

from leaseway.identity.authenticator import authenticator_for
from leaseway.identity.interceptor import IdentityInterceptor
from leaseway.identity.keys import add_key, make_key
from leaseway.identity.principal import Role
from leaseway.identity.rules import RULES
from leaseway.spec.policy import Grant, ServerPolicy
from leaseway.v1 import admin_pb2, catalog_pb2, execution_pb2, leases_pb2, sync_pb2
from leaseway.wire.channels.auth import bearer_metadata
from leaseway.wire.status import fault_from_rpc_error

POOR: Final = "poor"
THERE, NEVER = "hidden", "absent"
ITS_LEASE, NO_LEASE = "L-its", "L-not"
ONLY_ACME: Final = ServerPolicy(grants={"acme": Grant()})


@dataclass(frozen=True)
class Names:
    """Names in a request: those of another tenant, or unknown ones."""

    server: str
    lease: str
    artifact: str

    def hidden_in(self, told: str) -> str:
        """Return a response without these names."""
        for name in (self.artifact, self.lease, self.server):
            told = told.replace(name, "NAME")
        return told


Row = Callable[[Names], Any]

ON_CONTROL_PLANE: Final[dict[str, Row]] = {
    "CatalogService/ListTools": lambda n: catalog_pb2.ListToolsRequest(
        tenant=POOR, servers=[n.server]
    ),
    "CatalogService/ListPrompts": lambda n: catalog_pb2.ListPromptsRequest(
        tenant=POOR, servers=[n.server]
    ),
    "CatalogService/ListResources": lambda n: catalog_pb2.ListResourcesRequest(
        tenant=POOR, servers=[n.server]
    ),
    "CatalogService/ResolveTools": lambda n: catalog_pb2.ResolveToolsRequest(
        tenant=POOR, names=["open", f"{n.server}_open"], server_id=n.server
    ),
    "CatalogService/WatchTools": lambda _: catalog_pb2.WatchToolsRequest(tenant=POOR),
    "CatalogService/ListServers": lambda _: catalog_pb2.ListServersRequest(tenant=POOR),
    "CatalogService/ListIntroductions": lambda _: catalog_pb2.ListIntroductionsRequest(tenant=POOR),
    "PlacementService/Place": lambda n: leases_pb2.PlaceRequest(
        tenant=POOR, session="s", server_id=n.server
    ),
    "PlacementService/FindLease": lambda n: leases_pb2.FindLeaseRequest(
        tenant=POOR, session="s", server_id=n.server
    ),
    "PlacementService/ShareSessionEnds": lambda _: leases_pb2.ShareSessionEndsRequest(
        tenant=POOR, asked=["s"]
    ),
    "AdminService/GetStatus": lambda _: admin_pb2.GetStatusRequest(),
    "AdminService/ListWorkers": lambda _: admin_pb2.ListWorkersRequest(),
    "AdminService/ListHeldLeases": lambda _: admin_pb2.ListHeldLeasesRequest(tenant=POOR),
    "AdminService/ReportProblem": lambda n: admin_pb2.ReportProblemRequest(
        problem=admin_pb2.Problem(
            tenant=POOR, server_id=n.server, reason="PROVIDER_REFUSED", message="No."
        )
    ),
}
ON_WORKER: Final[dict[str, Row]] = {
    "ExecutionService/Exchange": lambda n: execution_pb2.ExchangeRequest(
        calls=[call_message(id=1, tenant=POOR, server_id=n.server, tool="echo")]
    ),
    "ExecutionService/CallTool": lambda n: execution_pb2.CallToolRequest(
        tenant=POOR, server_id=n.server, tool="echo"
    ),
    "ExecutionService/CallToolStreaming": lambda n: execution_pb2.CallToolStreamingRequest(
        call=execution_pb2.CallToolRequest(tenant=POOR, server_id=n.server, tool="echo")
    ),
    "ExecutionService/ReadArtifact": lambda n: execution_pb2.ReadArtifactRequest(
        tenant=POOR, session="s", ref=n.artifact
    ),
    "LeaseService/AcquireLease": lambda n: leases_pb2.AcquireLeaseRequest(
        tenant=POOR, session="s", server_id=n.server
    ),
    "LeaseService/ReleaseLease": lambda n: leases_pb2.ReleaseLeaseRequest(
        tenant=POOR, session="s", lease_id=n.lease
    ),
    "LeaseService/KeepAlive": lambda n: leases_pb2.KeepAliveRequest(
        lease_ids=[n.lease], sessions=["other"]
    ),
    "LeaseService/ListLeaseTools": lambda n: leases_pb2.ListLeaseToolsRequest(
        tenant=POOR, session="s", lease_id=n.lease
    ),
    "LeaseService/ResolveLeased": lambda n: leases_pb2.ResolveLeasedRequest(
        tenant=POOR, session="s", lease_id=n.lease, name="open"
    ),
    "LeaseService/ListLeases": lambda _: leases_pb2.ListLeasesRequest(tenant=POOR),
}


def test_every_rpc_of_callers_has_a_row() -> None:
    may = {full.removeprefix("/leaseway.v1.") for full in METHODS if Role.CALLER in roles_of(full)}
    assert {*ON_CONTROL_PLANE, *ON_WORKER} == may


def roles_of(full: str) -> frozenset[Role]:
    return RULES[full].roles


async def answer(channel: Any, rpc: str, request: Any, key: str | None = None) -> str:
    """Send an RPC; return its response as one text: of an endless stream, the first message."""
    full = f"/leaseway.v1.{rpc}"
    method = METHODS[full]
    codec: dict[str, Any] = {
        "request_serializer": type(request).SerializeToString,
        "response_deserializer": message_factory.GetMessageClass(method.output_type).FromString,
    }
    told: list[Any] = []
    metadata = bearer_metadata(key)
    async with asyncio.timeout(BOUND):
        try:
            if method.client_streaming:
                stream: Any = channel.stream_stream(full, **codec)(metadata=metadata)
                await stream.write(request)
                while not told or not told[-1].results:
                    told.append(await stream.read())
                stream.cancel()
                told = [result for outcome in told for result in outcome.results]
            elif method.server_streaming:
                stream = channel.unary_stream(full, **codec)(request, metadata=metadata)
                told.append(await stream.read())
                stream.cancel()
            else:
                told.append(await channel.unary_unary(full, **codec)(request, metadata=metadata))
        except grpc.aio.AioRpcError as error:
            fault = fault_from_rpc_error(error)
            told += [error.code(), error.details(), fault]
    return "\n".join(str(outcome) for outcome in told)


async def compare(
    channel: Any, rows: dict[str, Row], there: Names, never: Names, key: str | None = None
) -> None:
    """Check that each row responds alike to existing and unknown names."""
    for rpc, row in rows.items():
        about, about_none = row(there), row(never)
        told = await answer(channel, rpc, about, key)
        if about == about_none:
            assert there.hidden_in(told) == told, rpc
            assert "acme" not in told, rpc
            continue
        expected = await answer(channel, rpc, about_none, key)
        assert there.hidden_in(told) == never.hidden_in(expected), rpc


async def serve_hidden(running: Running, fake: Any) -> None:
    """Run a worker with a server that only `acme` is granted, and a lease of it."""
    running.load(replace(spec(THERE, shared=False), policy=ONLY_ACME))
    await fake.serve("open")
    await fake.apply_until(THERE)
    await running.until(lambda state: state.ready)
    lease = leases_pb2.Lease(id=ITS_LEASE, server_id=THERE, tenant="acme", session="s")
    await fake.send(report=sync_pb2.Report(leases_gained=[lease]))
    await running.until(lambda state: ITS_LEASE in state.placements.leases)


async def test_a_control_plane_reveals_nothing_that_is_not_granted() -> None:
    async with plane_serving() as running, worker(running.address) as fake:
        await serve_hidden(running, fake)
        granted = catalog_pb2.ListToolsRequest(tenant="acme", servers=[THERE])
        async with grpc.aio.insecure_channel(running.address) as channel:
            assert "open" in await answer(channel, "CatalogService/ListTools", granted)
            there, never = (
                Names(THERE, ITS_LEASE, "no artifact"),
                Names(NEVER, NO_LEASE, "no artifact"),
            )
            await compare(channel, ON_CONTROL_PLANE, there, never)


async def artifact_of(bench: Bench, key: str) -> str:
    """Call a tool as `acme` that returns an image; return its reference."""
    image = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(b"x" * 99).decode()}
    request = execution_pb2.CallToolRequest(session="s", server_id=THERE, tool="echo")
    request.arguments.update({"text": "hi"})
    call = asyncio.create_task(answer(bench.channel, "ExecutionService/CallTool", request, key))
    await bench.until(lambda: bench.servers.opened and bench.servers.opened[0].calls)
    bench.servers.opened[0].calls[0].answer(json.dumps({"content": [image]}).encode())
    found = re.search(r"artifacts/[\w/.-]+\.png", await call)
    assert found is not None
    return found[0]


def another(name: str, ending: int = 0) -> str:
    """Return a name that differs from one in the last digit before its ending."""
    place = len(name) - ending - 1
    return f"{name[:place]}{'0' if name[place] != '0' else '1'}{name[place + 1 :]}"


async def test_a_worker_reveals_nothing_that_is_not_granted(tmp_path: Path) -> None:
    keys = {}
    for tenant in ("acme", POOR):
        keys[tenant], record = make_key(roles=[Role.CALLER], tenant=tenant, agent=None, now=0.0)
        add_key(tmp_path / "keys.json", record)
    known = authenticator_for(None, keys=tmp_path / "keys.json")
    async with worker_bench(interceptors=(IdentityInterceptor(known),)) as bench:
        await bench.serve(THERE, shared=False, policy=ONLY_ACME)
        bench.servers.holds = True
        artifact = await artifact_of(bench, keys["acme"])
        (lease,) = bench.worker.leases.leases
        there = Names(THERE, lease.id, artifact)
        never = Names(NEVER, another(lease.id), another(artifact, len(".png")))
        await compare(bench.channel, ON_WORKER, there, never, keys[POOR])
        assert bench.worker.leases.get(lease.id) is not None
