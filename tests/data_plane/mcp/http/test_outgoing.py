"""Proxies and cookies of connections over HTTP, SSE and websockets."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import importlib
import json
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from http.cookies import SimpleCookie
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.conftest import BOUND
from tests.data_plane.mcp.conftest import Bench
from tests.forward_proxy import ForwardProxy
from yarl import URL

from leaseway.data_plane.mcp.host import http_client
from leaseway.data_plane.mcp.instance import Instance
from leaseway.data_plane.outgoing import Cookies
from leaseway.spec.references import Value

CLEAN = {name: text for name, text in os.environ.items() if not name.lower().endswith("_proxy")}
RawServer = Any  # of tests/servers/stream_raw.py, which has no types


@pytest.fixture
async def proxy() -> AsyncIterator[ForwardProxy]:
    async with ForwardProxy().running() as proxy:
        yield proxy


@pytest.fixture
async def port(bench: Bench) -> AsyncIterator[str]:
    async with bench.serving("http_raw", "--legacy") as address:
        yield address.rpartition(":")[2]


@pytest.fixture
async def raw() -> AsyncIterator[RawServer]:
    server = importlib.import_module("tests.servers.stream_raw").RawServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def literal(**parts: str) -> dict[str, Value]:
    return {name: Value("literal", text) for name, text in parts.items()}


async def test_the_proxy_of_the_environment_is_used(
    bench: Bench, proxy: ForwardProxy, port: str
) -> None:
    spec = bench.http_spec(f"http://mcp.internal:{port}/mcp")
    instance = await bench.start(spec, {**CLEAN, "HTTP_PROXY": proxy.url})
    assert await bench.text(instance, "echo", {"text": "on"}) == "on"
    assert {seen.partition(" ")[2] for seen in proxy.seen} == {f"http://mcp.internal:{port}/mcp"}


@pytest.mark.parametrize("transport", ["sse", "websocket"])
async def test_streams_and_websockets_use_the_proxy(
    bench: Bench, proxy: ForwardProxy, raw: RawServer, transport: str
) -> None:
    port = raw.base.rpartition(":")[2]
    path = f"http://mcp.internal:{port}/sse/good" if transport == "sse" else ""
    spec = bench.at(transport, path or f"ws://mcp.internal:{port}/ws/good", protocol="legacy")
    instance = await bench.start(spec, {**CLEAN, "all_proxy": proxy.url})
    assert await bench.text(instance, "say", {"text": "on"}) == "on"
    assert proxy.seen


def certificate(folder: Path) -> Path:
    """Write a key and a certificate of mcp.internal that it signs itself; return the file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mcp.internal")])
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=36_500))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("mcp.internal")]), False)
        .sign(key, hashes.SHA256())
    )
    file = folder / "mcp.pem"
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(pem, form, serialization.NoEncryption())
    file.write_bytes(secret + signed.public_bytes(pem))
    return file


async def test_an_https_server_is_reached_through_a_tunnel(
    bench: Bench, balancer: Balancer, tmp_path: Path
) -> None:
    file = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    app = web.Application()
    app.router.add_post("/mcp", balancer.post)
    trusting = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(file)))
    async with (
        ForwardProxy("user:p4ss-w0rd").running() as proxy,
        aiohttp.ClientSession(
            connector=trusting, cookie_jar=aiohttp.DummyCookieJar()
        ) as bench.http,
    ):
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port = runner.addresses[0][1]
        spec = bench.http_spec(f"https://mcp.internal:{port}/mcp", protocol="legacy")
        address = proxy.url.replace("//", "//user:p4ss-w0rd@")
        instance = await bench.start(spec, {**CLEAN, "https_proxy": address})
        assert await cookies(bench, instance) == {"AWSALB": "server-1"}
        assert {*proxy.seen} == {f"CONNECT mcp.internal:{port}"}
        fault = await bench.fails(spec, environment={**CLEAN, "https_proxy": proxy.url})
        assert "its proxy answered with HTTP status 407" in fault.message
        await instance.close()
        await runner.cleanup()


