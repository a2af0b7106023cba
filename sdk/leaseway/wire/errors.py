"""The errors that both planes raise.

Pure. `leaseway.wire.status` encodes a `Fault` for the wire. The SDK converts it to an exception for
its users; `leaseway.sdk` has one class for each reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

from leaseway.wire.advice import ADVICE

Started = Literal["no", "yes", "unknown"]
"""Whether the MCP server may have started to work on a call (design.md#calls, fate)."""


class Reason(StrEnum):
    """Why a request was rejected or failed; the constant in `ErrorInfo.reason`.

    See design.md#errors.
    """

    TOOL_NOT_FOUND = "TOOL_NOT_FOUND"
    SERVER_NOT_READY = "SERVER_NOT_READY"
    INVALID_ARGUMENTS = "INVALID_ARGUMENTS"
    INVALID_REQUEST = "INVALID_REQUEST"
    SERVER_ERROR = "SERVER_ERROR"
    SERVER_LOST = "SERVER_LOST"
    FATE_UNKNOWN = "FATE_UNKNOWN"
    WORKER_LOST = "WORKER_LOST"
    DRAINING = "DRAINING"
    NOT_APPLIED = "NOT_APPLIED"
    OVERLOADED = "OVERLOADED"
    SYNCING = "SYNCING"
    NOT_LEADER = "NOT_LEADER"
    CONTROL_PLANE_UNAVAILABLE = "CONTROL_PLANE_UNAVAILABLE"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    CANCELLED = "CANCELLED"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    LEASE_REVOKED = "LEASE_REVOKED"
    LEASE_RELEASED = "LEASE_RELEASED"
    LEASE_LOST = "LEASE_LOST"
    NOT_LEASABLE = "NOT_LEASABLE"
    SESSION_REQUIRED = "SESSION_REQUIRED"
    USER_REQUIRED = "USER_REQUIRED"
    RESULT_TOO_LARGE = "RESULT_TOO_LARGE"
    TOOL_DIFFERS = "TOOL_DIFFERS"
    ARTIFACT_LOST = "ARTIFACT_LOST"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    CONFIRMATION_REQUIRED = "CONFIRMATION_REQUIRED"
    LOGIN_REQUIRED = "LOGIN_REQUIRED"
    AUTHORIZATION_FAILED = "AUTHORIZATION_FAILED"
    RATE_LIMITED = "RATE_LIMITED"
    CAPACITY = "CAPACITY"
    INPUT_REQUIRED = "INPUT_REQUIRED"
    INCOMPATIBLE_VERSION = "INCOMPATIBLE_VERSION"
    INTERNAL = "INTERNAL"


OF_ONE_WORKER: Final = frozenset(
    {
        Reason.WORKER_LOST,
        Reason.DRAINING,
        Reason.NOT_APPLIED,
        Reason.OVERLOADED,
        Reason.FATE_UNKNOWN,
        Reason.SERVER_LOST,
    }
)
"""Failures of one worker; another worker may succeed, or the same one later."""

SETTLING: Final = frozenset({Reason.SYNCING, Reason.NOT_LEADER})
"""Temporary failures of a control plane."""

OF_AUTHORIZATION: Final = frozenset({Reason.LOGIN_REQUIRED, Reason.AUTHORIZATION_FAILED})
"""A worker has no token for a remote server (design.md#tokens-for-remote-servers)."""

UNANSWERED: Final = frozenset({Reason.CONTROL_PLANE_UNAVAILABLE, Reason.DEADLINE_EXCEEDED})
"""Reasons of requests that no control plane answered."""


@dataclass(eq=False)
class Fault(Exception):
    """A rejection or failure with a reason.

    Attributes:
        reason: The reason, from design.md#errors.
        message: A sentence that its caller can act on, without secrets and argument values. What an
            operator does about it is `advice`: a caller may be a model without commands.
        started: Whether the MCP server may have started to work on the call.
        metadata: Facts for programs (`server`, `worker`, `lease`, `exit_status`, `stderr`,
            `code`, `data`, `nearest` …), all strings.
        retry_delay: Seconds after which another try may succeed, or None.
        violations: (field path, what is wrong) of rejected arguments.
    """

    reason: Reason
    message: str
    started: Started = "no"
    metadata: Mapping[str, str] = field(default_factory=dict)
    retry_delay: float | None = None
    violations: tuple[tuple[str, str], ...] = ()

    @property
    def advice(self) -> str:
        """What an operator does about it, in sentences, or empty (`leaseway.wire.advice`)."""
        return self.metadata.get(ADVICE, "")

    def __str__(self) -> str:
        return self.message
