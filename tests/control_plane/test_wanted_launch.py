"""The status of a server whose newest configuration does not start."""

from __future__ import annotations

from tests.control_plane.conftest import Running
from tests.control_plane.core.builders import spec
from tests.control_plane.fake_worker import worker

from leaseway.v1 import catalog_pb2


async def test_a_server_status_contains_current_and_wanted_launch_hashes(running: Running) -> None:
    async def status() -> catalog_pb2.ServerStatus:
        answer = await running.catalog.ListServers(catalog_pb2.ListServersRequest())
        (only,) = answer.servers
        return only

    running.load(spec("a"))
    async with worker(running.address) as w1:
        await w1.serve("x")
        await w1.apply_until("a")
        assert (await status()).wanted_launch_hash == ""
        newer = spec("a", command="newer")
        running.load(newer)
        told = await status()
        assert told.launch_hash == spec("a").launch_hash
        assert told.wanted_launch_hash == newer.launch_hash
        running.load(spec("a"))
        assert (await status()).wanted_launch_hash == ""