async def test_servers_of_this_machine_and_those_of_the_proxy_none_are_reached_directly(
    bench: Bench, proxy: ForwardProxy, port: str
) -> None:
    environment = {**CLEAN, "HTTP_PROXY": proxy.url}
    await bench.start(bench.http_spec(f"http://127.0.0.1:{port}/mcp"), environment)
    url = f"http://mcp.invalid:{port}/mcp"
    await bench.fails(bench.http_spec(url), environment={**environment, "NO_PROXY": "invalid"})
    await bench.fails(bench.http_spec(url, proxy=literal(url="none")), environment=environment)
    assert proxy.seen == []
    await bench.start(bench.http_spec(url), environment)
    assert proxy.seen


async def test_the_proxy_of_the_entry_gets_its_credential_and_the_server_does_not(
    bench: Bench, proxy: ForwardProxy, port: str
) -> None:
    proxy.credential = "user:pa55-w0rd"
    parts = {**literal(url=proxy.url, username="user"), "password": Value("env", "PROXY_WORD")}
    spec = bench.http_spec(f"http://mcp.internal:{port}/mcp", proxy=parts)
    environment = {**CLEAN, "HTTP_PROXY": "http://127.0.0.1:1", "PROXY_WORD": "pa55-w0rd"}
    instance = await bench.start(spec, environment)
    assert await bench.text(instance, "echo", {"text": "on"}) == "on"
    fault = await bench.fails(spec, environment={**environment, "PROXY_WORD": "wr0ng-w0rd"})
    assert "HTTP status 407" in fault.message
    assert "its proxy requires a credential" in fault.message
    assert "w0rd" not in fault.message
    values = bench.instances[-1].resolved_values
    assert values is not None
    assert "wr0ng-w0rd" in values.secrets


async def test_a_proxy_that_does_not_run_is_named(bench: Bench, port: str) -> None:
    spec = bench.http_spec(
        f"http://mcp.internal:{port}/mcp", proxy=literal(url="http://127.0.0.1:1")
    )
    fault = await bench.fails(spec, environment=CLEAN)
    assert "its proxy could not be reached (Connection refused)" in fault.message


async def test_a_socks_proxy_is_refused_with_advice(bench: Bench) -> None:
    spec = bench.http_spec("http://mcp.internal/mcp")
    fault = await bench.fails(spec, environment={**CLEAN, "ALL_PROXY": "socks5://proxy:1080"})
    assert "http_proxy has the scheme socks5, which is not supported" in fault.message


class Balancer:
    """A load balancer with affinity: a request without its cookie reaches another server."""

    def __init__(self) -> None:
        self.opened = 0
        self.strangers = 0

    async def post(self, request: web.Request) -> web.StreamResponse:
        """Answer a message, or refuse it as the wrong server."""
        message = await request.json()
        method, key = message["method"], message.get("id")
        if method == "initialize":
            self.opened += 1
            info = {"capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "0"}}
            response = self.result(key, {"protocolVersion": "2025-06-18", **info})
            response.headers["mcp-session-id"] = f"session-{self.opened}"
            response.set_cookie("AWSALB", f"server-{self.opened}", path="/")
            return response
        if key is None:
            return web.Response(status=202)
        number = request.headers.get("mcp-session-id", "").rpartition("-")[2]
        if request.cookies.get("AWSALB") != f"server-{number}":
            self.strangers += 1
            return web.Response(status=404)
        if method == "tools/list":
            return self.result(key, {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]})
        said = json.dumps(dict(request.cookies))
        return self.result(key, {"content": [{"type": "text", "text": said}]})

    def result(self, key: object, result: dict[str, Any]) -> web.Response:
        """Return a result."""
        return web.json_response({"jsonrpc": "2.0", "id": key, "result": result})


