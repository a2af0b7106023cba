"""Refused requests of the greatest size leave no memory in planes; real processes."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import secrets
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest
from tests.conftest import BOUND
from tests.e2e.system import Part, System, eventually, kit
from tests.ports import free_port

from leaseway.identity.keys import add_key, make_key
from leaseway.identity.principal import Role
from leaseway.identity.rules import HEALTH, RULES
from leaseway.wire import bounds
from leaseway.wire.channels.auth import bearer_metadata
from leaseway.wire.channels.serving import CHANNEL_OPTIONS

ROOM = 64 * bounds.MIB
"""How much larger a plane may be afterwards."""
GREATEST = bounds.MAX_GRPC_RECEIVED - 16
EMPTY_TEXTS = b"\x0a\x00" * (GREATEST // 2)  # field 1 of most requests, as an element of a list
TEXT = b"\x0a\x80\x80\xc0\x07" + b"x" * (15 * bounds.MIB)
PAGES = ("/api/session", "/api/try", "/metrics", "/artifacts/x", "/mcp")
SENDING: Any = (*CHANNEL_OPTIONS, ("grpc.max_send_message_length", -1))
RESOLVE = "/leaseway.v1.CatalogService/ResolveTools"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
PATHS = [*RULES, f"{HEALTH}Check", f"{HEALTH}Watch", REFLECTION, "/no.Service/Method"]


class House:
    """A system and its processes.

    Attributes:
        key: The API key of a tenant.
        shared: The shared key, or empty.
        parts: The processes.
        pages: For each of `PAGES` its address and process.
    """

    def __init__(self, system: System, front: Part, artifacts: str, key: str, shared: str) -> None:
        assert system.control_plane is not None
        self.key = key
        self.shared = shared
        self.parts = {
            "control plane": system.control_plane,
            "worker": system.workers["worker-1"],
            "front": front,
        }
        self.pages = {
            "/api/session": (urlsplit(system.console).netloc, "control plane"),
            "/api/try": (urlsplit(system.console).netloc, "control plane"),
            "/metrics": (system.metrics["worker-1"], "worker"),
            "/artifacts/x": (artifacts, "worker"),
            "/mcp": (front.address, "front"),
        }
        self.sizes = {name: self.size(name) for name in self.parts}

    def size(self, name: str, field: str = "VmRSS") -> int:
        status = Path(f"/proc/{self.parts[name].process.pid}/status").read_text()
        return int(status.split(f"{field}:")[1].split()[0]) * bounds.KIB

    def watch_peak(self, name: str) -> Callable[[], int]:
        """Return a function that returns how far the process has grown at most since then."""
        Path(f"/proc/{self.parts[name].process.pid}/clear_refs").write_text("5")
        before = self.size(name)
        return lambda: self.size(name, "VmHWM") - before

    def processor_time(self, name: str) -> float:
        """Return the seconds of processor time that a process has used."""
        status = Path(f"/proc/{self.parts[name].process.pid}/stat").read_text()
        fields = status.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def is_small_again(self, name: str) -> None:
        await eventually(lambda: self.size(name) < self.sizes[name] + ROOM)


@pytest.fixture(scope="module")
async def house(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[House]:
    """Run a system for all tests that use it the same way; each must leave it small."""
    tmp_path = tmp_path_factory.mktemp("house")
    keys = tmp_path / "keys.json"
    key, record = make_key(roles=[Role.CALLER], tenant="acme", agent=None, now=0.0)
    add_key(keys, record)
    shared = secrets.token_urlsafe(32)
    environment = {
        "LEASEWAY_KEYS": str(keys),
        "LEASEWAY_KEY": shared,
        "LEASEWAY_WORKER_KEY": secrets.token_urlsafe(32),
    }
    if request.param == "open":
        environment, key, shared = {}, "", ""
    servers = {"files": kit(tmp_path)}
    system = System(tmp_path, servers, environment=environment, console=True, metrics=True)
    artifacts = f"127.0.0.1:{free_port()}"
    async with contextlib.AsyncExitStack() as stack:
        system.worker_options = ("--artifacts-http", artifacts)
        variables = stack.enter_context(pytest.MonkeyPatch.context())
        if shared:
            variables.setenv("LEASEWAY_KEY", shared)  # of the client that waits until all is ready
        await stack.enter_async_context(system)
        front = await system.start_front()
        stack.push_async_callback(front.end)
        yield House(system, front, artifacts, key, shared)


async def send(channel: grpc.aio.Channel, path: str, content: bytes, key: str) -> str:
    """Send one message as the request of any kind of RPC; return the status."""
    call: Any = channel.stream_stream(path)(metadata=bearer_metadata(key), timeout=BOUND)
    with suppress(grpc.aio.AioRpcError):
        await call.write(content)
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass
    return str((await call.code()).name)


@pytest.mark.parametrize("name", ["control plane", "worker"])
@pytest.mark.parametrize(
    ("house", "credential"),
    [("keys", "tenant"), ("open", "none")],
    indirect=["house"],
    scope="module",
)
async def test_the_greatest_refused_requests_leave_no_memory(
    house: House, name: str, credential: str
) -> None:
    key = house.key if credential == "tenant" else ""
    address = house.parts[name].address
    async with grpc.aio.insecure_channel(address, options=SENDING) as channel:
        for path in PATHS:
            for content in (EMPTY_TEXTS, TEXT):
                assert await send(channel, path, content, key) != "OK"
    await house.is_small_again(name)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["control plane", "worker"])
@pytest.mark.parametrize("house", ["keys", "open"], indirect=True)
async def test_ten_thousand_of_the_greatest_refused_requests_leave_no_memory(
    house: House, name: str
) -> None:
    address = house.parts[name].address
    async with grpc.aio.insecure_channel(address, options=SENDING) as channel:
        for number in range(2_500):
            path = (RESOLVE, f"{HEALTH}Check")[number % 2]
            content = (EMPTY_TEXTS, TEXT)[number // 2 % 2]
            statuses = await asyncio.gather(*(send(channel, path, content, "") for _ in range(4)))
            assert "OK" not in statuses
    await house.is_small_again(name)


@pytest.mark.parametrize("name", ["control plane", "worker"])
@pytest.mark.parametrize("house", ["keys"], indirect=True)
async def test_requests_that_are_refused_by_their_headers_are_not_received(
    house: House, name: str
) -> None:
    address = house.parts[name].address
    async with grpc.aio.insecure_channel(address, options=SENDING) as channel:
        peak = house.watch_peak(name)
        for key in ("", "wrong", "", "wrong"):
            statuses = await asyncio.gather(
                *(send(channel, path, EMPTY_TEXTS, key) for path in RULES)
            )
            assert "OK" not in statuses
        assert peak() < ROOM


def _post(path: str, body: bytes, key: str, *headers: str) -> bytes:
    head = (
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        *((f"Authorization: Bearer {key}",) if key else ()),
        *headers,
    )
    return "\r\n".join((*head, "", "")).encode() + body


def _sized(path: str, body: bytes, key: str, *headers: str) -> bytes:
    return _post(path, body, key, f"Content-Length: {len(body)}", *headers)


def _chunked(path: str, body: bytes, key: str) -> bytes:
    encoded = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    return _post(path, encoded, key, "Transfer-Encoding: chunked")


@cache
def _bomb() -> bytes:
    """Return a short body of 256 MiB, which takes a second to compress."""
    return gzip.compress(bytes(256 * bounds.MIB))


def _refused(path: str, key: str) -> Iterator[bytes]:
    """Return the greatest requests of an HTTP page, none of which is answered with a success."""
    size = 5 * bounds.MIB - 100  # the greatest message that a front reads
    many = b"{}," * (size // 3)
    long = b"x" * 16 * bounds.MIB
    called = (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"a":[%b{}]}}}' % many
    )
    yield _sized(path, long, key)
    yield _chunked(path, long, key)
    for body in (b"x" * size, b"[" * size, b'{"a":' * (size // 5), called):
        yield _sized(path, body, key)
    yield _sized(path, _bomb(), key, "Content-Encoding: gzip")
    yield _sized(path, b"", key, *(f"X-{number}: {'y' * 16_000}" for number in range(100)))
    yield _sized("/" + "m" * 16_000, b"", key)


async def _status(address: str, content: bytes) -> int:
    """Send bytes over a connection of their own; return the status of the response, or 0.

    An error of JSON-RPC in a successful response counts as 400.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(content)
        async with asyncio.timeout(BOUND):
            line = await reader.readline()
            if b" 200 " in line:
                await reader.readuntil(b"\r\n\r\n")
                if b'"error"' in await reader.read(4096):
                    return 400
    except ConnectionError:
        return 0
    finally:
        writer.transport.abort()
    return int(line.split()[1]) if line else 0


