"""The sink in an S3 server, a foreign process."""

from __future__ import annotations

import asyncio
import re
import socket
from datetime import timedelta
from pathlib import Path

import pytest
from tests.s3_server import S3Server, s3_server

from leaseway.data_plane.audit.sinks import s3
from leaseway.data_plane.audit.sinks.addresses import open_sink
from leaseway.data_plane.audit.sinks.port import ObjectExists, SinkError


def reach(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)


async def test_an_object_is_stored_once_and_listed_below_the_folder_of_the_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with s3_server() as server:
        reach(server, monkeypatch)
        sink = open_sink(server.sink)
        await sink.put("w1.abc/000001.000000000000", b"one\n")
        with pytest.raises(ObjectExists):
            await sink.put("w1.abc/000001.000000000000", b"two\n")
        await sink.put("w2.def/000001.000000000000", b"other\n")
        assert await sink.get("w1.abc/000001.000000000000") == b"one\n"
        assert [(stored.name, stored.size) async for stored in sink.objects("w1.abc/")] == [
            ("w1.abc/000001.000000000000", 4)
        ]
        assert len([stored async for stored in sink.objects()]) == 2
        with pytest.raises(SinkError, match="cannot be read"):
            await sink.get("w3.ghi/000001.000000000000")
        with pytest.raises(SinkError) as caught:
            await open_sink("s3://other/fleet").put("w1/1", b"x")
        assert "only-for-tests" not in str(caught.value)


@pytest.mark.parametrize("cause", ["no connection", "no answer in time"])
async def test_a_server_that_cannot_be_reached_is_an_error_without_secrets(
    monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    monkeypatch.setattr(s3, "_TIMEOUT", timedelta(seconds=0.5))
    mute = socket.create_server(("127.0.0.1", 0))  # the system accepts connections for it
    port = mute.getsockname()[1] if cause == "no answer in time" else 1
    monkeypatch.setenv("LEASEWAY_AUDIT_AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("LEASEWAY_AUDIT_AWS_REGION", "us-east-1")
    monkeypatch.setenv("LEASEWAY_AUDIT_AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("LEASEWAY_AUDIT_AWS_SECRET_ACCESS_KEY", "only-for-tests")
    with mute, pytest.raises(SinkError) as caught:
        await open_sink("s3://audit/fleet").put("w1/1", b"x")
    assert str(caught.value) == (
        f"The audit's sink s3://audit/fleet cannot be written ({cause}). Check the address, the"
        " region and the credentials in LEASEWAY_AUDIT_AWS_*."
    )


async def test_a_refusal_is_an_error_with_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 3\r\n\r\nwhy")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("LEASEWAY_AUDIT_AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("LEASEWAY_AUDIT_AWS_REGION", "us-east-1")
        monkeypatch.setenv("LEASEWAY_AUDIT_AWS_ACCESS_KEY_ID", "testing")
        monkeypatch.setenv("LEASEWAY_AUDIT_AWS_SECRET_ACCESS_KEY", "only-for-tests")
        with pytest.raises(SinkError, match=r"cannot be listed \(HTTP 403\)\. Check"):
            assert [stored async for stored in open_sink("s3://audit/fleet").objects()] == []


async def test_credentials_that_are_replaced_are_read_after_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted = "old"

    async def check(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        key = re.search(rb"Credential=(\w+)/", head)
        status = b"200 OK" if key and key[1].decode() == accepted else b"403 Forbidden"
        writer.write(b"HTTP/1.1 %b\r\netag: 1\r\ncontent-length: 0\r\n\r\n" % status)
        await writer.drain()
        writer.close()

    credential = tmp_path / "key"
    credential.write_text("old")
    async with await asyncio.start_server(check, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("LEASEWAY_AUDIT_AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("LEASEWAY_AUDIT_AWS_REGION", "us-east-1")
        monkeypatch.setenv("LEASEWAY_AUDIT_AWS_ACCESS_KEY_ID_FILE", str(credential))
        monkeypatch.setenv("LEASEWAY_AUDIT_AWS_SECRET_ACCESS_KEY", "only-for-tests")
        sink = open_sink("s3://audit/fleet")
        await sink.put("w1/1", b"x")
        accepted = "new"
        with pytest.raises(SinkError, match="HTTP 403"):
            await sink.put("w1/2", b"x")
        with pytest.raises(SinkError, match="HTTP 403"):
            await sink.put("w1/2", b"x")
        credential.unlink()
        with pytest.raises(SinkError, match="ACCESS_KEY_ID_FILE names cannot be read"):
            await sink.put("w1/2", b"x")
        credential.write_text("new")
        await sink.put("w1/2", b"x")
        await sink.aclose()


async def test_a_connection_that_ends_before_an_answer_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(1)  # its body
        writer.close()

    async with await asyncio.start_server(end, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("LEASEWAY_AUDIT_AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("LEASEWAY_AUDIT_AWS_REGION", "us-east-1")
        monkeypatch.setenv("LEASEWAY_AUDIT_AWS_ACCESS_KEY_ID", "testing")
        monkeypatch.setenv("LEASEWAY_AUDIT_AWS_SECRET_ACCESS_KEY", "only-for-tests")
        with pytest.raises(SinkError, match=r"\(the connection ended before an answer\)"):
            await open_sink("s3://audit/fleet").put("w1/1", b"x")
