"""Pods of servers, with an API that misbehaves; tests/kubernetes has a real one."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.certificates import Authority
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import until

from leaseway.data_plane.kinds.container.pods import Pods
from leaseway.data_plane.kinds.container.transport import PodTransport
from leaseway.data_plane.mcp.protocol.transport import OverlongMessageError
from leaseway.data_plane.mcp.stderr import StderrTail
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason

_RUNNING = {"phase": "Running", "containerStatuses": [{"name": "server", "state": {"running": {}}}]}
_ENVIRONMENT = {"LEASEWAY_POD_NAME": "w", "LEASEWAY_POD_UID": "u", "LEASEWAY_POD_NAMESPACE": "n"}


def terminated(**state: object) -> dict[str, Any]:
    """Return the status of a pod whose server has ended beside a sidecar that still runs."""
    server = {"name": "server", "state": {"terminated": state}}
    return {"phase": "Running", "containerStatuses": [server]}


class Api:
    """What pods need of the API.

    Attributes:
        statuses: The statuses of the pod that watches report, one each; the last one stays.
        refusals: For each verb, the HTTP statuses of the next requests, and the reasons.
        requests: The methods and paths of all requests.
        socket: The last attached websocket.
    """

    def __init__(self, *statuses: dict[str, Any]) -> None:
        self.statuses = list(statuses or (_RUNNING,))
        self.refusals: dict[str, list[tuple[int] | tuple[int, str]]] = {}
        self.requests: list[str] = []
        self.socket: web.WebSocketResponse | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path.removeprefix("/api/v1/namespaces/n/")
        self.requests.append(f"{request.method} {path}")
        refusals = self.refusals.get(request.method, [])
        if refusals:
            code, *reason = refusals.pop(0)
            refusal = {"message": "not now", "reason": reason[0] if reason else ""}
            return web.json_response(refusal, status=code)
        if path.endswith("/attach"):
            return await self._attach(request)
        if request.method != "GET":
            return web.json_response({})
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        change = {"type": "ADDED", "object": {"metadata": {"name": "p"}, "status": status}}
        return web.Response(text=json.dumps(change) + "\n")

    async def _attach(self, request: web.Request) -> web.WebSocketResponse:
        self.socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await self.socket.prepare(request)
        async for _ in self.socket:
            pass
        return self.socket


@asynccontextmanager
async def pods_of(
    api: Api,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Pods]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.handle)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    config = folder / "kubeconfig"
    context = {"cluster": "c", "user": "u"}
    authority = {"certificate-authority": str(folder / "ca.crt")} if tls else {}
    written = {
        "clusters": [{"name": "c", "cluster": {"server": url, **authority}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": context}],
        "current-context": "x",
    }
    config.write_text(json.dumps(written))
    monkeypatch.setenv("KUBECONFIG", str(config))
    async with aiohttp.ClientSession() as http:
        pods = Pods(_ENVIRONMENT, http)
        try:
            yield pods
        finally:
            await pods.close(BOUND)
            await runner.cleanup()


@asynccontextmanager
async def transport_of(
    api: Api, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[PodTransport]:
    async with pods_of(api, folder, monkeypatch) as pods:
        await pods.owner("box")
        manifests = [("pods", {"metadata": {"name": "p"}})]
        transport = PodTransport("box", pods, "p", manifests, StderrTail(), BOUND)
        try:
            async with asyncio.timeout(BOUND):
                yield transport
        finally:
            await transport.disconnect()


async def end_of(api: Api, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Fault:
    """Return the fault of a connected pod's end, whose status the API then reports."""
    async with transport_of(api, folder, monkeypatch) as transport:
        await transport.connect()
        await until(lambda: api.socket is not None)
        assert api.socket is not None
        await api.socket.send_bytes(b"\x02" + b"Error: the disk is full\n")
        await api.socket.send_bytes(b"\x03" + json.dumps({"status": "Success"}).encode())
        with pytest.raises(Fault) as raised:
            await transport.receive()
    return raised.value


