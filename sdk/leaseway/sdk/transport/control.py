"""The connection to the control plane: requests with bounded waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol, TypeVar

import grpc

from leaseway.sdk.transport.faults import client_closed, fault_of_control_plane, is_dropped
from leaseway.sdk.transport.identity import ClientIdentity
from leaseway.v1 import admin_pb2, admin_pb2_grpc, catalog_pb2_grpc, leases_pb2, leases_pb2_grpc
from leaseway.wire.channels.leader_channel import LEADER, LeaderChannel
from leaseway.wire.channels.replaceable_channel import RpcCutOff
from leaseway.wire.channels.serving import CHANNEL_OPTIONS
from leaseway.wire.channels.tls import cause_in_tls, hint_at_tls, open_channel
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.timing.durations import duration
from leaseway.wire.timing.running_tasks import is_cancelled

CONNECT_TIMEOUT: Final = 2.0
"""Seconds to wait for an unreachable control plane."""
_STALL_TIMEOUT: Final = 6.0
"""Seconds to wait if the connection is neither accepted nor refused: the process may stall."""
_LEADER_TIMEOUT: Final = 8.0
"""Seconds to wait for a leader: another control plane takes over within 5 s."""
_HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
_FAILURE_TIMEOUT: Final = 0.5
_PAUSE: Final = 0.1
_QUIET: Final = 1.0
"""Seconds without a response after which the control plane is probed."""
_PROBE_TIMEOUT: Final = 4.0

ResponseT = TypeVar("ResponseT", covariant=True)


class Rpc(Protocol[ResponseT]):
    """A method of one of the stubs."""

    def __call__(
        self, request: Any, /, *, timeout: float | None, metadata: Any
    ) -> Awaitable[ResponseT]:
        """Send a request."""


class ControlPlane:
    """The connection to the control plane; created in a running event loop.

    Attributes:
        catalog: Stub that lists and resolves tools.
        placement: Stub that places leases on workers.
        admin: Stub for operators.
    """

    def __init__(self, identity: ClientIdentity) -> None:
        self.identity = identity
        self._loop = asyncio.get_running_loop()
        self._channel = LeaderChannel(
            identity.addresses,
            lambda address: open_channel(address, CHANNEL_OPTIONS, identity.tls),
        )
        self.catalog = catalog_pb2_grpc.CatalogServiceStub(self._channel)
        self.placement = leases_pb2_grpc.PlacementServiceStub(self._channel)
        self.admin = admin_pb2_grpc.AdminServiceStub(self._channel)

    @property
    def connected(self) -> bool:
        """Whether the connection is ready."""
        return self._channel.get_state() is grpc.ChannelConnectivity.READY

    async def request(
        self,
        rpc: Rpc[ResponseT],
        request: Any,
        deadline: float,
        *,
        bound: float = CONNECT_TIMEOUT,
        wait: float = 0.0,
    ) -> ResponseT:
        """Send a request and return the response.

        Args:
            rpc: A method of one of the stubs.
            deadline: The caller's deadline, in the event loop's time. An unreachable control plane
                is given up after `bound`, also if it becomes unreachable during the request.
            bound: Seconds to wait for an unreachable control plane. A stalled connection attempt
                is awaited until it ends, after 5 s.
            wait: Seconds for which no response is expected. If the control plane responds to
                nothing at all for 5 s after them, the request fails.

        Raises:
            Fault: The control plane rejected the request, or could not be reached.
        """
        now = self._loop.time()
        # Slightly before the caller's own deadline, whose error would say less about the cause.
        give_up = now + min(bound, (deadline - now) * 0.9)
        stalled_until = now + min(max(bound, _STALL_TIMEOUT), (deadline - now) * 0.9)
        quiet_until = now + wait
        leader_until = now + min(_LEADER_TIMEOUT, (deadline - now) * 0.9)
        while True:
            await self._connect(give_up, stalled_until)
            sent_at = self._loop.time()
            try:
                remaining = max(deadline - self._loop.time(), 0.001)
                response = rpc(request, timeout=remaining, metadata=self.identity.metadata)
                return await self._await_response(response, quiet_until)
            except grpc.aio.AioRpcError as error:
                fault = fault_of_control_plane(error, self.identity.address)
                lost = fault.reason is Reason.CONTROL_PLANE_UNAVAILABLE
                now = self._loop.time()
                if lost and now - sent_at > bound:  # it was lost while the caller waited
                    give_up = now + min(bound, (deadline - now) * 0.9)
                    stalled_until = max(stalled_until, give_up)
                if not isinstance(error, RpcCutOff):  # else the channel has switched before
                    self.switch_leader(fault)
                if fault.reason is Reason.NOT_LEADER:  # another leads, or will soon
                    give_up, stalled_until = (
                        max(give_up, leader_until),
                        max(stalled_until, leader_until),
                    )
                again = lost or is_dropped(error) or fault.reason is Reason.NOT_LEADER
                if not again or now + _PAUSE >= give_up:
                    raise fault from None
            await asyncio.sleep(_PAUSE)

    def in_flight(self) -> AbstractContextManager[None]:
        """Return what raises `RpcCutOff` where an RPC ends because its channel was replaced."""
        return self._channel.in_flight()

    def switch_leader(self, fault: Fault) -> None:
        """Switch to the leader after a failure that may mean that another process leads."""
        if fault.reason is Reason.NOT_LEADER:
            self._channel.follow(fault.metadata.get(LEADER, ""))
        elif fault.reason is Reason.CONTROL_PLANE_UNAVAILABLE:
            self._channel.switch_to_next()

    async def _await_response(
        self, response: Awaitable[ResponseT], quiet_until: float
    ) -> ResponseT:
        """Wait for a response for as long as the control plane responds to probes."""
        request = asyncio.ensure_future(response)
        try:
            quiet = max(0.0, quiet_until - self._loop.time()) + _QUIET
            await asyncio.wait((request,), timeout=quiet)
            if not request.done():
                await self._wait_beside_probes(request)
            if request.done():
                try:
                    with self._channel.in_flight():
                        return request.result()
                except asyncio.CancelledError:
                    if is_cancelled():
                        raise
                    raise client_closed(sent=True) from None  # gRPC cancels what is left
            raise Fault(
                Reason.CONTROL_PLANE_UNAVAILABLE,
                f"The control plane at {self.identity.address} holds the connection but answers "
                "nothing. Check that its process runs and is neither stopped nor overloaded.",
            )
        finally:
            request.cancel()

    async def _wait_beside_probes(self, request: asyncio.Future[Any]) -> None:
        """Wait for a request until the control plane stops responding to status requests."""
        probes = self._loop.create_task(self._probe(), name="leaseway probe")
        try:
            await asyncio.wait((request, probes), return_when=asyncio.FIRST_COMPLETED)
        finally:
            probes.cancel()

    async def _probe(self) -> None:
        """Return when the control plane stops responding to status requests."""
        request = admin_pb2.GetStatusRequest()
        while True:
            try:
                await self.admin.GetStatus(
                    request, timeout=_PROBE_TIMEOUT, metadata=self.identity.metadata
                )
            except grpc.aio.AioRpcError as error:
                # Any other error will also fail the request itself.
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    return
            await asyncio.sleep(_QUIET)

    async def find_lease(
        self, session: str, server_id: str, deadline: float
    ) -> leases_pb2.FindLeaseResponse:
        """Return which worker holds the tenant's lease of a session for a server, if one does.

        Without a server, return the session's leases for all servers.

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
        answer = await self.request(self.placement.FindLease, request, deadline)
        return answer

    async def share_session_ends(
        self,
        ended: Iterable[str],
        asked: Iterable[str],
        states: Mapping[str, bytes],
        deadline: float,
    ) -> leases_pb2.ShareSessionEndsResponse:
        """Record which sessions have ended for good, and states; ask about other sessions.

        Raises:
            Fault: The control plane rejected the request, or could not be reached.
        """
        request = leases_pb2.ShareSessionEndsRequest(
            client=self.identity.client_info,
            tenant=self.identity.tenant,
            ended=ended,
            asked=asked,
            states=[
                leases_pb2.SessionState(session=key, state=state) for key, state in states.items()
            ],
        )
        answer: leases_pb2.ShareSessionEndsResponse
        answer = await self.request(self.placement.ShareSessionEnds, request, deadline)
        return answer

    async def hear_session_ends(
        self, run: str, known: int, wait: float, deadline: float
    ) -> leases_pb2.ShareSessionEndsResponse:
        """Wait for a session of the tenant that ends for good.

        Args:
            run: The run of the control plane of which an end is known.
            known: The number of that end.
            wait: For how many seconds to wait.
            deadline: When the request fails, in the event loop's time.

        Raises:
            Fault: The control plane rejected the request, or could not be reached.
        """
        request = leases_pb2.ShareSessionEndsRequest(
            client=self.identity.client_info,
            tenant=self.identity.tenant,
            wait=duration(wait),
            run=run,
            known=known,
        )
        answer: leases_pb2.ShareSessionEndsResponse
        answer = await self.request(self.placement.ShareSessionEnds, request, deadline, wait=wait)
        return answer

    async def close(self) -> None:
        """Close the channel; requests in flight fail."""
        await self._channel.close()

    async def _connect(self, give_up: float, stalled_until: float) -> None:
        channel = self._channel
        state = channel.get_state(try_to_connect=True)
        try:
            while state is not grpc.ChannelConnectivity.READY:
                if channel.is_closed:
                    raise client_closed(sent=False)
                if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and channel.switch_to_next():
                    async with asyncio.timeout_at(give_up):
                        await asyncio.sleep(_PAUSE)
                    state = channel.get_state(try_to_connect=True)
                    continue
                stalls = state is grpc.ChannelConnectivity.CONNECTING
                async with asyncio.timeout_at(stalled_until if stalls else give_up):
                    await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            details = await self._last_failure()
            cause = cause_in_tls(details) or (
                "Check that it runs, and that the client's address (or LEASEWAY_ADDRESS) is its "
                f"own, and not the one for MCP clients. {hint_at_tls(details)}".rstrip()
            )
            raise Fault(
                Reason.CONTROL_PLANE_UNAVAILABLE,
                f"The control plane at {self.identity.address} cannot be reached. {cause}"
                + (f" ({details})" if details else ""),
            ) from None

    async def _last_failure(self) -> str:
        """Return why the last connection failed, such as by its certificate; empty if unknown."""
        check = self._channel.unary_unary(_HEALTH_CHECK)
        try:
            await check(b"", timeout=_FAILURE_TIMEOUT)  # fails at once without a connection
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return error.details() or ""
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise client_closed(sent=False) from None
        return ""
