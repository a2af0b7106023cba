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

from leaseway.control_plane.sync import earlier_runs
from leaseway.control_plane.sync.earlier_runs import has_ended, is_local_peer

if TYPE_CHECKING:
    from tests.control_plane.conftest import Running

LATER = "127.0.0.1:1"


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


async def test_it_joins_at_once_at_the_address_of_its_first_run(running: Running) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        async with vanished(running, address) as second:
            second.advertised = address
            await second.join()
            assert running.plane.state.workers["w1"].hello.address.incarnation == "run-2"


async def test_a_host_that_does_not_answer_has_not_told_that_a_run_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(earlier_runs, "_PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()[:2]
        with contextlib.ExitStack() as waiting:
            for _ in range(4):  # the kernel answers no more
                one = waiting.enter_context(socket.socket())
                one.setblocking(False)
                one.connect_ex(address)
            assert not await has_ended("{}:{}".format(*address), LATER, is_local=True)


@pytest.mark.parametrize("address", ["", "nowhere", "no-such-host.invalid:80", "127.0.0.1:0x1"])
async def test_an_address_that_cannot_be_resolved_tells_nothing(address: str) -> None:
    assert not await has_ended(address, address, is_local=True)


async def test_a_run_has_ended_if_all_addresses_of_its_name_refuse_connections() -> None:
    assert await has_ended(f"localhost:{free_port()}", LATER, is_local=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "[::1]"])
async def test_an_address_of_each_machine_tells_nothing_of_a_run_on_another_one(host: str) -> None:
    address = f"{host}:{free_port()}"
    assert not await has_ended(address, LATER, is_local=False)
    assert not await has_ended(address, address, is_local=False)


async def test_a_later_run_at_the_same_address_of_the_network_proves_the_end() -> None:
    assert await has_ended("192.0.2.1:7601", "192.0.2.1:7601", is_local=False)


@pytest.mark.parametrize(
    ("peer", "is_local"),
    [
        ("ipv4:127.0.0.1:5", True),
        ("ipv6:%5B::1%5D:5", True),
        ("unix:", True),
        ("ipv4:192.0.2.1:5", False),
        ("ipv6:%5B2001:db8::1%5D:5", False),
        ("", False),
    ],
)
def test_a_peer_is_on_this_machine_by_its_address(peer: str, *, is_local: bool) -> None:
    assert is_local_peer(peer) == is_local
