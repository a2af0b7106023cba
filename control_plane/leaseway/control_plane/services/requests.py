"""What every request of a caller has: who it is, and how long it waits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from leaseway.control_plane.plane import Plane
from leaseway.v1 import catalog_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault
from leaseway.wire.limits import UsageCounter
from leaseway.wire.messages.pages import PageRequest, PageStart, page_start
from leaseway.wire.names import DEFAULT_TENANT, check_caller_names
from leaseway.wire.status import abort
from leaseway.wire.version import check_client_version


async def check_client(
    client: catalog_pb2.ClientInfo,
    context: grpc.aio.ServicerContext[Any, Any],
    tenant: str = "",
    session: str = "",
) -> None:
    """Refuse a caller of another protocol version, and names that break the rule for them.

    One that does not say its version is taken.
    """
    try:
        check_client_version(client, "this control plane")
        check_caller_names(session=session, tenant=tenant, agent=client.agent)
    except Fault as fault:
        await abort(context, fault)


async def page_of(
    listing: str, request: PageRequest, context: grpc.aio.ServicerContext[Any, Any]
) -> PageStart:
    """Return where the page of a listing begins that a request asks for; refuse a wrong token."""
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
    """Count a request among those of its connection and its tenant; refuse one too many.

    Args:
        in_use: What is counted.
        tenant: Whose the request is, or None where that is not known.
        context: The request's.
        plane: Counts refusals.
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
    """Return what counts the watches of one kind."""
    return UsageCounter(
        "watchers",
        "watches of the control plane",
        lambda: bounds.MAX_WATCHERS,
        lambda: bounds.MAX_TENANT_WATCHERS,
        "End some of them.",
    )


def placements() -> UsageCounter:
    """Return what counts requests that may wait for what they ask for."""
    return UsageCounter(
        "placements",
        "requests for leases or names without an answer",
        lambda: bounds.MAX_PLACEMENTS,
        lambda: bounds.MAX_TENANT_PLACEMENTS,
        "Wait for some of them.",
    )


def tenant_of(name: str) -> str:
    return name or DEFAULT_TENANT


def time_left(context: grpc.aio.ServicerContext[Any, Any], longest: float) -> float:
    """Return the seconds until the caller gives up, at most `longest`."""
    left = context.time_remaining()
    return longest if left is None else min(longest, left)
