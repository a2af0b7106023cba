"""Conversion of protobuf times to seconds, and the limits of a lease's time to live."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from leaseway.wire.bounds import MAX_LEASE_TTL, MIN_LEASE_TTL
from leaseway.wire.errors import Fault, Reason


def duration(value: float) -> Duration:
    message = Duration()
    message.FromNanoseconds(round(value * 1e9))
    return message


def timestamp(unix: float) -> Timestamp:
    """Convert Unix time in seconds to a protobuf timestamp."""
    message = Timestamp()
    message.FromNanoseconds(int(unix * 1e9))
    return message


def seconds(value: Duration | Timestamp) -> float:
    """Convert a protobuf duration to seconds, or a timestamp to Unix time."""
    return (value.seconds * 1_000_000_000 + value.nanos) / 1e9


def check_lease_ttl(ttl: float) -> None:
    """Check a lease's time to live in seconds (design.md#leases).

    Raises:
        Fault: INVALID_REQUEST: it is out of bounds.
    """
    if not MIN_LEASE_TTL <= ttl <= MAX_LEASE_TTL:
        raise Fault(
            Reason.INVALID_REQUEST,
            f"A lease lives {MIN_LEASE_TTL:g} s to {MAX_LEASE_TTL:g} s; ttl={ttl:g} is not "
            "within that.",
        )


def check_kept(keep: float) -> None:
    """Check for how many seconds without a call a lease is to outlive its client.

    Raises:
        Fault: INVALID_REQUEST: it is negative, or longer than any lease lives.
    """
    if not 0 <= keep <= MAX_LEASE_TTL:
        raise Fault(
            Reason.INVALID_REQUEST,
            f"A lease is kept for 0 s to {MAX_LEASE_TTL:g} s without a call; keep={keep:g} is not "
            "within that.",
        )
