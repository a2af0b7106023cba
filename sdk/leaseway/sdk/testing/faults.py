"""Errors that a test injects, as a worker would send them."""

from __future__ import annotations

from typing import Final

from leaseway.sdk.errors import LeasewayError
from leaseway.wire.errors import Fault, Reason

_BEGUN: Final = frozenset(
    {
        Reason.SERVER_ERROR,
        Reason.SERVER_LOST,
        Reason.FATE_UNKNOWN,
        Reason.RESULT_TOO_LARGE,
        Reason.DEADLINE_EXCEEDED,
        Reason.CANCELLED,
        Reason.INTERNAL,
    }
)
"""What happens to calls that a server has begun to work on."""


def fault_of(error: LeasewayError) -> Fault:
    """Return an error as it crosses the wire."""
    begun = error.started == "no" and error.reason in _BEGUN
    return Fault(
        reason=error.reason,
        message=error.message,
        started="yes" if begun else error.started,
        metadata=error.metadata,
        retry_delay=error.retry_after,
        violations=tuple((one.field, one.message) for one in error._violations),
    )
