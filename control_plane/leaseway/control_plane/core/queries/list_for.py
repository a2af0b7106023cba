"""Has workers list servers for a tenant or user for whom they were not listed."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from functools import partial

from leaseway.control_plane.core.catalog.subjects import Reader, Subject, can_log_in
from leaseway.control_plane.core.catalog.variants import Served
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.workers.actions import ListForSubject


def unlisted(
    state: Coordinator, reader: Reader, servers: Collection[str], now: Moment
) -> Mapping[str, tuple[Served, Subject]]:
    """Return the servers that must be listed for a reader, or are being listed, by id.

    A server whose tokens callers bring is listed by the first call, which brings one.

    Args:
        reader: For whom.
        servers: Only these; empty for all that it sees.
        now: The time.
    """
    base = state.visible.view(reader.tenant, reader.agent)
    if not base.of_people:
        return {}
    return {
        served.key.server_id: (served, subject)
        for served, subject in state.subjects.unlisted(base, reader)
        if served.key.server_id in (servers or base.of_people)
        and can_log_in(served, subject)
        and not state.subjects.requests.has_failed(subject, now)
    }


def request(state: Coordinator, served: Served, subject: Subject, now: Moment) -> None:
    """Ask a worker to list a server for a subject, unless one was asked."""
    able = [
        record.id
        for record in state.workers_serving(served)
        if record.hello.lists_subjects and record.accepts_work
    ]
    if not able:
        state.subjects.requests.finish(subject, now, failed=True)
    elif state.subjects.requests.start(subject, now):
        asked = ListForSubject(served.key, served.hashes.launch, subject.tenant, subject.user)
        state.roster.queue_action(min(able, key=partial(_rank, subject)), asked)


def _rank(subject: Subject, worker_id: str) -> int:
    """Return a number by which mostly the same worker lists for a subject."""
    named = (worker_id, str(subject.variant), subject.tenant, subject.user)
    return zlib.crc32("\n".join(named).encode())
