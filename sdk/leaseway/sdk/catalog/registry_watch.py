"""The stream that tells a client when tools change or other workers serve them.

Which registry version a client was last told of, for those who wait for the next one.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from typing import Final, Protocol

import grpc

from leaseway.sdk.transport.control import ControlPlane
from leaseway.sdk.transport.grpc_errors import fault_of_control_plane
from leaseway.v1 import catalog_pb2
from leaseway.wire.errors import Reason
from leaseway.wire.timing.backoff import Backoff

_RECONNECT: Final = Backoff(initial=0.1, maximum=2.0)

_PATIENCE: Final = 14
"""Tries in vain, some 10 s, after which it is no restart and no call that says so itself."""

_log = logging.getLogger("leaseway.sdk")


class Follower(Protocol):
    """Who wants to know of changes."""

    def moved(self, version: int, *, workers_changed: bool = False) -> None:
        """Note the registry's version, and whether other workers serve it."""


async def follow_registry(follower: weakref.ref[Follower], control: ControlPlane) -> None:
    """Follow registry versions for as long as the follower is in use.

    Why it cannot is a warning where that lasts, once for each reason until it can again: a wrong
    key mends itself as little as a version that does not match.
    """
    request = catalog_pb2.WatchToolsRequest(
        client=control.identity.client_info, tenant=control.identity.tenant
    )
    attempt = 0
    missed = False  # whether workers may have come or gone unheard, between two streams
    said: set[Reason] = set()
    while follower() is not None:
        try:
            stream = control.catalog.WatchTools(request, metadata=control.identity.metadata)
            async for message in stream:
                attempt = 0
                said.clear()
                known = follower()
                if known is None:
                    return
                workers_changed = missed or message.workers_changed
                known.moved(message.registry_version, workers_changed=workers_changed)
                missed = False
                del known
        except grpc.aio.AioRpcError as error:
            fault = fault_of_control_plane(error, control.identity.address)
            control.turn(fault)
            warns = attempt >= _PATIENCE and fault.reason not in said
            said.update((fault.reason,) if warns else ())
            _log.log(
                logging.WARNING if warns else logging.DEBUG,
                "Changes of tools are not heard of; what is known goes on serving: %s",
                fault,
            )
        missed = True
        await asyncio.sleep(_RECONNECT.delay(attempt) + 0.02)
        attempt += 1


class RegistryVersion:
    """The newest registry version that is known; lives in one event loop.

    Attributes:
        version: The newest version, 0 before the first.
        ended: Whether no more will come, since the client is closed.
    """

    def __init__(self) -> None:
        self.version = 0
        self.ended = False
        self._news = asyncio.Event()

    def record(self, version: int) -> None:
        """Note a version; versions only grow, also over restarts."""
        if version > self.version:
            self.version = version
            self._wake()

    def end(self) -> None:
        """End all waits."""
        self.ended = True
        self._wake()

    async def beyond(self, version: int) -> None:
        """Wait until a newer version is known, or no more will come."""
        while self.version <= version and not self.ended:
            await self._news.wait()

    def _wake(self) -> None:
        # All who wait have this event; who comes later gets the next one.
        news, self._news = self._news, asyncio.Event()
        news.set()
