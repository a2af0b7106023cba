"""The control plane process: what its parts do to one another."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.conftest import BOUND

from leaseway.control_plane.app import ControlPlaneOptions, run
from leaseway.control_plane.config.layers.sources import Source
from leaseway.identity.authenticator import Authenticator
from leaseway.sdk import AsyncClient
from leaseway.wire.channels.endpoint import Endpoint


class FaultyAuthenticator(Authenticator):
    """Fails when it begins to follow its files, and not when it begins again."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0
        self.goes_on = asyncio.Event()

    async def run(self) -> None:
        self.runs += 1
        if self.runs == 1:
            raise RuntimeError("can't start new thread")
        self.goes_on.set()
        await super().run()


async def test_a_fault_in_what_follows_credentials_ends_nothing_else(tmp_path: Path) -> None:
    config = tmp_path / "mcp.yaml"
    config.write_text("version: 1\nservers: {}\n")
    authenticator = FaultyAuthenticator()
    sources = (Source("native", config),)
    options = ControlPlaneOptions(sources, Endpoint("127.0.0.1", 0), authenticator=authenticator)
    bound: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(run(options, ready=bound.set_result))
    try:
        async with asyncio.timeout(BOUND):
            address = await bound
            await authenticator.goes_on.wait()
            async with AsyncClient(address) as client:
                assert (await client.status()).package_version
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
