"""Credentials in files that others replace, such as tokens of service accounts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.sdk.fakes import FakeControlPlane, FakeWorker, Gate, until

from leaseway.sdk import AsyncClient, Client


def replace(path: Path, key: str) -> None:
    """Write a file as Kubernetes and editors do: as a new one."""
    new = path.with_suffix(".new")
    new.write_text(f"{key}\n")
    new.rename(path)


async def test_a_replaced_credential_is_used_by_requests_and_calls_to_come(
    plane: FakeControlPlane, worker: FakeWorker, tmp_path: Path
) -> None:
    key = tmp_path / "token"
    replace(key, "first")
    gate = Gate(only=b"slow")
    worker.answer = gate
    async with AsyncClient(plane.address, key=key) as client:
        slow = asyncio.create_task(client.call_tool("time_now", {"slow": 1}))
        await until(lambda: worker.calls)
        assert worker.metadata["authorization"] == "Bearer first"
        replace(key, "second")
        runtime = client._runtime()
        runtime.follow_key()
        await client.call_tool("time_now")
        await client.list_tools()
        assert worker.metadata["authorization"] == "Bearer second"
        assert plane.metadata[-1]["authorization"] == "Bearer second"
        assert (worker.streams, worker.open_streams) == (2, 2)  # the call in flight goes on
        gate.open()
        assert (await slow).text == '{"slow":1}'
        runtime.follow_key()
        await until(lambda: worker.open_streams == 1)
        runtime.follow_key()
        await client.call_tool("time_now")
        assert worker.streams == 2
    await until(lambda: worker.open_streams == 0)


async def test_a_client_that_is_closed_closes_replaced_streams(
    plane: FakeControlPlane, worker: FakeWorker, tmp_path: Path
) -> None:
    key = tmp_path / "token"
    replace(key, "first")
    worker.answer = Gate(only=b"slow")
    async with AsyncClient(plane.address, key=key) as client:
        slow = asyncio.create_task(client.call_tool("time_now", {"slow": 1}))
        await until(lambda: worker.calls)
        replace(key, "second")
        client._runtime().follow_key()
        await until(lambda: worker.open_streams == 2)
    await until(lambda: worker.open_streams == 0)
    assert isinstance((await asyncio.gather(slow, return_exceptions=True))[0], Exception)


async def test_the_environment_may_name_the_file(
    plane: FakeControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace(tmp_path / "token", "first")
    monkeypatch.setenv("LEASEWAY_KEY_FILE", str(tmp_path / "token"))
    async with AsyncClient(plane.address) as client:
        await client.list_tools()
    assert plane.metadata[0]["authorization"] == "Bearer first"
    async with AsyncClient(plane.address, key="mine") as client:
        await client.list_tools()
    assert plane.metadata[-1]["authorization"] == "Bearer mine"


def test_a_file_without_a_credential_is_an_error_of_the_client(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none cannot be read: No such file"):
        Client(key=tmp_path / "none")
    for content in ("", "\n", "two words", "ü"):
        (tmp_path / "token").write_text(content)
        with pytest.raises(ValueError, match="token"):
            Client(key=tmp_path / "token")
    (tmp_path / "token").write_text("hush")
    (tmp_path / "token").chmod(0o666)
    with pytest.raises(ValueError, match="can be changed by other users"):
        Client(key=tmp_path / "token")
