"""The client's side of the control plane: one channel, bounded waits, faults by name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final, Protocol, TypeVar

import grpc

from leaseway.sdk.grpc_faults import fault_of_control_plane
from leaseway.sdk.identity import Identity, channel_options
from leaseway.v1 import admin_pb2_grpc, catalog_pb2_grpc, leases_pb2_grpc
from leaseway.wire.fault import Fault
from leaseway.wire.reasons import Reason

__all__ = ["CONNECT_BOUND", "ControlPlane"]

CONNECT_BOUND: Final = 2.0
"""Seconds after which an unreachable control plane is given up."""
_PAUSE: Final = 0.1

ResponseT = TypeVar("ResponseT", covariant=True)


class _Rpc(Protocol[ResponseT]):
    def __call__(
        self, request: Any, /, *, timeout: float | None, metadata: Any
    ) -> Awaitable[ResponseT]: ...


class ControlPlane:
    """A connection to the control plane; made in a running event loop.

    Attributes:
        catalog: Lists and resolves tools.
        placement: Says which worker is to hold a lease.
        admin: Shows and steers the system.
    """

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._loop = asyncio.get_running_loop()
        self._channel = grpc.aio.insecure_channel(
            identity.address, options=channel_options(identity.address)
        )
        self.catalog = catalog_pb2_grpc.CatalogServiceStub(self._channel)
        self.placement = leases_pb2_grpc.PlacementServiceStub(self._channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self._channel)

    @property
    def connected(self) -> bool:
        """Whether the connection stands at this moment."""
        return self._channel.get_state() is grpc.ChannelConnectivity.READY

    async def ask(self, rpc: _Rpc[ResponseT], request: Any, deadline: float) -> ResponseT:
        """Send a request and return the answer.

        Args:
            rpc: A method of one of the stubs.
            request: Its request.
            deadline: When to give up, in the event loop's time. An unreachable control plane is
                given up after `CONNECT_BOUND` already, also one that goes while it is asked.

        Raises:
            Fault: It refused, or could not be reached.

        """
        now = self._loop.time()
        # A little before the caller's own deadline, which says less about what is wrong.
        give_up = now + min(CONNECT_BOUND, (deadline - now) * 0.9)
        while True:
            await self._connect(give_up)
            asked = self._loop.time()
            try:
                remaining = max(deadline - self._loop.time(), 0.001)
                return await rpc(request, timeout=remaining, metadata=self.identity.metadata)
            except grpc.aio.AioRpcError as error:
                fault = fault_of_control_plane(error, self.identity.address)
                lost = fault.reason is Reason.CONTROL_PLANE_UNAVAILABLE
                now = self._loop.time()
                if lost and now - asked > CONNECT_BOUND:  # it let the caller wait, and went
                    give_up = now + min(CONNECT_BOUND, (deadline - now) * 0.9)
                if not lost or now + _PAUSE >= give_up:
                    raise fault from None
            await asyncio.sleep(_PAUSE)

    async def close(self) -> None:
        """Close the channel; requests under way fail."""
        await self._channel.close()

    async def _connect(self, give_up: float) -> None:
        channel = self._channel
        try:
            async with asyncio.timeout_at(give_up):
                state = channel.get_state(try_to_connect=True)
                while state is not grpc.ChannelConnectivity.READY:
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            raise Fault(
                Reason.CONTROL_PLANE_UNAVAILABLE,
                f"The control plane at {self.identity.address} cannot be reached. Check that it "
                "runs, and that the address that the client was given (or LEASEWAY_ADDRESS) is "
                "its own.",
            ) from None
