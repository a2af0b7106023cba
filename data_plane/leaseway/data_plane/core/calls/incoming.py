"""A call as its caller asked for it, whatever it arrived by. Pure."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from leaseway.wire.names import DEFAULT_TENANT, LeaseKey

OWN_CALL_ID: Final = 1
"""The id of a call that is alone, and not one of a stream."""


class IncomingCall(Struct, frozen=True, gc=False):
    """What a call asks for, and for whom. Texts are empty if they do not apply.

    Most are a copy of what the stream's calls of one session and tool have in common, with their
    own id and timeout: both cost less than reading a message's fields.

    Attributes:
        id: Its id on its stream.
        server_id: The server.
        tool: The tool's original name; of another method the prompt's name or the resource's URI.
        registry_version: The version of the registry that resolved the name.
        tenant: The tenant.
        agent: The agent.
        user: The tenant's user for whom it is.
        session: The session.
        lease_id: The lease to call on.
        timeout_ms: Milliseconds until it expires; 0 means the server's call timeout.
        traceparent: The W3C trace context of the caller.
        tracestate: The W3C trace state of the caller.
        meta: Members for the `_meta` of the request: a JSON object, or empty.
        input: The caller's answers to an `input_required` result: a JSON object, or empty.
        subject_token: The OAuth token of whoever it is for. A secret.
        method: The MCP method; empty means `tools/call`.
        wants_progress: Whether the caller wants progress reports.
        log_level: The lowest level of log messages that the caller wants; empty for none.
        answers: The requests of servers that the caller answers.
        inline_media: Whether images and audio stay in the result.
        passes_input: Whether the caller handles `input_required` results itself.
        mcp_client: The MCP client that the caller speaks for, as JSON, or empty.
        acquirer: The acquirer's name of a lease that the call acquires.
        lease_ttl: Seconds that such a lease lives; None means the default.
        report_end: Whether it fails once with why the session's previous lease ended.
        known_ends: With `report_end`, the ended leases that the session knows.
        head: Stands for all that it has in common with other calls of its stream; None if that is
            not remembered.
    """

    id: int = OWN_CALL_ID
    server_id: str = ""
    tool: str = ""
    registry_version: int = 0
    tenant: str = DEFAULT_TENANT
    agent: str = ""
    user: str = ""
    session: str = ""
    lease_id: str = ""
    timeout_ms: int = 0
    traceparent: str = ""
    tracestate: str = ""
    meta: bytes = b""
    input: bytes = b""
    subject_token: str = ""
    method: str = ""
    wants_progress: bool = False
    log_level: str = ""
    answers: tuple[str, ...] = ()
    inline_media: bool = False
    passes_input: bool = False
    mcp_client: bytes = b""
    acquirer: str = ""
    lease_ttl: float | None = None
    report_end: bool = False
    known_ends: tuple[str, ...] = ()
    head: object = None

    @property
    def lease_key(self) -> LeaseKey:
        """The key of its session's lease, whether it has one or not."""
        return LeaseKey(self.tenant, self.session, self.server_id)

    def __repr__(self) -> str:  # without the token
        return f"IncomingCall({self.id}, {self.server_id!r}, {self.tool!r})"
