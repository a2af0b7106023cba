"""The client's side of the control plane."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from tests.sdk.fakes import BOUND, FakeControlPlane, until

from leaseway.sdk import control
from leaseway.sdk.identity import identify


async def test_a_wait_outlasts_a_restart_of_the_control_plane(
    plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "CONNECT_BOUND", 1.0)
    asked = control.ControlPlane(identify(plane.address, None, None, None))
    loop = asyncio.get_running_loop()
    begun = loop.time()
    tries = 0

    async def wait_for_room(request: object, /, *, timeout: float | None, metadata: object) -> str:
        nonlocal tries
        tries += 1
        if tries > 1:
            return "here"
        await until(lambda: loop.time() > begun + 1.5)  # longer than a connection is waited for
        status, none = grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(status, none, none, "Connection reset.")

    assert await asked.ask(wait_for_room, None, begun + BOUND) == "here"
    await asked.close()
