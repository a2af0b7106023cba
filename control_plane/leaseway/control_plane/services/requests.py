"""What all services do with a request: check it, count it against limits, find its deadline."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from leaseway.control_plane.plane import Plane
from leaseway.v1 import catalog_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault
from leaseway.wire.listing.pages import PageRequest, PageStart, page_start
from leaseway.wire.names import DEFAULT_TENANT, check_caller_names
from leaseway.wire.sharing.limits import UsageCounter
from leaseway.wire.status import abort
from leaseway.wire.version import check_client_version


async def check_client(
    client: catalog_pb2.ClientInfo,
    context: grpc.aio.ServicerContext[Any, Any],
    tenant: str = "",
    session: str = "",
) -> None:
    """Abort the request if its protocol version, tenant, session or agent name is invalid.

    A client without a protocol version is accepted.
    """
    try:
        check_client_version(client, "this control plane")
        check_caller_names(session=session, tenant=tenant, agent=client.agent)
    except Fault as fault:
        await abort(context, fault)


async def page_of(
    listing: str, request: PageRequest, context: grpc.aio.ServicerContext[Any, Any]
) -> PageStart:
    """Return where the requested page of a list starts; abort if the token is invalid."""
    try:
        return page_start(listing, request)
    except Fault as fault:
        await abort(context, fault)


@asynccontextmanager
async def counted(
    in_use: UsageCounter,
    tenant: object | None,
    context: grpc.aio.ServicerContext[Any, Any],
    plane: Plane,
) -> AsyncIterator[None]:
    """Count a request of a connection and a tenant while the block runs; abort over the limit.

    Args:
        tenant: The tenant, or None if it is unknown.
        context: The request's context.
        plane: Counts rejected requests.
    """
    connection = str(context.peer())
    try:
        in_use.acquire(connection, tenant)
    except Fault as fault:
        if plane.meters is not None:
            plane.meters.limits.record(fault.metadata)
        await abort(context, fault)
    try:
        yield
    finally:
        in_use.release(connection, tenant)


def watchers() -> UsageCounter:
    """Return a counter for watches of one kind."""
    return UsageCounter(
        "watchers",
        "watches of the control plane",
        bounds.MAX_WATCHERS,
        bounds.MAX_TENANT_WATCHERS,
        "End some of them.",
    )


def placements() -> UsageCounter:
    """Return a counter for requests that may wait for their result."""
    return UsageCounter(
        "placements",
        "requests for leases or names without an answer",
        bounds.MAX_PLACEMENTS,
        bounds.MAX_TENANT_PLACEMENTS,
        "Wait for some of them.",
    )


def tenant_of(name: str) -> str:
    return name or DEFAULT_TENANT


def time_left(context: grpc.aio.ServicerContext[Any, Any], longest: float) -> float:
    """Return the seconds until the caller's deadline, at most `longest`."""
    remaining = context.time_remaining()
    return longest if remaining is None else min(longest, remaining)
