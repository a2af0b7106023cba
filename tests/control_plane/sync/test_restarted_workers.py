"""A worker that is started again with its id, after its first run has vanished."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import grpc
import pytest
from tests.conftest import BOUND
from tests.control_plane.fake_worker import FakeWorker
from tests.ports import free_port

from leaseway.control_plane.sync import reachability
from leaseway.control_plane.sync.reachability import refuses_connections

if TYPE_CHECKING:
    from tests.control_plane.conftest import Running


@contextlib.asynccontextmanager
async def vanished(running: Running, address: str) -> AsyncIterator[FakeWorker]:
    """Let a run at an address join and vanish; yield another run of its id."""
    first = FakeWorker(running.address, advertised=address)
    await first.join()
    await first.close()
    async with asyncio.timeout(BOUND):
        while running.plane.state.workers["w1"].connected:
            await asyncio.sleep(0.01)
    second = FakeWorker(running.address, incarnation="run-2", advertised=f"127.0.0.1:{free_port()}")
    try:
        yield second
    finally:
        await second.close()


async def test_a_restarted_worker_joins_at_once_if_nothing_listens_at_its_former_address(
    running: Running,
) -> None:
    async with vanished(running, f"127.0.0.1:{free_port()}") as second:
        await second.join()
        assert running.plane.state.workers["w1"].hello.address.incarnation == "run-2"
        assert not running.plane.state.problems.open()


async def test_it_is_refused_while_something_listens_there(running: Running) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with vanished(running, f"127.0.0.1:{listener.getsockname()[1]}") as second:
            await second.send_hello()
            assert await second.ended() is grpc.StatusCode.ALREADY_EXISTS
        [problem] = running.plane.state.problems.open()
        assert "may still run" in problem.problem.message


async def test_a_host_that_does_not_answer_has_refused_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reachability, "_PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()[:2]
        with contextlib.ExitStack() as waiting:
            for _ in range(4):  # the kernel answers no more
                one = waiting.enter_context(socket.socket())
                one.setblocking(False)
                one.connect_ex(address)
            assert not await refuses_connections("{}:{}".format(*address))


@pytest.mark.parametrize("address", ["", "nowhere", "no-such-host.invalid:80", "127.0.0.1:0x1"])
async def test_an_address_that_cannot_be_resolved_has_refused_nothing(address: str) -> None:
    assert not await refuses_connections(address)


async def test_a_name_has_refused_if_all_its_addresses_have() -> None:
    assert await refuses_connections(f"localhost:{free_port()}")
