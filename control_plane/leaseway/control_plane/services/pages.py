"""Pages of lists for operators: servers, workers, leases, limits, problems, approvals.

See design.md#bounds-and-defaults.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Final

from leaseway.control_plane.core.approvals import ApprovalRecord
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.placement.lease_ends import ReportedLeaseEnd
from leaseway.control_plane.core.placement.table import HeldLease
from leaseway.control_plane.core.problems import OpenProblem
from leaseway.control_plane.core.queries.limits import LimitStatus
from leaseway.control_plane.core.workers.instances import ReportedInstance
from leaseway.control_plane.services import messages
from leaseway.spec.model import VariantKey
from leaseway.v1 import admin_pb2, catalog_pb2, leases_pb2
from leaseway.wire.audit_heads import AuditAnchor
from leaseway.wire.listing.pages import PageStart, SortKey, one_page
from leaseway.wire.messages.audit_heads import anchor_to_proto

_MAX_NUMBER: Final = 10**15
"""More than any approval's number."""
_PART_SIZE: Final = 256
"""Instances of a server that are never split over two pages."""


def servers(
    state: Coordinator, keys: Iterable[VariantKey], now: Moment, start: PageStart
) -> tuple[list[catalog_pb2.ServerStatus], str]:
    """Return a page of configured servers, and the next page's token.

    A server with many instances may continue on the next page.
    """
    after = VariantKey(*start.after[:2]) if start.after else VariantKey("")
    parts = _server_parts(state, [key for key in keys if key >= after], now, start.after)
    page, token = one_page(start, parts, lambda part: part)
    whole: list[catalog_pb2.ServerStatus] = []
    for part in page:
        if whole and (whole[-1].server_id, whole[-1].tenant) == (part.server_id, part.tenant):
            whole[-1].instances.extend(part.instances)
        else:
            whole.append(part)
    return whole, token


def _server_parts(
    state: Coordinator, keys: Iterable[VariantKey], now: Moment, after: SortKey
) -> Iterator[tuple[SortKey, catalog_pb2.ServerStatus]]:
    """Yield each server with its first instances, then the other instances, from `after` on."""
    instances = messages.instances_by_variant(state)
    errors = messages.errors_by_server(state)
    for key in keys:
        name = (key.server_id, key.tenant)
        remaining = sorted(
            (
                instance
                for instance in instances.get(key, ())
                if (*name, *_instance_key(instance)) > after
            ),
            key=_instance_key,
        )
        if name != after[:2]:
            part, remaining = remaining[:_PART_SIZE], remaining[_PART_SIZE:]
            last = _instance_key(part[-1]) if part else ("", "", "")
            yield (*name, *last), messages.server(state, key, now, part, errors)
        for begin in range(0, len(remaining), _PART_SIZE):
            part = remaining[begin : begin + _PART_SIZE]
            status = catalog_pb2.ServerStatus(
                server_id=key.server_id,
                tenant=key.tenant,
                instances=[messages.instance(instance) for instance in part],
            )
            yield (*name, *_instance_key(part[-1])), status


def _instance_key(instance: ReportedInstance) -> SortKey:
    # Before its first start an instance has no id; there may be one per launch hash.
    return instance.worker_id, instance.id, instance.launch_hash


def workers(
    state: Coordinator, start: PageStart, worker_ids: Collection[str] = ()
) -> tuple[list[admin_pb2.WorkerStatus], str]:
    """Return a page of workers including lost ones, ordered by id, and the next page's token.

    Args:
        start: Where the page starts.
        worker_ids: The workers to return; empty for all.
    """
    roster = state.roster
    found = roster.find_workers(worker_ids) if worker_ids else roster.all_workers
    records = (((record.id,), record) for record in found)
    return one_page(start, records, partial(messages.worker, state))


def ends_and_leases(
    ends: Iterable[ReportedLeaseEnd], held: Iterable[HeldLease], now: float, start: PageStart
) -> tuple[list[admin_pb2.LeaseEnd | leases_pb2.Lease], str]:
    """Return a page of recent lease ends followed by leases, and the next page's token."""

    def message(item: ReportedLeaseEnd | HeldLease) -> admin_pb2.LeaseEnd | leases_pb2.Lease:
        if isinstance(item, HeldLease):
            return messages.lease(item, now)
        return admin_pb2.LeaseEnd(lease_id=item.lease_id, tenant=item.tenant, how=item.how)

    ended = ((("end", end.lease_id), end) for end in sorted(ends, key=attrgetter("lease_id")))
    known = start.after[-1] if start.after[:1] == ("lease",) else ""
    remaining = sorted((lease for lease in held if lease.id > known), key=attrgetter("id"))
    leases = ((("lease", lease.id), lease) for lease in remaining)
    sources: Iterator[tuple[SortKey, ReportedLeaseEnd | HeldLease]] = chain(ended, leases)
    return one_page(start, sources, message)


def limits(
    found: Iterable[LimitStatus], start: PageStart
) -> tuple[list[admin_pb2.LimitStatus], str]:
    """Return a page of limits in the given order, and the next page's token."""
    return one_page(start, ((limit.key, limit) for limit in found), messages.limit)


def problems(found: Iterable[OpenProblem], start: PageStart) -> tuple[list[admin_pb2.Problem], str]:
    """Return a page of problems in the given order, and the next page's token.

    The page of a problem depends on its key, which does not change when the problem is seen again,
    so that reading all pages misses none.
    """
    listed = list(found)
    sources = sorted(((opened.problem.key, place) for place, opened in enumerate(listed)))
    places: list[int] = []

    def message(place: int) -> admin_pb2.Problem:
        places.append(place)
        return messages.problem(listed[place])

    page, token = one_page(start, sources, message)
    in_order = sorted(zip(places, page, strict=False), key=itemgetter(0))
    return [problem for _, problem in in_order], token


def approvals(
    found: Iterable[ApprovalRecord], start: PageStart
) -> tuple[list[admin_pb2.Approval], str]:
    """Return a page of approvals, newest first, and the next page's token."""
    sources = (((f"{_MAX_NUMBER - record.number:016d}",), record) for record in found)
    return one_page(start, sources, messages.approval)


def anchors(
    found: Iterable[AuditAnchor], start: PageStart
) -> tuple[list[admin_pb2.AuditAnchor], str]:
    """Return a page of anchors of the audit, ordered by run, and the next page's token."""
    return one_page(start, (((anchor.head.run,), anchor) for anchor in found), anchor_to_proto)