@pytest.fixture
async def balancer() -> Balancer:
    return Balancer()


@pytest.fixture
async def balanced(balancer: Balancer) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/mcp", balancer.post)
    async with TestServer(app) as running:
        yield str(running.make_url("/mcp"))


async def cookies(bench: Bench, instance: Instance) -> dict[str, str]:
    return dict(json.loads(await bench.text(instance, "t")))


@pytest.mark.parametrize("leased", [True, False])
async def test_each_instance_keeps_its_own_cookies(
    bench: Bench, balancer: Balancer, balanced: str, leased: bool
) -> None:
    spec = bench.http_spec(
        balanced,
        truely_stateless=not leased,
        headers=literal(Cookie="tenant=acme"),
        protocol="legacy",
    )
    first, second = await bench.start(spec), await bench.start(spec)
    for _ in range(3):
        assert await cookies(bench, first) == {"tenant": "acme", "AWSALB": "server-1"}
        assert await cookies(bench, second) == {"tenant": "acme", "AWSALB": "server-2"}
    assert (balancer.opened, balancer.strangers) == (2, 0)


async def test_cookies_of_a_stream_are_sent_with_posts(bench: Bench, raw: RawServer) -> None:
    instance = await bench.start(bench.at("sse", f"http://{raw.base}/sse/good", protocol="legacy"))
    assert await bench.text(instance, "say", {"text": "on"}) == "on"
    assert {*raw.cookies} == {"affinity=one"}


async def test_cookies_of_a_websocket_are_sent_with_the_next_handshake(
    bench: Bench, raw: RawServer
) -> None:
    await bench.start(bench.at("websocket", f"ws://{raw.base}/ws/strict"))
    assert raw.cookies == [None, "affinity=one"]


def response_with(url: str, **cookies: str) -> Any:
    """Return a response, as far as `Cookies.store` reads it."""
    return SimpleNamespace(url=URL(url), cookies=SimpleCookie(cookies))


async def test_cookies_stay_at_their_origin_and_are_bounded() -> None:
    jar = Cookies()
    jar.store(response_with("https://a.example/mcp", a="1"))
    for elsewhere in ("http://a.example/mcp", "https://a.example:8443/mcp", "https://b.a.example/"):
        headers: dict[str, str] = {}
        jar.add_to(headers, URL(elsewhere))
        assert headers == {}
    jar.store(response_with("https://a.example/mcp", **{f"c{n}": "1" for n in range(100)}))
    jar.store(response_with("https://a.example/mcp", a="x" * 5000))
    headers = {"cookie": "c1=mine"}
    jar.add_to(headers, URL("https://a.example/mcp"))
    pairs = headers["cookie"].split("; ")
    assert len(pairs) == 64
    assert pairs[0] == "c1=mine"
    assert "a=1" in pairs
    jar.clear()
    headers = {}
    jar.add_to(headers, URL("https://a.example/mcp"))
    assert headers == {}


async def test_names_whose_name_servers_do_not_answer_hold_up_no_other_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proceed, look_up = threading.Event(), socket.getaddrinfo

    def slow(host: str, *where: Any, **wanted: Any) -> Any:
        if host.startswith("silent"):
            proceed.wait(BOUND)
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return look_up("127.0.0.1", *where, **wanted)

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text="here")

    async def fails(http: aiohttp.ClientSession, host: str) -> None:
        with contextlib.suppress(aiohttp.ClientError):
            await http.get(f"http://{host}/")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    app = web.Application()
    app.router.add_get("/", answer)
    async with TestServer(app) as server, http_client() as http, asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(fails(http, f"silent-{number}.example"))
        await asyncio.sleep(0)  # they ask first
        try:
            async with asyncio.timeout(BOUND / 2):
                response = await http.get(f"http://other.example:{server.port}/")
            assert await response.text() == "here"
        finally:
            proceed.set()
