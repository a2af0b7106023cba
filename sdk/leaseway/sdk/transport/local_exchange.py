"""An exchange with the worker of this process: calls and results are passed as objects.

The worker's end is its own (`LocalWorker`); it applies to a caller what it applies over gRPC, where
the same messages are sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from leaseway.sdk.transport import faults
from leaseway.sdk.transport.exchange import (
    Exchange,
    OnLeaseEnd,
    OnNotification,
    ignore_lease_end,
    ignore_notification,
)
from leaseway.v1 import catalog_pb2, execution_pb2
from leaseway.wire.bounds import MAX_RESULT
from leaseway.wire.channels.local import SINGLE_FIELDS, LocalStream, LocalWorker
from leaseway.wire.messages.frames import OversizePayload

_logger = logging.getLogger(__name__)


class LocalExchange(Exchange):
    """One stream within the process; the caller's end of it.

    Calls that are made before the worker has accepted the credential wait here.

    Args:
        authorization: The caller's credential, as in the header of that name, or None.
        hello: The caller, as it identifies itself.
    """

    def __init__(
        self,
        local: LocalWorker,
        authorization: str | None,
        hello: catalog_pb2.ClientInfo,
        on_end: Callable[[Exchange], None],
        on_notification: OnNotification = ignore_notification,
        on_lease_end: OnLeaseEnd = ignore_lease_end,
    ) -> None:
        super().__init__(local.id, on_end, on_notification, on_lease_end)
        self._stream: LocalStream | None = None
        self._queued_calls: dict[int, tuple[execution_pb2.Call, bytes]] = {}
        self._queued: list[execution_pb2.ExchangeRequest] = []
        self._local = local
        self._authorization = authorization
        self._hello = hello
        self._start(f"leaseway local exchange {local.id}")

    async def _carry(self) -> None:
        try:
            await self._local.carry(self, self._authorization, self._hello)
        finally:
            self._stream = None

    def _send_call(self, call_id: int, fields: bytes, payload: bytes, timeout_ms: int) -> int:
        call = execution_pb2.Call.FromString(fields)
        call.id = call_id
        call.timeout_ms = timeout_ms
        if self._stream is None:
            self._queued_calls[call_id] = call, payload
        else:
            self._stream.start_call(call, payload)
        return call_id

    def _withdraw(self, ticket: int) -> bool:
        return self._queued_calls.pop(ticket, None) is not None

    def _forget(self, call_id: int) -> None:
        """Nothing: a result arrives as a whole."""

    def _holds(self, ticket: int) -> bool:
        return ticket in self._queued_calls

    def _send(self, field: str, message: Any) -> None:
        fields: dict[str, Any] = {field: message if field in SINGLE_FIELDS else (message,)}
        request = execution_pb2.ExchangeRequest(**fields)
        if self._stream is None:
            self._queued.append(request)
        else:
            self._stream.handle_request(request)

    def open(self, stream: LocalStream) -> None:
        """Send what has waited: the worker has accepted the caller."""
        self._stream = stream
        self._accepted = True
        self.suspect = False
        calls, self._queued_calls = self._queued_calls, {}
        for call, payload in calls.values():
            stream.start_call(call, payload)
        requests, self._queued = self._queued, []
        for request in requests:
            stream.handle_request(request)

    def handle_result(self, call_id: int, result: execution_pb2.Result, payload: bytes) -> None:
        """Set the result of a call, unless it was cancelled."""
        call = self.pending.pop(call_id, None)
        if call is None or call.reply.done():
            return
        if len(payload) > MAX_RESULT:
            error = OversizePayload(f"{len(payload)} bytes exceed the limit of {MAX_RESULT}")
            call.reply.set_exception(faults.result_too_large(self._worker, error))
        else:
            call.reply.set_result((result, payload))
        if self._waiting:
            self._grant_slots()

    def handle_response(self, message: execution_pb2.ExchangeResponse) -> None:
        """Handle any other message; an error in a caller's handler ends this stream alone."""
        try:
            self._handle_events(message)
            self._handle_control(message)
        except Exception:
            _logger.exception("A message of worker %s could not be handled.", self._worker)
            self._end(faults.stream_failed(self._worker))
            self._task.cancel()
