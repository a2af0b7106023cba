"""Refused requests of the greatest size leave no memory in planes; real processes."""

from __future__ import annotations

import asyncio
import secrets
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.conftest import BOUND
from tests.e2e.system import System, eventually, kit

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
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


class House:
    """A system with credentials, and its processes."""

    def __init__(self, system: System, key: str) -> None:
        assert system.control_plane is not None
        self.key = key
        self.parts = {"control plane": system.control_plane, "worker": system.workers["worker-1"]}
        self.sizes = {name: self.size(name) for name in self.parts}

    def size(self, name: str) -> int:
        status = Path(f"/proc/{self.parts[name].process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * bounds.KIB

    async def is_small_again(self, name: str) -> None:
        await eventually(lambda: self.size(name) < self.sizes[name] + ROOM)


@pytest.fixture
async def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[House]:
    keys = tmp_path / "keys.json"
    key, record = make_key(roles=[Role.CALLER], tenant="acme", agent=None, now=0.0)
    add_key(keys, record)
    shared = secrets.token_urlsafe(32)
    monkeypatch.setenv("LEASEWAY_KEY", shared)  # of the client that waits until all is ready
    environment = {
        "LEASEWAY_KEYS": str(keys),
        "LEASEWAY_KEY": shared,
        "LEASEWAY_WORKER_KEY": secrets.token_urlsafe(32),
    }
    servers = {"files": kit(tmp_path)}
    async with System(tmp_path, servers, environment=environment) as system:
        yield House(system, key)


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
@pytest.mark.parametrize("credential", ["none", "tenant"])
async def test_the_greatest_refused_requests_leave_no_memory(
    house: House, name: str, credential: str
) -> None:
    key = house.key if credential == "tenant" else ""
    options: Any = (*CHANNEL_OPTIONS, ("grpc.max_send_message_length", -1))
    address = house.parts[name].address
    paths = [*RULES, f"{HEALTH}Check", f"{HEALTH}Watch", REFLECTION, "/no.Service/Method"]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        for path in paths:
            for content in (EMPTY_TEXTS, TEXT):
                statuses = await asyncio.gather(
                    *(send(channel, path, content, key) for _ in range(2))
                )
                assert "OK" not in statuses
    await house.is_small_again(name)


@pytest.mark.parametrize("name", ["control plane", "worker"])
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
