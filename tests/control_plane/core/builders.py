"""Builders for values of the core."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace

from leaseway.control_plane.core.approvals import ApprovalRequest
from leaseway.control_plane.core.catalog.listing import ListedItem, ServerListing
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.placement.table import HeldLease, PlacementTable
from leaseway.control_plane.core.workers.records import WorkerHello, WorkerIdentity
from leaseway.spec.auth import Auth, AuthGrant
from leaseway.spec.auth import Subject as Whose
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import ServerSpec, Transform, VariantKey
from leaseway.wire import bounds
from leaseway.wire.names import LeaseKey

START = Moment(1_000.0, 1_700_000_000.0)
MAIL = VariantKey("mail")
PAY = ApprovalRequest(
    tenant="acme",
    agent="billing",
    session="d1",
    of_session=False,
    server_id="bank",
    tool="pay",
    digest="digest-1",
    arguments="{}",
    asked_by="key 1",
)


@dataclass
class Able:
    """Eligible workers for placement."""

    ids: Collection[str]
    max_leases: int = bounds.MAX_INSTANCES
    holding: Collection[str] = ()
    suspect: Collection[str] = ()
    spares: Collection[str] = ()

    def accepts(self, worker_id: str) -> bool:
        return worker_id in self.ids

    def keeps_leases(self, worker_id: str) -> bool:
        return worker_id in self.ids or worker_id in self.holding

    def is_suspect(self, worker_id: str) -> bool:
        return worker_id in self.suspect


def table_of(**capacities: int) -> PlacementTable:
    """Return a table with workers of these capacities."""
    table = PlacementTable()
    for worker_id, capacity in capacities.items():
        table.add_worker(worker_id, capacity)
    return table


def at(seconds: float) -> Moment:
    """Return the moment this many seconds after the start."""
    return Moment(START.mono + seconds, START.unix + seconds)


def spec(
    server_id: str, *, command: str = "serve", prefix: str | None = None, shared: bool = True
) -> ServerSpec:
    """Return a stdio server's spec, prefixed with its id unless told otherwise."""
    return server_spec(
        key=VariantKey(server_id),
        transport="stdio",
        truely_stateless=shared,
        command=command,
        transforms=(Transform("prefix", f"{server_id}_" if prefix is None else prefix),),
    )


def listing(*names: str) -> ServerListing:
    """Return the listing of a server with these tools."""
    return ServerListing(
        tuple(ListedItem(n, json.dumps({"name": n, "inputSchema": {}}).encode()) for n in names),
        "2025-11-25",
    )


def recorded(*names: str, member: str = "name", definition: bytes = b"") -> tuple[ListedItem, ...]:
    """Return prompts of these names, or resources or templates with these URIs as `member`."""
    return tuple(
        ListedItem(name, definition or json.dumps({"name": "n", member: name}).encode())
        for name in names
    )


def offering(
    *tools: str,
    prompts: tuple[str, ...] = (),
    resources: tuple[str, ...] = (),
    templates: tuple[str, ...] = (),
) -> ServerListing:
    """Return the listing of a server with these tools, and other things besides."""
    return replace(
        listing(*tools),
        prompts=recorded(*prompts),
        resources=recorded(*resources, member="uri"),
        templates=recorded(*templates, member="uriTemplate"),
    )


def hello(worker_id: str = "w1", **changes: object) -> WorkerHello:
    """Return a worker's hello."""
    base = WorkerHello(WorkerIdentity(worker_id, f"run-{worker_id}", "127.0.0.1:1"), capacity=8)
    return replace(base, **changes)  # type: ignore[arg-type]


def lease(lease_id: str, worker_id: str, session: str = "s", server_id: str = "a") -> HeldLease:
    """Return a lease as a worker reports it."""
    return HeldLease(lease_id, LeaseKey("default", session, server_id), worker_id, START.mono)


def coordinator(expected_workers: int = 1) -> Coordinator:
    """Return a coordinator that has just started."""
    return Coordinator(START, epoch=1, expected_workers=expected_workers)


def load(state: Coordinator, *specs: ServerSpec, now: Moment = START) -> None:
    """Apply a configuration with these servers."""
    state.apply_config({spec.key: spec for spec in specs}, frozenset(), (), now)


def mail(grant: AuthGrant = "authorization_code", whose: Whose = "user") -> ServerSpec:
    return server_spec(
        MAIL,
        "streamable_http",
        truely_stateless=True,
        url="https://mail.example/mcp",
        auth=Auth(grant, whose),
        transforms=(Transform("prefix", "x_"),),
    )
