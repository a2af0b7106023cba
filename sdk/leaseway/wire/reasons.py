"""Why something was refused or failed: the constants that programs compare."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

__all__ = ["OF_ONE_WORKER", "SETTLING", "UNANSWERED", "Reason"]


class Reason(StrEnum):
    """Why something was refused or failed (DESIGN §7); the constant in `ErrorInfo.reason`."""

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
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    CANCELLED = "CANCELLED"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    LEASE_REVOKED = "LEASE_REVOKED"
    LEASE_RELEASED = "LEASE_RELEASED"
    LEASE_LOST = "LEASE_LOST"
    NOT_LEASABLE = "NOT_LEASABLE"
    SESSION_REQUIRED = "SESSION_REQUIRED"
    RESULT_TOO_LARGE = "RESULT_TOO_LARGE"
    TOOL_DIFFERS = "TOOL_DIFFERS"
    ARTIFACT_LOST = "ARTIFACT_LOST"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    CONFIRMATION_REQUIRED = "CONFIRMATION_REQUIRED"
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
"""Failures of one worker, which another one need not share, nor the same one later."""

SETTLING: Final = frozenset({Reason.SYNCING, Reason.NOT_LEADER})
"""Failures of a control plane that pass by themselves."""

UNANSWERED: Final = frozenset({Reason.CONTROL_PLANE_UNAVAILABLE, Reason.DEADLINE_EXCEEDED})
"""What a request ends with that no control plane has answered."""
