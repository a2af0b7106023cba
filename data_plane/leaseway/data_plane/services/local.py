"""Exchange streams within the process: the calls of a front that runs in the worker's process.

They have no connection and copy no bytes; limits, credentials, cancellation and the end are those
of the streams over gRPC (design.md#calls).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, Final

from leaseway.data_plane.calls.call import ActiveCall
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.data_plane.metrics.instruments import WorkerMeters
from leaseway.data_plane.services.exchange import Exchanges
from leaseway.data_plane.services.replies import Replies
from leaseway.data_plane.services.streams import CallStream
from leaseway.identity.authenticator import Authenticator
from leaseway.identity.interceptor import run_stream
from leaseway.v1 import catalog_pb2, execution_pb2, leases_pb2
from leaseway.wire import bounds
from leaseway.wire.channels.local import SINGLE_FIELDS, LocalCaller
from leaseway.wire.errors import Fault
from leaseway.wire.sharing.limits import over_limit
from leaseway.wire.version import check_client_version

_METHOD: Final = "/leaseway.v1.ExecutionService/Exchange"
_OK: Final = execution_pb2.Result()
_ERROR: Final = execution_pb2.Result(is_error=True)
"""The results of most calls, which have a payload and nothing else."""


class LocalReplies(Replies):
    """The sink of the calls of a caller in this process, which gets each result at once.

    Args:
        caller: The caller's end.
        leases: As for `Replies`.
        lease_message: As for `Replies`.
        meters: As for `Replies`.
    """

    def __init__(
        self,
        caller: LocalCaller,
        leases: WorkerLeaseManager,
        lease_message: Callable[[Any], leases_pb2.Lease],
        meters: WorkerMeters | None,
    ) -> None:
        super().__init__(leases, lease_message, meters)
        self._caller = caller
        self._subscriptions: set[int] = set()
        self._over = asyncio.Event()

    @property
    def queued_bytes(self) -> int:
        """None: the caller has each message at once."""
        return 0

    @property
    def is_full(self) -> bool:
        return False

    def close(self) -> None:
        self.closing = True
        self._wake()

    def abort(self, fault: Fault) -> None:
        if self.fault is None:
            self.end_with(fault)

    def finish(self, active: ActiveCall, payload: bytes, is_error: bool) -> None:
        call_id = active.call.id
        self.calls.pop(call_id, None)
        if self.is_over:
            return
        result = _ERROR if is_error else _OK
        if active.lease is not None and not active.call.lease_id:
            described = self._lease(active)
            if described.ByteSize():
                described.is_error = is_error
                result = described
        self._caller.handle_result(call_id, result, payload)
        if self.closing:
            self._wake()

    def add_subscription(self, active: ActiveCall) -> None:
        if len(self._subscriptions) >= bounds.MAX_SUBSCRIPTIONS:
            raise over_limit(
                "stream_subscriptions",
                "connection",
                f"This stream has {bounds.MAX_SUBSCRIPTIONS} subscriptions, its limit; end some.",
            )
        self._subscriptions.add(active.call.id)

    def resource_updated(self, active: ActiveCall, uri: str) -> None:
        if active.call.id in self._subscriptions:
            self._put("updates", execution_pb2.ResourceUpdate(call_id=active.call.id, uri=uri))

    async def wait_until_over(self) -> None:
        """Wait until the stream ends: after its last result, or at once with a fault.

        Raises:
            Fault: The stream ends with it.
        """
        await self._over.wait()
        if self.fault is not None:
            raise self.fault

    def _put(self, field: str, message: Any) -> None:
        if self.is_over:
            return
        fields: dict[str, Any] = {field: message if field in SINGLE_FIELDS else (message,)}
        self._caller.handle_response(execution_pb2.ExchangeResponse(**fields))

    def _put_result(self, result: execution_pb2.Result) -> None:
        if not self.is_over:
            self._caller.handle_result(result.call_id, result, b"")
        if self.closing:
            self._wake()

    def _wake(self) -> None:
        if self.fault is not None or (self.closing and not self.calls):
            self._over.set()

    def _remove_subscription(self, call_id: int) -> None:
        self._subscriptions.discard(call_id)


class LocalCallStream(CallStream):
    """One stream of a caller in this process; created where `caller()` is its principal."""

    def __init__(self, connection: str, exchanges: Exchanges, caller: LocalCaller) -> None:
        replies = self._local = LocalReplies(
            caller, exchanges.leases, exchanges.lease_message, exchanges.executor.meters
        )
        super().__init__(connection, exchanges, replies)
        # Calls do not run in the trace of whoever makes them.
        self._run = copy_context().run

    async def serve(self) -> None:
        """Wait until the stream ends, then cancel the calls without a result."""
        try:
            await self._local.wait_until_over()
        finally:
            self._local.is_over = self._local.closing = True  # its caller learns it later
            self._cancel_calls()

    def start_call(self, call: execution_pb2.Call, arguments: bytes) -> None:
        self._run(self._start_call, call, arguments)

    def handle_request(self, request: execution_pb2.ExchangeRequest) -> None:
        self._handle_rest(request)


class LocalCalls:
    """The worker, for callers in its process (`LocalWorker`).

    Args:
        exchanges: All streams of the worker.
        authenticator: Authenticates callers, as for those that connect.
        address: Where the worker listens, as this machine reaches it.
    """

    def __init__(self, exchanges: Exchanges, authenticator: Authenticator, address: str) -> None:
        self.address = address
        self._exchanges = exchanges
        self._authenticator = authenticator
        self._numbers = itertools.count(1)

    @property
    def id(self) -> str:
        return self._exchanges.worker.id

    @property
    def incarnation(self) -> str:
        return self._exchanges.worker.incarnation

    def admits(self, authorization: str | None) -> bool:
        return authorization is not None or not self._authenticator.accepts_certificates

    async def carry(
        self, caller: LocalCaller, authorization: str | None, hello: catalog_pb2.ClientInfo
    ) -> None:
        """Carry the calls of a caller; see `LocalWorker`."""
        connection = f"in-process:{next(self._numbers)}"
        check_client_version(hello, f"worker {self.id}")
        carry = partial(self._carry, connection, caller)
        await run_stream(self._authenticator, _METHOD, authorization, connection, carry)

    async def _carry(self, connection: str, caller: LocalCaller) -> None:
        stream = LocalCallStream(connection, self._exchanges, caller)
        with self._exchanges.counted(stream):
            caller.open(stream)
            await stream.serve()
