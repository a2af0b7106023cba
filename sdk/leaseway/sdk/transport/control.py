"""The client's side of the control plane: one channel, bounded waits, faults by name.

Reading a list that comes in pages, to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

import grpc

from leaseway.sdk.transport.grpc_errors import fault_of_control_plane, is_turned_away
from leaseway.sdk.transport.identity import Identity, channel_options
from leaseway.v1 import admin_pb2, admin_pb2_grpc, catalog_pb2_grpc, leases_pb2, leases_pb2_grpc
from leaseway.wire.channels.leader_channel import LEADER, LeaderChannel
from leaseway.wire.channels.tls import open_channel
from leaseway.wire.errors import Fault, Reason


class Page(Protocol):
    """A part of a list."""

    @property
    def next_page_token(self) -> str:
        """Where the next page starts; empty on the last."""


PageT = TypeVar("PageT", bound=Page)


async def every_page(read: Callable[[str], Awaitable[PageT]]) -> AsyncGenerator[PageT]:
    """Yield the pages of a list.

    Args:
        read: Reads the page of a token, the first one of an empty token. What bounds the time for
            all of them is its deadline.
    """
    token = ""
    while True:
        page = await read(token)
        yield page
        token = page.next_page_token
        if not token:
            return


CONNECT_BOUND: Final = 2.0
"""Seconds after which an unreachable control plane is given up."""
_STALL_BOUND: Final = 6.0
"""The same for one that neither takes nor refuses the connection: it may only stall."""
_LED_BOUND: Final = 8.0
"""The same for control planes of which none leads: another takes over within 5 s."""
_PAUSE: Final = 0.1
_QUIET: Final = 1.0
"""Seconds without an answer after which it is asked whether it still answers anything."""
_SIGN_BOUND: Final = 4.0
"""Seconds that it is given to answer that."""

ResponseT = TypeVar("ResponseT", covariant=True)


class Rpc(Protocol[ResponseT]):
    """A method of one of the stubs."""

    def __call__(
        self, request: Any, /, *, timeout: float | None, metadata: Any
    ) -> Awaitable[ResponseT]:
        """Send a request."""


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
        self._channel = LeaderChannel(
            identity.addresses,
            lambda address: open_channel(address, channel_options(address)),
        )
        self.catalog = catalog_pb2_grpc.CatalogServiceStub(self._channel)
        self.placement = leases_pb2_grpc.PlacementServiceStub(self._channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self._channel)

    @property
    def connected(self) -> bool:
        """Whether the connection stands at this moment."""
        return self._channel.get_state() is grpc.ChannelConnectivity.READY

    async def ask(
        self,
        rpc: Rpc[ResponseT],
        request: Any,
        deadline: float,
        *,
        bound: float = CONNECT_BOUND,
        wait: float = 0.0,
    ) -> ResponseT:
        """Send a request and return the answer.

        Args:
            rpc: A method of one of the stubs.
            request: Its request.
            deadline: When to give up, in the event loop's time. An unreachable control plane is
                given up after `bound` already, also one that goes while it is asked.
            bound: Seconds that an unreachable control plane is waited for. One that stalls while
                it is connected to is waited for until that attempt ends, after 5 s.
            wait: Seconds for which the control plane may well keep silent. One that answers
                nothing at all for 5 s beyond them is given up.

        Raises:
            Fault: It refused, or could not be reached.
        """
        now = self._loop.time()
        # A little before the caller's own deadline, which says less about what is wrong.
        give_up = now + min(bound, (deadline - now) * 0.9)
        stalled_until = now + min(max(bound, _STALL_BOUND), (deadline - now) * 0.9)
        quiet_until = now + wait
        led_until = now + min(_LED_BOUND, (deadline - now) * 0.9)
        while True:
            await self._connect(give_up, stalled_until)
            asked = self._loop.time()
            try:
                remaining = max(deadline - self._loop.time(), 0.001)
                answer = rpc(request, timeout=remaining, metadata=self.identity.metadata)
                return await self._answered(answer, quiet_until)
            except grpc.aio.AioRpcError as error:
                fault = fault_of_control_plane(error, self.identity.address)
                lost = fault.reason is Reason.CONTROL_PLANE_UNAVAILABLE
                now = self._loop.time()
                if lost and now - asked > bound:  # it let the caller wait, and went
                    give_up = now + min(bound, (deadline - now) * 0.9)
                    stalled_until = max(stalled_until, give_up)
                self.turn(fault)
                if fault.reason is Reason.NOT_LEADER:  # another leads, or will in a moment
                    give_up, stalled_until = max(give_up, led_until), max(stalled_until, led_until)
                again = lost or is_turned_away(error) or fault.reason is Reason.NOT_LEADER
                if not again or now + _PAUSE >= give_up:
                    raise fault from None
            await asyncio.sleep(_PAUSE)

    def turn(self, fault: Fault) -> None:
        """Go where the leader is, after a failure that may mean that it is elsewhere."""
        if fault.reason is Reason.NOT_LEADER:
            self._channel.follow(fault.metadata.get(LEADER, ""))
        elif fault.reason is Reason.CONTROL_PLANE_UNAVAILABLE:
            self._channel.leave()

    async def _answered(self, answer: Awaitable[ResponseT], quiet_until: float) -> ResponseT:
        """Wait for an answer for as long as the control plane answers anything."""
        asked = asyncio.ensure_future(answer)
        silence = self._loop.create_task(self._silence(quiet_until), name="leaseway silence")
        try:
            await asyncio.wait((asked, silence), return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            raise Fault(
                Reason.CONTROL_PLANE_UNAVAILABLE,
                f"The control plane at {self.identity.address} holds the connection but answers "
                "nothing. Check that its process runs and is neither stopped nor overloaded.",
            )
        finally:
            asked.cancel()
            silence.cancel()

    async def _silence(self, quiet_until: float) -> None:
        """Return when the control plane does not answer the simplest question any more."""
        await asyncio.sleep(max(0.0, quiet_until - self._loop.time()))
        request = admin_pb2.GetStatusRequest()
        while True:
            await asyncio.sleep(_QUIET)
            try:
                await self.admin.GetStatus(
                    request, timeout=_SIGN_BOUND, metadata=self.identity.metadata
                )
            except grpc.aio.AioRpcError as error:
                # Whatever else went wrong, the request itself meets it too.
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    return

    async def find_lease(
        self, session: str, server_id: str, deadline: float
    ) -> leases_pb2.FindLeaseResponse:
        """Return which worker holds the tenant's lease of a session for a server, if one does.

        Raises:
            Fault: The control plane rejected the request, or could not be reached.
        """
        request = leases_pb2.FindLeaseRequest(
            client=self.identity.client_info,
            tenant=self.identity.tenant,
            session=session,
            server_id=server_id,
        )
        answer: leases_pb2.FindLeaseResponse
        answer = await self.ask(self.placement.FindLease, request, deadline)
        return answer

    async def close(self) -> None:
        """Close the channel; requests under way fail."""
        await self._channel.close()

    async def _connect(self, give_up: float, stalled_until: float) -> None:
        channel = self._channel
        state = channel.get_state(try_to_connect=True)
        try:
            while state is not grpc.ChannelConnectivity.READY:
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and channel.leave():
                    async with asyncio.timeout_at(give_up):
                        await asyncio.sleep(_PAUSE)
                    state = channel.get_state(try_to_connect=True)
                    continue
                stalls = state is grpc.ChannelConnectivity.CONNECTING
                async with asyncio.timeout_at(stalled_until if stalls else give_up):
                    await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            raise Fault(
                Reason.CONTROL_PLANE_UNAVAILABLE,
                f"The control plane at {self.identity.address} cannot be reached. Check that it "
                "runs, and that the address that the client was given (or LEASEWAY_ADDRESS) is "
                "its own.",
            ) from None
