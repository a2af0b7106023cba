"""`http_get` with a real server: pages, redirects, limits and DNS rebinding."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from aiohttp import web
from tests.conftest import BOUND

from leaseway.data_plane.kit.addresses import parse_hosts
from leaseway.data_plane.kit.web import MAX_BODY, Resolve, http_get
from leaseway.server import ToolError, ToolResult

Get = Callable[..., Awaitable[ToolResult]]
_SOONER = 20.0
"""Seconds, fewer than those after which a request that hangs ends."""


async def _page(request: web.Request) -> web.StreamResponse:
    path = request.path
    if path == "/json":
        return web.json_response({"host": request.host, "cookie": request.headers.get("Cookie")})
    if path == "/big":
        return web.Response(text="x" * (MAX_BODY + 1))
    if path == "/binary":
        return web.Response(body=b"\x00\x01", content_type="image/png")
    if path == "/packed":
        return web.Response(body=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
    if path == "/loop":
        return web.Response(status=302, headers={"Location": "/loop"})
    if path == "/there":
        return web.Response(status=301, headers={"Location": "/json", "Set-Cookie": "session=1"})
    return web.Response(status=404, text="nothing here")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """A server on 127.0.0.1 only."""
    application = web.Application()
    application.router.add_get("/{path:.*}", _page)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert runner.addresses
    yield runner.addresses[0][1]
    await runner.cleanup()


async def get(url: str, resolve: Resolve | None = None, hosts: Sequence[str] = ()) -> ToolResult:
    function = http_get(parse_hosts(["127.0.0.1", *hosts]), resolve).function
    assert function is not None
    async with asyncio.timeout(BOUND):
        result = await function({"url": url})
    assert isinstance(result, ToolResult)
    return result


async def test_a_page_has_its_status_and_content_type(port: int) -> None:
    result = await get(f"http://127.0.0.1:{port}/json#part")
    assert result.structured is not None
    assert result.structured["status"] == 200
    assert result.structured["content_type"] == "application/json"
    assert result.structured["url"] == f"http://127.0.0.1:{port}/json"


async def test_redirects_are_followed_without_cookies_up_to_a_limit(port: int) -> None:
    result = await get(f"http://127.0.0.1:{port}/there")
    assert '"cookie": null' in result.text
    with pytest.raises(ToolError, match="more than 5 redirects"):
        await get(f"http://127.0.0.1:{port}/loop")


async def test_pages_are_truncated_and_must_be_text(port: int) -> None:
    big = await get(f"http://127.0.0.1:{port}/big")
    assert big.structured is not None
    assert (len(big.structured["body"]), big.structured["truncated"]) == (MAX_BODY, True)
    for path, words in (("binary", "no text but image/png"), ("packed", "compressed")):
        with pytest.raises(ToolError, match=words):
            await get(f"http://127.0.0.1:{port}/{path}")


async def test_an_error_status_is_an_error_with_its_body(port: int) -> None:
    result = await get(f"http://127.0.0.1:{port}/nothing")
    assert result.is_error
    assert result.text == "127.0.0.1 responded with 404.\nnothing here"


async def test_names_whose_lookup_hangs_hold_up_no_others(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    proceed, look_up = threading.Event(), socket.getaddrinfo

    def slow(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host == "slow.test":
            proceed.wait(BOUND)
        return look_up("127.0.0.1", *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    function = http_get(parse_hosts(["127.0.0.1", "slow.test", "quick.test"])).function
    assert function is not None
    hung = [
        asyncio.ensure_future(function({"url": f"http://slow.test:{port}/json"}))
        for _ in range(33)  # more threads than a loop has
    ]
    try:
        async with asyncio.timeout(_SOONER):
            # A task as well, so that it comes after them.
            result = await asyncio.ensure_future(function({"url": f"http://quick.test:{port}/"}))
        assert "quick.test responded with 404" in result.text
    finally:
        proceed.set()
        await asyncio.gather(*hung)


async def test_a_lookup_that_nobody_waits_for_any_more_counts_until_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proceed = threading.Event()
    begun: list[str] = []

    def slow(host: str, _port: int, **_kind: Any) -> list[Any]:
        begun.append(host)
        proceed.wait(BOUND)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1))]

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    function = http_get(parse_hosts(["127.0.0.1", "slow.test"])).function
    assert function is not None
    url = "http://slow.test:1/"
    given_up = [asyncio.ensure_future(function({"url": url})) for _ in range(64)]
    try:
        async with asyncio.timeout(BOUND):
            while len(begun) < 64:
                await asyncio.sleep(0.01)
        for call in given_up:
            call.cancel()
        await asyncio.wait(given_up)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await function({"url": url})
        assert len(begun) == 64
    finally:
        proceed.set()


async def test_a_name_is_resolved_once_for_each_hop(port: int) -> None:
    resolved: list[str] = []

    async def rebinding(host: str, _port: int) -> Sequence[str]:
        resolved.append(host)
        return ["127.0.0.1"] if len(resolved) == 1 else ["127.0.0.2"]

    result = await get(f"http://rebind.test:{port}/json", rebinding)
    assert f'"host": "rebind.test:{port}"' in result.text
    assert resolved == ["rebind.test"]
    resolved.clear()
    with pytest.raises(ToolError, match="has an address that is not allowed"):
        await get(f"http://rebind.test:{port}/there", rebinding)  # the second hop resolves again
    assert resolved == ["rebind.test", "rebind.test"]


@pytest.mark.parametrize("private", ["169.254.169.254", "::1", "::ffff:10.0.0.1", "fe80::1%1", "x"])
async def test_a_host_with_one_forbidden_address_is_rejected(private: str) -> None:
    async def both(_host: str, _port: int) -> Sequence[str]:
        return ["8.8.8.8", private]

    with pytest.raises(ToolError, match="has an address that is not allowed"):
        await get("http://both.test/", both)


async def test_a_host_without_address_or_server_is_an_error(port: int) -> None:
    async def none(_host: str, _port: int) -> Sequence[str]:
        raise OSError("no such name")

    with pytest.raises(ToolError, match="has no address"):
        await get("http://none.test/", none)
    with pytest.raises(ToolError, match=r"The request to 127\.0\.0\.1 failed"):
        await get("http://127.0.0.1:1/")


async def test_with_allowed_names_all_other_hosts_are_rejected(port: int) -> None:
    async def here(_host: str, _port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    await get(f"http://api.test:{port}/json", here, ["api.test"])
    with pytest.raises(ToolError, match=r"The host 'other.test' is not allowed; allowed are: api"):
        await get(f"http://other.test:{port}/json", here, ["api.test"])
