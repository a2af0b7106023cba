"""The part of a Kubernetes API that elects a leader: one Lease, with optimistic locking.

`tests/kubernetes` does the same with a real API server; this one needs no program.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

LEASE = "apps/control-plane"
"""The namespace and the name of the Lease."""
DURATION = 15
"""Its duration in seconds: no leader loses it because the machine is busy."""


class LeaseApi:
    """The API.

    Attributes:
        kubeconfig: A file that names it.
    """

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.found: dict[str, Any] | None = None
        self.version = 0

    def expire(self) -> None:
        """Let the Lease of a killed leader end at once, to spare the time.

        Its last renewal may still be on its way; it comes too late, as its version is an older one.
        """
        assert self.found is not None
        self.found["spec"]["holderIdentity"] = ""
        self._keep(self.found, self.found["metadata"]["creationTimestamp"])

    async def read(self, _request: web.Request) -> web.Response:
        return _refused(404) if self.found is None else _answer(self.found)

    async def create(self, request: web.Request) -> web.Response:
        if self.found is not None:
            return _refused(409)
        made = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return self._keep(await request.json(), made)

    async def replace(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.found is None or body["metadata"]["resourceVersion"] != str(self.version):
            return _refused(409)
        return self._keep(body, self.found["metadata"]["creationTimestamp"])

    def _keep(self, body: dict[str, Any], made: str) -> web.Response:
        self.version += 1
        body["metadata"] |= {"resourceVersion": str(self.version), "creationTimestamp": made}
        self.found = body
        return _answer(body)


def _refused(code: int) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
    return _answer({**body, "message": "refused"}, code)


def _answer(body: dict[str, Any], code: int = 200) -> web.Response:
    # Without a charset, as the API answers: its client compares the type as a text.
    content = json.dumps(body).encode()
    return web.Response(body=content, status=code, content_type="application/json")


@asynccontextmanager
async def lease_api(folder: Path) -> AsyncIterator[LeaseApi]:
    """Serve the API."""
    lease = LeaseApi(folder / "kubeconfig")
    namespace, _, name = LEASE.partition("/")
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    app = web.Application()
    app.router.add_get(f"{path}/{name}", lease.read)
    app.router.add_put(f"{path}/{name}", lease.replace)
    app.router.add_post(path, lease.create)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    context = {"cluster": "test", "user": "test", "namespace": namespace}
    named = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": _address(runner)}}],
        "contexts": [{"name": "test", "context": context}],
        "users": [{"name": "test", "user": {"token": "of-a-test"}}],
    }
    lease.kubeconfig.write_text(yaml.safe_dump(named))
    try:
        yield lease
    finally:
        await runner.cleanup()


def _address(runner: web.AppRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"http://{host}:{port}"
