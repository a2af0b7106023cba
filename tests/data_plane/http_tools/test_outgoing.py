"""Proxies and cookies of HTTP tools."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.certificates import Authority
from tests.conftest import BOUND
from tests.forward_proxy import ForwardProxy

from leaseway.data_plane.core.calls.call import Outcome, ToolRequest
from leaseway.data_plane.kinds.http_api.instance import HttpInstance
from leaseway.data_plane.kinds.http_api.rendering import Renderers
from leaseway.data_plane.kinds.opening import Opening
from leaseway.data_plane.kinds.values import read_references
from leaseway.data_plane.mcp.host import Host, http_client
from leaseway.spec.kinds.http_tools import HttpTool
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey
from leaseway.spec.references import Value


class Listener:
    """Ignores what an instance reports."""

    def on_closed(self, *_: Any) -> None:
        """Ignored."""

    on_tools_changed = on_disconnected = on_warning = on_warning_cleared = on_closed
    on_notification = find_caller = on_closed


async def visit(request: web.Request) -> web.Response:
    """Answer with the cookies of a request, and set one."""
    response = web.json_response(dict(request.cookies))
    response.set_cookie("login", "alice")
    return response


@pytest.fixture
async def port() -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_get("/visit", visit)
    async with TestServer(app) as server:
        assert server.port is not None
        yield server.port


async def calls(
    url: str, times: int, environment: dict[str, str], **spec: Any
) -> list[tuple[Any, Outcome]]:
    """Return the JSON and the outcome of each call of a new instance."""
    tools = (HttpTool("visit", "GET", "/visit"),)
    server = server_spec(VariantKey("api"), "http_api", url=url, http_tools=tools, **spec)
    found = []
    async with http_client() as http:
        opening = Opening(instance_id="i", listener=Listener(), read_values=read_references)
        renderers = Renderers(environment)
        instance = HttpInstance(
            server, Host(environment=environment, http=http), opening, renderers
        )
        await instance.start()
        for _ in range(times):
            done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            instance.call(ToolRequest("visit", b"", b"{}"), done.set_result)
            async with asyncio.timeout(BOUND):
                outcome = await done
            text = json.loads(outcome.payload)["content"][0]["text"] if outcome.payload else "null"
            found.append((json.loads(text), outcome))
        await instance.close()
        renderers.close()
    return found


async def test_requests_use_the_proxy_of_the_environment_or_of_the_entry(port: int) -> None:
    async with ForwardProxy().running() as proxy:
        url, target = f"http://api.internal:{port}", f"GET http://api.internal:{port}/visit"
        [(seen, _)] = await calls(url, 1, {"http_proxy": proxy.url})
        assert seen == {}
        await calls(url, 1, {}, proxy={"url": Value("literal", proxy.url)})
        assert proxy.seen == [target, target]
        direct = {"url": Value("literal", "none")}
        await calls(f"http://127.0.0.1:{port}", 1, {"http_proxy": proxy.url}, proxy=direct)
        assert len(proxy.seen) == 2


async def test_a_proxy_that_does_not_run_is_named(port: int) -> None:
    [(_, outcome)] = await calls(f"http://x:{port}", 1, {"http_proxy": "http://127.0.0.1:1"})
    assert outcome.fault is not None
    assert outcome.fault.started == "no"
    assert "its proxy could not be reached" in outcome.fault.message


async def test_a_certificate_of_an_unknown_authority_says_what_helps(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*Authority("mine").issue(tmp_path, "api"))
    server = TestServer(web.Application())
    await server.start_server(ssl=context)
    [(_, outcome)] = await calls(f"https://127.0.0.1:{server.port}", 1, {})
    await server.close()
    assert outcome.fault is not None
    assert "its certificate is not trusted (" in outcome.fault.message
    assert "SSL_CERT_FILE of the worker" in outcome.fault.message


@pytest.mark.parametrize(
    ("shared", "second"), [(True, {}), (False, {"login": "alice"})], ids=["shared", "leased"]
)
async def test_only_leased_instances_keep_cookies(port: int, shared: bool, second: Any) -> None:
    url = f"http://127.0.0.1:{port}"
    answers = await calls(url, 2, {}, truely_stateless=shared)
    assert [seen for seen, _ in answers] == [{}, second]
