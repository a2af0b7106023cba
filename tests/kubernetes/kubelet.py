"""The part of a kubelet that pods of workers need: each server is a process of this machine.

It is a node of the real API: it takes pods to itself, reports how they are, and serves `attach`
over HTTPS, to which the API server passes a client's websocket on. Images are names of commands.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from tests.kubernetes.cluster import ADMIN, ApiRefused, Cluster

_PROTOCOL = "v4.channel.k8s.io"
_BETWEEN_WATCHES = 0.1


class Kubelet:
    """One node for one namespace.

    Args:
        cluster: The API.
        namespace: The namespace of its pods.
        images: The command of each image; other images can't be pulled.
    """

    def __init__(
        self, cluster: Cluster, namespace: str, images: Mapping[str, tuple[str, ...]]
    ) -> None:
        self._cluster = cluster
        self._images = images
        self._path = f"/api/v1/namespaces/{namespace}"
        self.name = f"node-{namespace}"
        self.running: dict[str, asyncio.subprocess.Process] = {}
        self._known: set[str] = set()

    async def ask(self, method: str, path: str, body: Any = None, kind: str = "") -> Any:
        """Send a request to the API."""
        kind = kind or "application/json"
        return await asyncio.to_thread(self._cluster.request, method, path, body, kind=kind)

    async def pods(self) -> list[dict[str, Any]]:
        """Return the pods of servers in the namespace."""
        selector = "labelSelector=app.kubernetes.io/managed-by%3Dleaseway"
        found = await self.ask("GET", f"{self._path}/pods?{selector}")
        return list(found["items"])

    async def register(self, port: int) -> None:
        """Create the node, with the port of the kubelet for the API server."""
        await self.ask("POST", "/api/v1/nodes", {"metadata": {"name": self.name}})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        merge = "application/merge-patch+json"
        await self.ask("PATCH", f"/api/v1/nodes/{self.name}/status", {"status": status}, merge)

    async def follow(self) -> None:
        """Start new pods, and stop deleted ones."""
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        headers = {"Authorization": f"Bearer {ADMIN}"}
        url = f"{self._cluster.url}{self._path}/pods?watch=true"
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout, headers=headers) as http:
            while True:  # the API ends a watch whose cache is behind; watch again
                async with http.get(url, ssl=tls) as answer:
                    async for line in answer.content:
                        await self._notice(json.loads(line)["object"])
                await asyncio.sleep(_BETWEEN_WATCHES)

    async def _notice(self, pod: dict[str, Any]) -> None:
        if pod["metadata"].get("labels", {}).get("app.kubernetes.io/managed-by"):
            with contextlib.suppress(ApiRefused):  # it was deleted meanwhile
                await self._see(pod)

    async def _see(self, pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        if pod["metadata"].get("deletionTimestamp"):
            await self._end(name)
        elif name not in self._known:
            self._known.add(name)
            await self._run(name, pod)

    async def _run(self, name: str, pod: dict[str, Any]) -> None:
        (container, *_) = pod["spec"]["containers"]
        target = {"apiVersion": "v1", "kind": "Node", "name": self.name}
        binding = {"metadata": {"name": name}, "target": target}
        await self.ask("POST", f"{self._path}/pods/{name}/binding", binding)
        command = self._images.get(container["image"])
        if command is None:
            why = {"reason": "ErrImagePull", "message": f"no such image: {container['image']}"}
            await self._report(name, container, {"waiting": why}, "Pending")
            return
        environment = dict(os.environ)
        for source in container.get("envFrom", ()):
            secret = await self.ask("GET", f"{self._path}/secrets/{source['secretRef']['name']}")
            for key, value in secret["data"].items():
                environment[key] = base64.b64decode(value).decode()
        pipes = asyncio.subprocess.PIPE
        self.running[name] = await asyncio.create_subprocess_exec(
            *command,
            *container.get("args", ()),
            stdin=pipes,
            stdout=pipes,
            stderr=pipes,
            env=environment,
        )
        await self._report(name, container, {"running": {}}, "Running")

    async def _report(
        self, name: str, container: dict[str, Any], state: dict[str, Any], phase: str
    ) -> None:
        status = {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": phase == "Running",
            "restartCount": 0,
            "state": state,
        }
        patch = {"status": {"phase": phase, "containerStatuses": [status]}}
        merge = "application/merge-patch+json"
        with contextlib.suppress(ApiRefused):  # it is already deleted
            await self.ask("PATCH", f"{self._path}/pods/{name}/status", patch, merge)

    async def _end(self, name: str) -> None:
        process = self.running.pop(name, None)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        with contextlib.suppress(ApiRefused):
            await self.ask("DELETE", f"{self._path}/pods/{name}?gracePeriodSeconds=0")

    async def attach(self, request: web.Request) -> web.WebSocketResponse:
        """Forward the input and output of a server, like a kubelet."""
        process = self.running[request.match_info["pod"]]
        socket = web.WebSocketResponse(protocols=(_PROTOCOL,))
        await socket.prepare(request)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        tasks = [
            asyncio.create_task(_pump(1, process.stdout, socket)),
            asyncio.create_task(_pump(2, process.stderr, socket)),
        ]
        tasks[0].add_done_callback(lambda _: asyncio.ensure_future(socket.close()))
        try:
            async for message in socket:
                if message.data[:1] == b"\x00":
                    process.stdin.write(message.data[1:])
                    await process.stdin.drain()
        finally:
            process.stdin.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return socket

    async def end_all(self) -> None:
        """Stop all servers."""
        for name in list(self.running):
            process = self.running.pop(name)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _pump(channel: int, source: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
    while data := await source.read(1 << 15):
        await socket.send_bytes(bytes([channel]) + data)
    status = {"status": "Success"}
    if channel == 1:
        await socket.send_bytes(b"\x03" + json.dumps(status).encode())


@contextlib.asynccontextmanager
async def kubelet(
    cluster: Cluster, namespace: str, folder: Path, images: Mapping[str, tuple[str, ...]]
) -> AsyncIterator[Kubelet]:
    """Run a node; stop all its servers at the end."""
    made = Kubelet(cluster, namespace, images)
    app = web.Application()
    app.router.add_get("/attach/{namespace}/{pod}/{container}", made.attach)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=_certificate(folder))
    await site.start()
    _, port = runner.addresses[0][:2]
    await made.register(port)
    following = asyncio.create_task(made.follow())
    try:
        yield made
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        await made.end_all()
        await runner.cleanup()
        await made.ask("DELETE", f"/api/v1/nodes/{made.name}")


def _certificate(folder: Path) -> ssl.SSLContext:
    key, certificate = folder / "kubelet.key", folder / "kubelet.crt"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=kubelet"]
    names = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *names], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context
