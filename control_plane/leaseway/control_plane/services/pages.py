"""What operators list, a page at a time: servers, workers, leases, problems (DESIGN §10)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter
from typing import Final

from leaseway.control_plane.core.approvals import ApprovalRecord
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.placement.lease_ends import ReportedLeaseEnd
from leaseway.control_plane.core.placement.table import HeldLease
from leaseway.control_plane.core.problems import OpenProblem
from leaseway.control_plane.core.workers.records import ReportedInstance
from leaseway.control_plane.services import messages as answers
from leaseway.spec.model import VariantKey
from leaseway.v1 import admin_pb2, catalog_pb2, leases_pb2
from leaseway.wire.messages.pages import Key, PageStart, one_page

_LAST: Final = 10**15
"""More than any approval's number."""
_PART: Final = 256
"""Instances of a server that are on one page together, or on the next."""


def servers(
    state: Coordinator, keys: Iterable[VariantKey], now: Moment, start: PageStart
) -> tuple[list[catalog_pb2.ServerStatus], str]:
    """Return a page of configured servers, and the next page's token.

    A server of many instances, as one of a large fleet has, goes on in the next page.
    """
    after = VariantKey(*start.after[:2]) if start.after else VariantKey("")
    asked = [key for key in keys if key >= after]
    parts = _server_parts(state, asked, now, start.after)
    page, token = one_page(start, parts, lambda part: part)
    whole: list[catalog_pb2.ServerStatus] = []
    for part in page:
        if whole and (whole[-1].server_id, whole[-1].tenant) == (part.server_id, part.tenant):
            whole[-1].instances.extend(part.instances)
        else:
            whole.append(part)
    return whole, token


def _server_parts(
    state: Coordinator, keys: Iterable[VariantKey], now: Moment, after: Key
) -> Iterator[tuple[Key, catalog_pb2.ServerStatus]]:
    """Yield each server with its first instances, then the others; those of a page before not."""
    instances = answers.instances_by_variant(state)
    errors = answers.errors_by_server(state)
    for key in keys:
        name = (key.server_id, key.tenant)
        left = sorted(
            (one for one in instances.get(key, ()) if (*name, *_place(one)) > after), key=_place
        )
        if name != after[:2]:
            status = answers.server(state, key, now, left[:_PART], errors)
            yield (*name, *(_place(left[:_PART][-1]) if left else ("", "", ""))), status
            left = left[_PART:]
        for begin in range(0, len(left), _PART):
            part = left[begin : begin + _PART]
            status = catalog_pb2.ServerStatus(
                server_id=key.server_id,
                tenant=key.tenant,
                instances=[answers.instance(one) for one in part],
            )
            yield (*name, *_place(part[-1])), status


def _place(one: ReportedInstance) -> Key:
    # One that waits for its first start has no id; there may be one of each generation.
    return one.worker_id, one.id, one.launch_hash


def workers(state: Coordinator, start: PageStart) -> tuple[list[admin_pb2.WorkerStatus], str]:
    """Return a page of workers, lost ones too, ordered by id, and the next page's token."""
    records = (((record.id,), record) for record in state.roster.all_workers)
    return one_page(start, records, lambda record: answers.worker(state, record))


def ends_and_leases(
    ends: Iterable[ReportedLeaseEnd], held: Iterable[HeldLease], now: float, start: PageStart
) -> tuple[list[admin_pb2.LeaseEnd | leases_pb2.Lease], str]:
    """Return a page of how leases ended and then of leases, and the next page's token."""

    def message(one: ReportedLeaseEnd | HeldLease) -> admin_pb2.LeaseEnd | leases_pb2.Lease:
        if isinstance(one, HeldLease):
            return answers.lease(one, now)
        return admin_pb2.LeaseEnd(lease_id=one.lease_id, tenant=one.tenant, how=one.how)

    ended = ((("end", end.lease_id), end) for end in sorted(ends, key=attrgetter("lease_id")))
    known = start.after[-1] if start.after[:1] == ("lease",) else ""
    left = sorted((lease for lease in held if lease.id > known), key=attrgetter("id"))
    leases = ((("lease", lease.id), lease) for lease in left)
    sources: Iterator[tuple[Key, ReportedLeaseEnd | HeldLease]] = chain(ended, leases)
    return one_page(start, sources, message)


def problems(found: Iterable[OpenProblem], start: PageStart) -> tuple[list[admin_pb2.Problem], str]:
    """Return a page of problems in the order given, and the next page's token.

    Which page one is in depends on what it is. That does not change when it is seen again, so
    that none is missed by who reads all of them.
    """
    listed = list(found)
    sources = sorted(((one.problem.key, place) for place, one in enumerate(listed)))
    taken: list[int] = []

    def message(place: int) -> admin_pb2.Problem:
        taken.append(place)
        return answers.problem(listed[place])

    page, token = one_page(start, sources, message)
    in_order = sorted(zip(taken, page, strict=False), key=lambda pair: pair[0])
    return [problem for _, problem in in_order], token


def approvals(
    found: Iterable[ApprovalRecord], start: PageStart
) -> tuple[list[admin_pb2.Approval], str]:
    """Return a page of approvals, the newest first, and the next page's token."""
    sources = (((f"{_LAST - each.number:016d}",), each) for each in found)
    return one_page(start, sources, answers.approval)
