"""What every request of a caller has: who it is, and how long it waits."""

from __future__ import annotations

from typing import Any

import grpc

from leaseway.v1 import catalog_pb2
from leaseway.wire.fault import Fault, Reason, abort
from leaseway.wire.names import DEFAULT_TENANT
from leaseway.wire.version import PROTOCOL_VERSION, user_agent

__all__ = ["check_client", "tenant_of", "time_left"]


async def check_client(
    client: catalog_pb2.ClientInfo, context: grpc.aio.ServicerContext[Any, Any]
) -> None:
    """Refuse a caller of another protocol version; one that does not say is taken."""
    if client.protocol_version not in (0, PROTOCOL_VERSION):
        message = (
            f"The caller speaks protocol version {client.protocol_version}"
            f" ({client.package_version or 'unknown package'}), this control plane"
            f" {PROTOCOL_VERSION} ({user_agent()}). Use the same release of both."
        )
        await abort(context, Fault(Reason.INCOMPATIBLE_VERSION, message))


def tenant_of(name: str) -> str:
    """Return the tenant that a request is for."""
    return name or DEFAULT_TENANT


def time_left(context: grpc.aio.ServicerContext[Any, Any], longest: float) -> float:
    """Return the seconds until the caller gives up, at most `longest`."""
    left = context.time_remaining()
    return longest if left is None else min(longest, left)
