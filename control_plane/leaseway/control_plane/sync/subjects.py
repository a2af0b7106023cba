"""Handles what workers list for one tenant or user (design.md#tokens-for-remote-servers)."""

from __future__ import annotations

import logging

from leaseway.control_plane.core.catalog.listing import ServerListing
from leaseway.control_plane.core.catalog.subjects import Subject
from leaseway.control_plane.core.catalog.variants import Served
from leaseway.control_plane.core.problems import Problem
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.sync.convert import problem_from_proto
from leaseway.control_plane.sync.toolsets import listing_from_proto, toolset_to_proto
from leaseway.spec.codec import key_from_proto
from leaseway.v1 import sync_pb2
from leaseway.wire.errors import Fault
from leaseway.wire.names import check_caller_names, is_valid_tenant

_logger = logging.getLogger(__name__)


class SubjectAnswers:
    """Records listings, and answers with what callers may use of them."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    def handle(self, worker_id: str, message: sync_pb2.SubjectListing) -> None:
        """Record a listing, unless the worker does not serve the server."""
        key = key_from_proto(message.key)
        subject = Subject(key, message.tenant, message.user)
        record = self._plane.state.workers.get(worker_id)
        if record is None or not record.subscription.was_sent(key, message.launch_hash):
            _logger.warning(
                "Worker %s sent a listing of server %s for one subject, which it does not serve; "
                "the listing is ignored.",
                worker_id,
                key,
            )
            return
        if not _is_valid(subject):
            _logger.warning("Worker %s named a subject of server %s wrongly.", worker_id, key)
            return
        outcome = _outcome(message)
        with self._plane.transition() as (state, now):
            state.handle_subject_listing(worker_id, subject, message.launch_hash, outcome, now)
        if isinstance(outcome, ServerListing):
            self._answer(worker_id, subject, message)

    def _answer(self, worker_id: str, subject: Subject, message: sync_pb2.SubjectListing) -> None:
        stream = self._plane.streams.get(worker_id)
        if stream is None:
            return
        answer = sync_pb2.SubjectToolset(
            key=message.key,
            launch_hash=message.launch_hash,
            tenant=subject.tenant,
            user=subject.user,
        )
        served = self._own(subject)
        if served is not None and served.hashes.launch == message.launch_hash:
            answer.toolset.CopyFrom(toolset_to_proto(served))
        stream.send(sync_pb2.SyncResponse(subject_toolset=answer))

    def _own(self, subject: Subject) -> Served | None:
        """Return the server as it is for a subject, whatever the agents of its tenant may use."""
        return self._plane.state.subjects.served_for(
            self._plane.state.committed, self._plane.state.servers.last_known_good, subject
        )


def _outcome(message: sync_pb2.SubjectListing) -> ServerListing | Problem | None:
    if not message.HasField("lists"):
        return None
    if message.lists.HasField("problem"):
        return problem_from_proto(message.lists.problem)
    return listing_from_proto(message.lists)


def _is_valid(subject: Subject) -> bool:
    try:
        check_caller_names(tenant=subject.tenant, user=subject.user)
    except Fault:
        return False
    return is_valid_tenant(subject.tenant)
