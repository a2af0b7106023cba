"""The client's side of the control plane."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from tests.certificates import Authority
from tests.sdk.fakes import BOUND, FakeControlPlane, FakeWorker, until

from leaseway.sdk import AsyncClient, Cancelled, ControlPlaneUnavailable
from leaseway.sdk.transport import control
from leaseway.sdk.transport.faults import fault_of_worker
from leaseway.sdk.transport.identity import identify
from leaseway.v1 import admin_pb2, leases_pb2
from leaseway.wire.channels import leader_channel
from leaseway.wire.errors import Fault, Reason


async def test_a_wait_survives_a_restart_of_the_control_plane(plane: FakeControlPlane) -> None:
    plane_control = control.ControlPlane(identify(plane.address, None, None, None))
    loop = asyncio.get_running_loop()
    begun = loop.time()
    tries = 0

    async def wait_for_capacity(
        request: object, /, *, timeout: float | None, metadata: object
    ) -> str:
        nonlocal tries
        tries += 1
        if tries > 1:
            return "here"
        await until(lambda: loop.time() > begun + 1.5)  # longer than the connection timeout
        status, none = grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(status, none, none, "Connection reset.")

    assert await plane_control.request(wait_for_capacity, None, begun + BOUND, bound=1.0) == "here"
    await plane_control.close()


async def test_a_request_goes_on_when_the_connection_that_it_began_on_is_closed(
    plane: FakeControlPlane, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_channel, "_GRACE", 0.01)
    plane.hold_place = asyncio.Event()
    plane_control = control.ControlPlane(identify(plane.address, None, None, None))
    deadline = asyncio.get_running_loop().time() + BOUND
    request = leases_pb2.PlaceRequest(session="one", server_id="desk")
    placing = asyncio.create_task(
        plane_control.request(plane_control.placement.Place, request, deadline, wait=BOUND)
    )
    await until(lambda: len(plane.places) == 1)
    plane_control._channel._switch(plane.address)
    await until(lambda: len(plane.places) == 2)
    plane.hold_place.set()
    assert (await placing).worker.id == worker.ref.id
    await plane_control.close()


async def test_a_client_that_is_closed_while_it_connects_cancels_its_requests() -> None:
    came = asyncio.Event()

    async def stall(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await asyncio.sleep(BOUND)

    gate = await asyncio.start_server(stall, "127.0.0.1", 0)
    client = AsyncClient(f"127.0.0.1:{gate.sockets[0].getsockname()[1]}")
    async with asyncio.timeout(BOUND):
        asking = asyncio.create_task(client.status())
        await came.wait()
        await client.close()
        with pytest.raises(Cancelled, match="The client was closed"):
            await asking
    gate.close()


async def test_a_control_plane_that_stalls_while_it_is_connected_to_is_waited_for(
    plane: FakeControlPlane,
) -> None:
    came, go_on = asyncio.Event(), asyncio.Event()
    host, port = plane.address.split(":")

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await go_on.wait()
        inward, outward = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_carry(reader, outward), _carry(inward, writer))

    gate = await asyncio.start_server(stall, "127.0.0.1", 0)
    address = f"127.0.0.1:{gate.sockets[0].getsockname()[1]}"
    plane_control = control.ControlPlane(identify(address, None, None, None))
    deadline = asyncio.get_running_loop().time() + BOUND
    async with asyncio.timeout(BOUND):
        request = admin_pb2.GetStatusRequest()
        status = asyncio.create_task(
            plane_control.request(plane_control.admin.GetStatus, request, deadline, bound=0.1)
        )
        await came.wait()
        await asyncio.wait({status}, timeout=0.5)  # longer than the bound
        assert not status.done()
        go_on.set()
        assert await status
    await plane_control.close()
    gate.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


async def test_a_stalled_control_plane_is_named_in_the_error(
    client: AsyncClient, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_QUIET", 0.1)
    monkeypatch.setattr(control, "_PROBE_TIMEOUT", 0.5)
    plane.mute = True
    async with asyncio.timeout(BOUND):
        with pytest.raises(ControlPlaneUnavailable, match=f"{plane.address} .*answers nothing"):
            await client.acquire("desk", wait=0.2)
        with pytest.raises(ControlPlaneUnavailable, match=plane.address):
            await client.acquire("desk")


async def test_a_slow_control_plane_is_awaited(
    client: AsyncClient, plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_QUIET", 0.01)
    hold = plane.hold_resolve["time_now"] = asyncio.Event()
    asked: list[object] = []
    monkeypatch.setattr(plane, "on_status", lambda: asked.append(1))
    call = asyncio.create_task(client.call_tool("time_now"))
    await until(lambda: len(asked) > 3)
    assert not call.done()
    hold.set()
    assert (await call).text == "{}"


async def test_a_first_call_survives_a_restart_of_the_control_plane(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    await client.status()
    port = int(plane.address.rsplit(":", 1)[1])
    await plane.stop()
    loop = asyncio.get_running_loop()
    begun = loop.time()
    call = asyncio.create_task(client.call_tool("time_now", timeout=BOUND))
    await until(lambda: loop.time() > begun + control.CONNECT_TIMEOUT + 0.5)
    assert not call.done()
    await plane.start(port)
    assert (await call).text == "{}"


def _turned_away() -> grpc.aio.AioRpcError:
    none = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, none, none, "CANCELLED")


async def test_a_request_that_grpc_dropped_is_sent_again(plane: FakeControlPlane) -> None:
    plane_control = control.ControlPlane(identify(plane.address, None, None, None))
    tries = 0

    async def crowded(request: object, /, *, timeout: float | None, metadata: object) -> str:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise _turned_away()
        return "here"

    deadline = asyncio.get_running_loop().time() + BOUND
    assert await plane_control.request(crowded, None, deadline) == "here"
    await plane_control.close()


async def test_a_request_that_grpc_keeps_dropping_was_not_started(
    plane: FakeControlPlane,
) -> None:
    plane_control = control.ControlPlane(identify(plane.address, None, None, None))

    async def full(request: object, /, *, timeout: float | None, metadata: object) -> str:
        raise _turned_away()

    deadline = asyncio.get_running_loop().time() + BOUND
    with pytest.raises(Fault) as caught:
        await plane_control.request(full, None, deadline, bound=0.3)
    await plane_control.close()
    assert (caught.value.reason, caught.value.started) == (Reason.OVERLOADED, "no")
    of_worker = fault_of_worker(_turned_away(), "w1")
    assert (of_worker.reason, of_worker.started) == (Reason.OVERLOADED, "no")
    assert "was not started" in of_worker.message


async def test_the_error_of_a_client_that_tls_keeps_out_says_so(
    plane: FakeControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEWAY_TLS_CA", str(Authority("ours").write(tmp_path / "ca.pem")))
    async with AsyncClient(plane.address) as client:
        with pytest.raises(ControlPlaneUnavailable, match=r"reached\. It does not use TLS, but"):
            await client.list_tools(timeout=1)