@pytest.mark.parametrize(
    ("house", "credential"),
    [("keys", "none"), ("keys", "shared"), ("open", "none")],
    indirect=["house"],
    scope="module",
)
async def test_the_greatest_refused_requests_of_pages_leave_no_memory(
    house: House, credential: str
) -> None:
    key = house.shared if credential == "shared" else ""
    for path in PAGES:
        address, name = house.pages[path]
        for content in _refused(path, key):
            peak = house.watch_peak(name)
            statuses = await asyncio.gather(*(_status(address, content) for _ in range(8)))
            assert not any(200 <= status < 300 for status in statuses)
            assert peak() < 3 * ROOM  # eight bodies with their copies
    for name in house.parts:
        await house.is_small_again(name)


@pytest.mark.parametrize("house", ["keys"], indirect=True)
async def test_a_compressed_body_is_never_decompressed(house: House) -> None:
    body = _bomb()
    for path in PAGES:
        address, name = house.pages[path]
        before = house.processor_time(name)
        for key in ("", house.shared):
            for _ in range(8):
                await _status(address, _sized(path, body, key, "Content-Encoding: gzip"))
        assert house.processor_time(name) - before < 4  # to decompress each takes a second


@pytest.mark.parametrize("name", ["control plane", "worker"])
@pytest.mark.parametrize("house", ["keys"], indirect=True)
async def test_opening_and_resetting_streams_leaves_no_memory(house: House, name: str) -> None:
    host, _, port = house.parts[name].address.rpartition(":")
    path = next(iter(RULES)) if name == "control plane" else "/leaseway.v1.LeaseService/KeepAlive"
    for _ in range(4):
        await asyncio.to_thread(_reset_streams, host, int(port), path, 10_000)
    await house.is_small_again(name)


def _reset_streams(host: str, port: int, path: str, count: int) -> None:
    """Open streams of one connection and reset each at once, as gRPC's own clients do not."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": host,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    head = b"".join(
        b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in field)
        for field in fields.items()
    )
    with socket.create_connection((host, port), timeout=BOUND) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0))
        with suppress(OSError):  # a server may close the connection
            for stream in range(1, 2 * count, 2):
                reset = _frame(3, 0, stream, struct.pack(">I", 8))
                connection.sendall(_frame(1, 4, stream, head) + reset)


def _frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content
