"""What each HTTP path answers to each kind of credential: a table over every HTTP listener.

A listener, a place that serves HTTP, or a path of artifacts without a row fails. The console's
paths have their rows in `tests/control_plane/console/test_console_http.py`, from its own router.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from aiohttp import web
from tests.data_plane.conftest import Bench, worker_bench
from tests.front.http.fake_fronts import FakeFront, served

import leaseway
from leaseway.front.http.callers import Callers
from leaseway.identity.authenticator import Authenticator, authenticator_for
from leaseway.identity.keys import add_key, make_key, revoke_key
from leaseway.identity.principal import SEES_ALL, Role
from leaseway.telemetry.http_listener import ArtifactsListener
from leaseway.telemetry.prometheus_http import MetricsListener, serve_metrics
from leaseway.wire.channels.endpoint import Endpoint

LISTENERS: Final = {"MetricsListener", "ArtifactsListener", "McpListener", "ConsoleListener"}
SERVES_HTTP: Final = {"http_listener.py", "server.py"}
LOCAL: Final = Endpoint("127.0.0.1", 0)

ENDED: Final[dict[str, tuple[Role, str | None]]] = {
    "expired caller": (Role.CALLER, "acme"),
    "revoked caller": (Role.CALLER, "acme"),
    "expired operator": (Role.OPERATOR, None),
    "revoked operator": (Role.OPERATOR, None),
}
BAD: Final = ("nobody", "wrong", *ENDED)
MADE: Final[dict[str, tuple[Role, str | None]]] = {
    "acme": (Role.CALLER, "acme"),
    "rival": (Role.CALLER, "rival"),
    "approver": (Role.APPROVER, "acme"),
    "worker": (Role.PLANE, None),
    "viewer": (Role.VIEWER, None),
    "operator": (Role.OPERATOR, None),
}


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    """One credential of each kind."""
    made = {"nobody": "", "wrong": "lwk_aaaaaaaa_" + "x" * 43}
    for name, (role, tenant) in (MADE | ENDED).items():
        ends = 1.0 if name.startswith("expired") else None
        made[name], record = make_key(
            roles=[role], tenant=tenant, agent=None, now=0.0, expires_at=ends
        )
        add_key(tmp_path / "keys.json", record)
        if name.startswith("revoked"):
            revoke_key(tmp_path / "keys.json", record.id, 0.0)
    return made


async def ask(url: str, key: str, method: str = "GET", **params: str) -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.request(method, url, params=params) as answer,
    ):
        return answer.status, await answer.text(errors="replace")


def test_every_http_listener_and_server_is_in_the_table() -> None:
    listeners, serving = set(), set()
    for root in leaseway.__path__:
        for path in Path(root).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            listeners |= set(re.findall(r"^class (\w+)\(HttpListener\)", text, re.MULTILINE))
            if re.search(
                r"asyncio\.start_server\(|\)\.create_server\(|web\.\w*(Site|Runner)\(", text
            ):
                serving.add(path.name)
    assert listeners == LISTENERS
    assert serving == SERVES_HTTP


@pytest.mark.parametrize("path", ["/metrics", "/", "/metrics/other"])
async def test_metrics_require_a_role_that_sees_all_tenants(
    keys: dict[str, str], tmp_path: Path, path: str
) -> None:
    admit = authenticator_for(None, keys=tmp_path / "keys.json").for_role(*SEES_ALL)
    listener = MetricsListener(LOCAL, admit)
    found = {}
    async with serve_metrics(listener, lambda: lambda _: (b"up 1\n", "text/plain")):
        for name, key in keys.items():
            url = f"http://127.0.0.1:{listener.endpoint.port}{path}"
            found[name], body = await ask(url, key)
            assert ("up 1" in body) == (found[name] == 200)
    seen = 200 if path == "/metrics" else 404
    others = dict.fromkeys(("acme", "rival", "approver", "worker"), 403)
    assert found == dict.fromkeys(BAD, 401) | others | {"viewer": seen, "operator": seen}


class Routed(ArtifactsListener):
    """Records the routes of served applications."""

    routes: tuple[tuple[str, str], ...] = ()

    @asynccontextmanager
    async def serve(self, app: web.Application, **limits: float) -> AsyncIterator[None]:
        """Serve an application."""
        self.routes = tuple(
            (route.method, route.resource.canonical)
            for route in app.router.routes()
            if route.resource is not None
        )
        async with super().serve(app, **limits):
            yield


async def kept(bench: Bench) -> str:
    """Call a tool as `acme` that returns an image; return its reference."""
    await bench.serve("shots")
    bench.servers.holds = True
    image = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(b"x" * 99).decode()}
    caller = bench.caller()
    call_id = await caller.begin("shots", tenant="acme", session="s1")
    await bench.until(lambda: bench.servers.opened and bench.servers.opened[0].calls)
    bench.servers.opened[0].calls[0].answer(json.dumps({"content": [image]}).encode())
    await caller.result(call_id)
    return str(json.loads(caller.payloads[call_id])["content"][0]["artifact"])


async def test_an_artifact_is_not_found_for_other_tenants(
    keys: dict[str, str], tmp_path: Path
) -> None:
    admit = authenticator_for(None, keys=tmp_path / "keys.json").for_role(Role.CALLER)
    with closing(Routed(LOCAL, admit)) as listener:
        async with worker_bench(artifacts_http=listener) as bench:
            assert listener.routes == (("HEAD", PATH), ("GET", PATH))
            there = await kept(bench)
            never = there.replace("shots", "shoes")
            found, named = {}, {}
            for name, key in keys.items():
                base = f"http://{listener.endpoint}"
                for method in ("HEAD", "GET"):
                    at, nowhere = [
                        await ask(f"{base}/{ref}", key, method, session="s1")
                        for ref in (there, never)
                    ]
                    if name != "acme":  # the same for existing and unknown artifacts
                        told = at[0], at[1].replace("shots", "shoes")
                        assert told == nowhere, name
                    found[method, name] = at[0]
                status, _ = await ask(f"{base}/{there}", key, session="s1", tenant="acme")
                named[name] = status
    others = dict.fromkeys(("approver", "worker", "viewer", "operator"), 403)
    wanted = dict.fromkeys(BAD, 401) | others | {"acme": 200, "rival": 404}
    for method in ("HEAD", "GET"):
        assert {name: found[method, name] for name in keys} == wanted
    assert named == {**wanted, "rival": 403}


PATH: Final = "/artifacts/{rest}"
CLOSED: Final = ("/", "/mcp", "/mcp/files", "/mcp/absent", "/metrics", "/healthz/x", "/console")


async def test_a_front_serves_callers_and_rejects_other_credentials_alike(
    keys: dict[str, str], tmp_path: Path
) -> None:
    made: Any = FakeFront
    callers = Callers(made, "none", "mcp", None, Authenticator(keys=tmp_path / "keys.json"))
    async with served(callers) as url:
        for name, key in keys.items():
            assert await ask(f"{url}/healthz", key) == (200, "ok\n")
            responses = {
                await ask(f"{url}{path}", key, method)
                for path in (*CLOSED, "/.well-known/oauth-protected-resource/mcp")
                for method in ("GET", "POST")
            }
            assert len(responses) == 1  # the same for all paths
            status, text = responses.pop()
            if name in ("acme", "rival"):
                assert (status, text) == (200, f"{name}/mcp")  # the inner application answers
            else:
                assert status == (401 if name in BAD else 403), name
                assert "acme" not in text
