"""The calls of a stream as values: each head is decoded, and bound to its caller, once."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import DecodeError
from msgspec.structs import replace

from leaseway.data_plane.core.calls.incoming import IncomingCall
from leaseway.identity.principal import Principal
from leaseway.v1 import execution_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.timing.durations import seconds

_MAX_KNOWN: Final = bounds.KIB
"""Bytes of a head that is known again; longer ones are decoded for each call."""


class CallHeads:
    """The heads of one stream's calls.

    Subject tokens are no part of a head, so none outlives its call here.

    Args:
        caller: Whose stream it is; calls get the names that its credential binds them to.
    """

    def __init__(self, caller: Principal) -> None:
        self._caller = caller
        self._is_bound = (
            caller.tenant is not None or caller.agent is not None or not caller.names_users
        )
        self._known: dict[bytes, IncomingCall] = {}

    @property
    def held_bytes(self) -> int:
        """Memory that the known heads take, about."""
        return len(self._known) * bounds.KIB

    def read(self, call: execution_pb2.Call, call_id: int) -> IncomingCall:
        """Return a call as a value, without its arguments.

        Raises:
            Fault: INVALID_REQUEST: its head is none. PERMISSION_DENIED: it is for a tenant or user
                for whom the caller may not call.
        """
        encoded = call.head
        head = self._known.get(encoded)
        if head is None:
            head = self._decode(encoded)
        traceparent, meta, token = call.traceparent, call.meta, call.subject_token
        if self._caller.token and not token:
            token = self._caller.subject_token_for(head.user, "")
        if not (traceparent or meta or token or head.passes_input):
            return replace(head, id=call_id, timeout_ms=call.timeout_ms)
        return replace(
            head,
            id=call_id,
            timeout_ms=call.timeout_ms,
            traceparent=traceparent,
            tracestate=call.tracestate,
            meta=meta,
            input=call.input,
            subject_token=token,
        )

    def _decode(self, encoded: bytes) -> IncomingCall:
        if len(encoded) > bounds.MAX_CALL_HEAD:
            raise Fault(
                Reason.INVALID_REQUEST,
                f"The head of a call has {len(encoded)} bytes; the limit is "
                f"{bounds.MAX_CALL_HEAD}.",
            )
        try:
            message = execution_pb2.CallHead.FromString(encoded)
        except DecodeError:
            raise Fault(Reason.INVALID_REQUEST, "The head of a call is no CallHead.") from None
        head = _head_from_proto(message)
        if self._is_bound:
            head = replace(
                head,
                tenant=self._caller.tenant_for(head.tenant),
                agent=self._caller.agent_for(head.agent),
                user=self._caller.user_for(head.user),
            )
        if len(encoded) <= _MAX_KNOWN:
            if len(self._known) >= bounds.MAX_KNOWN_HEADS:  # the oldest makes room
                del self._known[next(iter(self._known))]
            self._known[encoded] = head
        return head


def _head_from_proto(head: execution_pb2.CallHead) -> IncomingCall:
    options: dict[str, Any] = _options(head.options) if head.HasField("options") else {}
    return IncomingCall(
        server_id=head.server_id,
        tool=head.tool,
        registry_version=head.registry_version,
        tenant=head.tenant,
        agent=head.agent,
        user=head.user,
        session=head.session,
        lease_id=head.lease_id,
        **options,
    )


def _options(options: execution_pb2.CallOptions) -> dict[str, Any]:
    return {
        "method": options.method,
        "wants_progress": options.wants_progress,
        "log_level": options.log_level,
        "answers": tuple(options.answers),
        "inline_media": options.inline_media,
        "passes_input": options.passes_input,
        "mcp_client": options.mcp_client,
        "acquirer": options.acquirer,
        "lease_ttl": seconds(options.lease_ttl) if options.HasField("lease_ttl") else None,
        "report_end": options.report_end,
        "expected_lease": options.expected_lease,
    }
