"""The HTTP server for Prometheus: responses, authentication and limits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.conftest import BOUND

from leaseway.identity.authenticator import authenticator_for
from leaseway.identity.principal import Role
from leaseway.telemetry.prometheus_http import MetricsListener, Page, serve_metrics
from leaseway.wire.channels.endpoint import Endpoint

GET = b"GET /metrics HTTP/1.1\r\nHost: localhost:9\r\nConnection: close\r\n"


@asynccontextmanager
async def serving(
    key: str | None = None,
    page: Page = lambda: lambda _: (b"up 1\n", "text/plain; x=1"),
    **limits: float,
) -> AsyncIterator[MetricsListener]:
    admit = authenticator_for(key).for_role(Role.OPERATOR) if key else None
    listener = MetricsListener(Endpoint("127.0.0.1", 0), admit)
    async with serve_metrics(listener, page, **limits):
        yield listener


async def ask(listener: MetricsListener, request: bytes) -> tuple[int, str]:
    async with asyncio.timeout(BOUND):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.endpoint.port)
        writer.write(request)
        try:
            answer = (await reader.read()).decode()
        except ConnectionError:  # aborted before it read the whole request
            answer = ""
        writer.close()
    return int(answer.split()[1]) if answer else 0, answer


async def test_the_page_is_served_with_its_type() -> None:
    async with serving() as listener:
        status, answer = await ask(listener, GET + b"\r\n")
        assert status == 200
        assert "Content-Type: text/plain; x=1\r\n" in answer
        assert "Content-Length: 5\r\n" in answer
        assert answer.endswith("\r\n\r\nup 1\n")
        assert listener.url == f"http://127.0.0.1:{listener.endpoint.port}/metrics"
        assert (await ask(listener, b"GET /metrics?x=1 HTTP/1.0\r\n\r\n"))[0] == 200


@pytest.mark.parametrize(
    ("header", "accept"),
    [
        (b"", ""),
        (b"ACCEPT:  application/openmetrics-text \r\n", "application/openmetrics-text"),
    ],
)
async def test_the_accept_header_is_passed_to_the_page(header: bytes, accept: str) -> None:
    async with serving(page=lambda: lambda accept: (repr(accept).encode(), "x/y")) as listener:
        _, answer = await ask(listener, GET + header + b"\r\n")
        assert answer.endswith(f"\r\n\r\n{accept!r}")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET / HTTP/1.1", 404),
        (b"GET /metrics/x HTTP/1.1", 404),
        (b"POST /metrics HTTP/1.1", 405),
        (b"HEAD /metrics HTTP/1.1", 405),
        (b"GET /metrics HTTP/2", 400),
        (b"nonsense", 400),
    ],
)
async def test_other_requests_are_rejected(request_line: bytes, status: int) -> None:
    async with serving() as listener:
        found, answer = await ask(
            listener, request_line + b"\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        )
        assert found == status, answer


@pytest.mark.parametrize("host", [b"evil.example", b"localhost.evil.example", b"["])
async def test_a_foreign_host_header_is_rejected_without_a_key(host: bytes) -> None:
    request = b"GET /metrics HTTP/1.1\r\nConnection: close\r\nHost: " + host + b"\r\n"
    async with serving() as listener:
        assert (await ask(listener, request + b"\r\n"))[0] == 403
    async with serving("a-key") as listener:
        request += b"Authorization: Bearer a-key\r\n\r\n"
        assert (await ask(listener, request))[0] == 200


async def test_an_overlong_head_is_rejected() -> None:
    async with serving() as listener:
        status, _ = await ask(listener, GET + b"X: " + b"x" * 100_000 + b"\r\n\r\n")
        assert status in (400, 0)  # the response is lost if the request was still being sent


async def test_a_configured_key_is_required() -> None:
    async with serving("secret-key") as listener:
        for header in (b"", b"Authorization: Bearer other\r\n", b"Authorization: secret-key\r\n"):
            status, answer = await ask(listener, GET + header + b"\r\n")
            assert status == 401
            assert 'WWW-Authenticate: Bearer realm="leaseway"\r\n' in answer
            assert "secret-key" not in answer
        status, _ = await ask(listener, GET + b"authorization: Bearer secret-key\r\n\r\n")
        assert status == 200


@pytest.mark.parametrize("sent", [b"", b"GET /met"], ids=["silent", "slow"])
async def test_a_connection_without_a_request_is_aborted_and_delays_no_other(sent: bytes) -> None:
    async with serving(idle=1.0) as listener:
        slow = asyncio.create_task(ask(listener, sent))
        assert (await ask(listener, GET + b"\r\n"))[0] == 200
        assert await slow == (0, "")


async def test_a_connection_may_carry_several_requests() -> None:
    async with serving() as listener, asyncio.timeout(BOUND):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.endpoint.port)
        for _ in range(3):
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await reader.readuntil(b"up 1\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_silent_connections_are_limited_and_lock_no_client_out() -> None:
    async with serving() as listener, asyncio.timeout(BOUND):
        address = ("127.0.0.1", listener.endpoint.port)
        slow = [await asyncio.open_connection(*address) for _ in range(300)]
        assert (await ask(listener, GET + b"\r\n"))[0] == 200
        cut_off = slow[:-256]
        for reader, _ in cut_off:  # long before their timeout
            assert await _ends(reader)
        for _, writer in slow:
            writer.close()


async def _ends(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


def test_a_public_address_requires_a_key() -> None:
    with pytest.raises(ValueError, match="LEASEWAY_KEY"):
        MetricsListener(Endpoint("0.0.0.0", 0), None)
    MetricsListener(
        Endpoint("0.0.0.0", 0), authenticator_for("key").for_role(Role.OPERATOR)
    ).close()


def test_a_used_port_is_reported() -> None:
    first = MetricsListener(Endpoint("127.0.0.1", 0), None)
    with pytest.raises(OSError, match=f"Cannot serve metrics on {first.endpoint}: .* --metrics"):
        MetricsListener(first.endpoint, None)
    first.close()


async def test_a_client_that_never_reads_is_aborted() -> None:
    size = 64 << 20
    async with (
        serving(page=lambda: lambda _: (b"x" * size, "x/y"), patience=0.5) as listener,
        asyncio.timeout(BOUND),
    ):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", listener.endpoint.port, limit=1 << 10
        )
        writer.write(GET + b"\r\n")
        await ended(listener)
        received = 0
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 20):
                received += len(data)
        writer.close()
    assert received < size


async def ended(listener: MetricsListener) -> None:
    """Return when the server has closed its connection, also one with unread bytes."""
    established = [f"0100007F:{listener.endpoint.port:04X}", "01"]
    while any(
        [line.split()[1], line.split()[3]] == established
        for line in Path("/proc/net/tcp").read_text().splitlines()
    ):
        await asyncio.sleep(0.02)