async def test_a_lost_server_says_how_its_process_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = terminated(exitCode=137, reason="OOMKilled")
    fault = await end_of(Api(_RUNNING, killed), tmp_path, monkeypatch)

    assert fault.reason is Reason.SERVER_LOST
    assert "box exited with status 137: it used up its memory" in fault.message
    assert "; it wrote last: Error: the disk is full" in fault.message
    assert fault.metadata["exit_status"] == "137"


async def test_a_server_whose_pod_was_evicted_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}
    fault = await end_of(Api(_RUNNING, evicted), tmp_path, monkeypatch)

    assert "box lost its pod: Evicted The node was low on memory;" in fault.message


async def test_a_message_above_the_limit_costs_only_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api()
    async with transport_of(api, tmp_path, monkeypatch) as transport:
        await transport.connect()
        await until(lambda: api.socket is not None)
        assert api.socket is not None
        sending = asyncio.create_task(write_too_much(api.socket))

        with pytest.raises(OverlongMessageError) as skipped:
            await transport.receive()
        assert skipped.value.size == bounds.MAX_LINE + bounds.MIB
        assert await transport.receive() == b"{}"
        await sending


async def write_too_much(socket: web.WebSocketResponse) -> None:
    for _ in range(bounds.MAX_LINE // bounds.MIB + 1):
        await socket.send_bytes(b"\x01" + b"x" * bounds.MIB)
    await socket.send_bytes(b"\x01\n{}\n")


async def test_a_pod_starts_although_the_api_is_busy_or_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api()
    # The answer to the first attempt was lost: the pod exists.
    api.refusals = {"POST": [(503,), (409, "AlreadyExists")], "GET": [(429,)]}
    async with transport_of(api, tmp_path, monkeypatch) as transport:
        await transport.connect()

    assert api.requests.count("POST pods") == 2
    assert "GET pods/p/attach" in api.requests


async def test_a_pod_starts_although_others_write_much_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = {**_RUNNING, "message": "x" * bounds.MIB}
    async with transport_of(Api(status), tmp_path, monkeypatch) as transport:
        await transport.connect()


async def test_a_pod_that_another_conflict_refuses_is_not_taken_for_one_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api()
    api.refusals = {"POST": [(503,), (409, "Conflict")]}
    async with transport_of(api, tmp_path, monkeypatch) as transport:
        with pytest.raises(Fault, match=r"refused POST pods \(409\): not now"):
            await transport.connect()


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (terminated(exitCode=3, reason="Error"), "its server exited with status 3"),
        (
            {
                "phase": "Failed",
                "containerStatuses": [
                    {"name": "server", "state": {"waiting": {"reason": "PodInitializing"}}}
                ],
                "initContainerStatuses": [
                    {"name": "migrate", "state": {"terminated": {"exitCode": 2}}}
                ],
            },
            "its init container migrate exited with status 2",
        ),
    ],
)
async def test_a_pod_whose_containers_have_ended_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: dict[str, Any], message: str
) -> None:
    async with transport_of(Api(status), tmp_path, monkeypatch) as transport:
        with pytest.raises(Fault, match=message):
            await transport.connect()


async def test_an_authority_of_the_cluster_that_is_replaced_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority = Authority("new")
    tls.load_cert_chain(*authority.issue(tmp_path, "api"))
    Authority("old").write(tmp_path / "ca.crt")
    api = Api()
    async with pods_of(api, tmp_path, monkeypatch, tls) as pods:
        await pods.owner("box")
        async with asyncio.timeout(BOUND):
            async for busy in pods.create("pods", {"metadata": {"name": "p"}}):
                assert "certificate verify failed" in busy
                authority.write(tmp_path / "ca.crt")
    assert "POST pods" in api.requests


async def test_pods_of_an_earlier_process_are_deleted_once_the_api_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = Api()
    api.refusals = {"DELETE": [(503,)]}
    async with pods_of(api, tmp_path, monkeypatch) as pods:
        await pods.owner("box")
        await until(lambda: "DELETE secrets" in api.requests)

    assert api.requests == ["DELETE pods", "DELETE pods", "DELETE secrets"]
