"""Artifacts over HTTP: owners, ranges, security headers, limits."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.conftest import BOUND
from tests.data_plane.conftest import Bench, worker_bench
from yarl import URL

from leaseway.data_plane.core.artifacts.index import StoredArtifact
from leaseway.identity.authenticator import authenticator_for
from leaseway.identity.keys import add_key, make_key
from leaseway.identity.principal import Role
from leaseway.spec.auth import Auth
from leaseway.telemetry import http_listener
from leaseway.telemetry.http_listener import ArtifactsListener
from leaseway.wire import bounds
from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.errors import Fault, Reason

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))
OWNER = {"tenant": "acme", "session": "s1"}


class Page:
    """An HTTP client for artifacts."""

    def __init__(self, bench: Bench, base: str, http: aiohttp.ClientSession) -> None:
        self.bench = bench
        self.base = base
        self._http = http

    async def kept(
        self, mime: str = "image/png", kind: str = "image", user: str = "", number: int = 0
    ) -> str:
        """Make a call that returns an item; return its reference."""
        item = {"type": kind, "mimeType": mime, "data": base64.b64encode(PNG).decode()}
        caller = self.bench.caller()
        call_id = await caller.begin("shots", **OWNER, user=user)
        await self.bench.wait_for_calls()
        self.bench.servers.opened[number].calls[0].answer(json.dumps({"content": [item]}).encode())
        await caller.result(call_id)
        return str(json.loads(caller.payloads[call_id])["content"][0]["artifact"])

    async def request(
        self,
        path: str,
        query: dict[str, str] | None = None,
        *,
        method: str = "GET",
        headers: dict[str, str] | None = None,
    ) -> tuple[int, bytes, Any]:
        """Request a path without normalizing it; return status, body and headers."""
        words = "&".join(f"{name}={value}" for name, value in (query or {}).items())
        url = URL(f"{self.base}/{path}{'?' if words else ''}{words}", encoded=True)
        async with self._http.request(method, url, headers=headers) as answer:
            return answer.status, await answer.read(), answer.headers


@pytest.fixture(params=[None])
async def page(request: pytest.FixtureRequest) -> AsyncIterator[Page]:
    """A worker that serves artifacts over HTTP, with a key or without."""
    key = request.param
    admit = authenticator_for(key).for_role(Role.CALLER) if key else None
    listener = ArtifactsListener(Endpoint("127.0.0.1", 0), admit)
    async with worker_bench(artifacts_http=listener) as bench, aiohttp.ClientSession() as http:
        await bench.hold("shots")
        yield Page(bench, f"http://{listener.endpoint}", http)


with_key = pytest.mark.parametrize("page", ["a-key"], indirect=True)


async def test_an_image_is_served_to_its_owner_with_security_headers(page: Page) -> None:
    ref = await page.kept()
    status, body, headers = await page.request(ref, OWNER)
    assert (status, body) == (200, PNG)
    assert headers["Content-Type"] == "image/png"
    assert headers["Content-Length"] == str(len(PNG))
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert headers["Content-Disposition"].startswith("inline; filename=")
    assert headers["Cache-Control"].startswith("private, max-age=86")


async def test_the_owner_may_be_sent_in_headers(page: Page) -> None:
    ref = await page.kept()
    named = {"X-Leaseway-Tenant": "acme", "X-Leaseway-Session": "s1"}
    assert (await page.request(ref, headers=named))[:2] == (200, PNG)


async def test_an_image_of_a_server_that_acts_for_users_is_served_for_its_user_only(
    page: Page,
) -> None:
    await page.bench.hold("shots", auth=Auth("authorization_code", "user"))
    number = len(page.bench.servers.opened)
    ref = await page.kept(user="anna", number=number)
    statuses = {
        user: (await page.request(ref, {**OWNER, "user": user}))[0] for user in ("anna", "bob", "")
    }
    assert statuses == {"anna": 200, "bob": 404, "": 404}


async def test_head_returns_the_headers_of_get(page: Page) -> None:
    ref = await page.kept()
    status, body, headers = await page.request(ref, OWNER, method="HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", str(len(PNG)))
    assert headers["Content-Type"] == "image/png"


@pytest.mark.parametrize(
    ("wanted", "status", "begin", "end"),
    [
        ("bytes=0-9", 206, 0, 10),
        ("bytes=200-", 206, 200, None),
        ("bytes=-8", 206, -8, None),
        ("bytes=0-", 200, 0, None),
        ("bytes=0-99999", 200, 0, None),
        ("bytes=0-1,4-5", 200, 0, None),
        ("lines=1-2", 200, 0, None),
    ],
)
async def test_a_requested_range_is_sent(
    page: Page, wanted: str, status: int, begin: int, end: int | None
) -> None:
    ref = await page.kept()
    answer = await page.request(ref, OWNER, headers={"Range": wanted})
    assert answer[:2] == (status, PNG[begin:end])
    if status == 206:
        first = begin % len(PNG)
        last = first + len(answer[1]) - 1
        assert answer[2]["Content-Range"] == f"bytes {first}-{last}/{len(PNG)}"


async def test_a_range_behind_the_end_is_refused(page: Page) -> None:
    ref = await page.kept()
    status, body, headers = await page.request(ref, OWNER, headers={"Range": "bytes=999-"})
    assert (status, body, headers["Content-Range"]) == (416, b"", f"bytes */{len(PNG)}")


@pytest.mark.parametrize(
    ("kind", "mime", "served", "place"),
    [
        ("image", "image/png", "image/png", "inline"),
        ("audio", "audio/wav", "audio/wav", "inline"),
        ("image", "image/svg+xml", "image/svg+xml", "attachment"),
        ("image", "image/x-made-up", "image/x-made-up", "attachment"),
        ("image", "text/html", "application/octet-stream", "attachment"),
        ("audio", "application/javascript", "application/octet-stream", "attachment"),
        ("image", "image/png\r\nX-Evil: 1", "application/octet-stream", "attachment"),
    ],
)
async def test_only_images_and_sounds_keep_their_type(
    page: Page, kind: str, mime: str, served: str, place: str
) -> None:
    ref = await page.kept(mime, kind)
    status, body, headers = await page.request(ref, OWNER)
    assert (status, body, headers["Content-Type"]) == (200, PNG, served)
    assert headers["Content-Disposition"].startswith(place)
    assert "X-Evil" not in headers


async def test_a_foreign_host_name_is_refused(page: Page) -> None:
    ref = await page.kept()
    status, _, _ = await page.request(ref, OWNER, headers={"Host": "evil.example"})
    assert status == 403


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"tenant": "acme"},
        {"session": "s1"},
        {"tenant": "acme", "session": "s2"},
        {"tenant": "other", "session": "s1"},
    ],
)
async def test_an_artifact_of_another_owner_is_like_a_missing_one(
    page: Page, query: dict[str, str]
) -> None:
    ref = await page.kept()
    missing = ref.replace(ref[-8:-4], "0000" if ref[-8:-4] != "0000" else "1111")
    theirs, never = await page.request(ref, query), await page.request(missing, query)
    assert theirs[0] == never[0] == 404
    assert theirs[1].replace(ref.encode(), b"") == never[1].replace(missing.encode(), b"")
    assert b"PNG" not in theirs[1]


@pytest.mark.parametrize(
    "path",
    [
        "",
        "artifacts",
        "artifacts/",
        "metrics",
        "etc/passwd",
        "../etc/passwd",
        "artifacts/../../../../etc/passwd",
        "artifacts/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "artifacts/..%2f..%2f..%2fetc%2fpasswd",
        "artifacts//etc/passwd",
        "artifacts/%00",
        "artifacts/mcp/shots/echo/%252e%252e/x.png",
        "artifacts/" + "a" * 4000,
        "{ref}/",
        "{ref}%00",
        "{ref}/../../x",
        "x/../{ref}x",
    ],
)
async def test_no_path_escapes_the_artifacts(page: Page, path: str) -> None:
    ref = await page.kept()
    status, body, _ = await page.request(path.format(ref=ref), OWNER)
    assert status == 404
    assert b"root:" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_only_get_and_head_are_allowed(page: Page, method: str) -> None:
    ref = await page.kept()
    status, _, headers = await page.request(ref, OWNER, method=method)
    assert status == 405
    assert headers["Allow"] == "GET,HEAD"


@with_key
@pytest.mark.parametrize("sent", [None, "Bearer other", "a-key", "Basic a-key", "Bearer a-ké"])
async def test_without_the_key_every_path_is_unauthorized(page: Page, sent: str | None) -> None:
    ref = await page.kept()
    headers = {"Authorization": sent} if sent is not None else None
    for path in (ref, "artifacts/none", "elsewhere"):
        status, body, answered = await page.request(path, OWNER, headers=headers)
        assert (status, answered["WWW-Authenticate"]) == (401, 'Bearer realm="leaseway"')
        assert b"LEASEWAY_KEY" in body


@with_key
async def test_with_the_key_an_artifact_is_served(page: Page) -> None:
    ref = await page.kept()
    answer = await page.request(ref, OWNER, headers={"Authorization": "Bearer a-key"})
    assert answer[:2] == (200, PNG)


async def test_an_artifact_removed_while_it_is_sent_aborts_the_connection(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = await page.kept()
    store = page.bench.worker.artifacts

    async def half(artifact: StoredArtifact, begin: int, end: int) -> AsyncIterator[bytes]:
        yield PNG[:100]
        raise Fault(Reason.ARTIFACT_LOST, "It is gone.")

    monkeypatch.setattr(store, "read_parts", half)
    with pytest.raises(aiohttp.ClientPayloadError):
        await page.request(ref, OWNER)
    monkeypatch.undo()
    assert (await page.request(ref, OWNER))[1] == PNG


async def test_too_many_readers_get_a_retry_delay(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "ARTIFACT_READERS", 0)
    ref = await page.kept()
    status, _, headers = await page.request(ref, OWNER)
    assert (status, headers["Retry-After"]) == (503, "1")


async def test_connections_are_limited(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "_MAX_CONNECTIONS", 2)
    host, _, port = page.base.removeprefix("http://").partition(":")
    idle = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
    async with asyncio.timeout(BOUND):
        assert await idle[0][0].read() == b"", "the oldest makes room"
    for _, writer in idle:
        writer.close()


async def test_the_worker_advertises_its_artifacts_url(page: Page) -> None:
    assert dict(page.bench.first_hello.labels) == {
        "zone": "a",
        "artifacts-http": f"{page.base}/artifacts/",
    }


async def test_a_port_in_use_is_reported_with_its_option() -> None:
    taken = ArtifactsListener(Endpoint("127.0.0.1", 0), None)
    with pytest.raises(OSError, match=r"Cannot serve artifacts on .* --artifacts-http"):
        ArtifactsListener(taken.endpoint, None)
    taken.close()


def test_serving_other_machines_requires_a_key() -> None:
    with pytest.raises(ValueError, match="LEASEWAY_KEY"):
        ArtifactsListener(Endpoint("192.0.2.1", 0), None)


async def test_a_credential_of_a_tenant_reads_that_tenants_artifacts_only(tmp_path: Path) -> None:
    headers = {}
    for tenant in ("acme", "rival"):
        key, record = make_key(roles=[Role.CALLER], tenant=tenant, agent=None, now=0.0)
        add_key(tmp_path / "keys.json", record)
        headers[tenant] = {"Authorization": f"Bearer {key}"}
    admit = authenticator_for(None, keys=tmp_path / "keys.json").for_role(Role.CALLER)
    listener = ArtifactsListener(Endpoint("127.0.0.1", 0), admit)
    async with worker_bench(artifacts_http=listener) as bench, aiohttp.ClientSession() as http:
        await bench.hold("shots")
        page = Page(bench, f"http://{listener.endpoint}", http)
        ref = await page.kept()
        session = {"session": OWNER["session"]}
        owner = OWNER["tenant"]
        assert owner == "acme"
        assert (await page.request(ref, session, headers=headers["acme"]))[0] == 200
        assert (await page.request(ref, OWNER, headers=headers["acme"]))[0] == 200
        assert (await page.request(ref, OWNER, headers=headers["rival"]))[0] == 403
        others = await page.request(ref, session, headers=headers["rival"])
        missing = await page.request(f"{ref[:-8]}00000000", session, headers=headers["rival"])
        assert others[0] == missing[0] == 404
