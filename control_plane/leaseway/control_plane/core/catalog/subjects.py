"""What servers list for each tenant or user that they act for, and the views that follow.

A server with people's tokens may list other tools for each of them. The listing of one subject is
in the views of that subject alone (design.md#tokens-for-remote-servers).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from leaseway.control_plane.core.catalog.admin_toolset import add_admin_toolset
from leaseway.control_plane.core.catalog.listing import NOT_LISTED, ServerListing
from leaseway.control_plane.core.catalog.snapshot import Snapshot, View, resolve_clashes_among
from leaseway.control_plane.core.catalog.variants import (
    LastKnownGood,
    Served,
    granted_to,
    relist,
)
from leaseway.control_plane.core.moment import Moment
from leaseway.spec.model import VariantKey
from leaseway.wire import bounds
from leaseway.wire.sharing.newest import Newest

ALL_USERS: Final = ""
"""In a set of users: whatever the tenant's users see may have changed."""
_MAX_CHANGES: Final = 1_024
"""Remembered changes; who has not heard of an older one reads everything again."""
_MAX_VIEWS: Final = 1_000
_MAX_REQUESTS: Final = 1_024
"""Requests without an answer; other subjects are not listed meanwhile."""
_REQUEST_TIMEOUT: Final = 30.0
"""Seconds that a worker may take: it connects to the server first."""
_FAILED_FOR: Final = 5.0


class Subject(NamedTuple):
    """Whom a server acts for.

    Attributes:
        variant: The variant that serves the tenant.
        user: The tenant's user; empty for the tenant itself.
    """

    variant: VariantKey
    tenant: str
    user: str


class Reader(NamedTuple):
    """For whom servers are listed and names resolved.

    Attributes:
        user: The user, or empty for none.
        sees_all: Whether it speaks for every user of every tenant, so that without a user it sees
            what the server listed at first, whoever that was for.
    """

    tenant: str
    agent: str = ""
    user: str = ""
    sees_all: bool = False


@dataclass(frozen=True)
class _Known:
    launch_hash: str
    listing: ServerListing
    run: Hashable


class SubjectRequests:
    """The requests to workers for listings of subjects.

    A failed one is not repeated for 5 s, whoever asks: workers tell unasked that a login has come.
    """

    def __init__(self) -> None:
        self._until: dict[Subject, float] = {}
        self._failed: Newest[Subject, float] = Newest(bounds.MAX_SUBJECT_LISTINGS)

    def start(self, subject: Subject, now: Moment) -> bool:
        """Note a request; return False if there is one, or there are too many."""
        if self.is_open(subject, now):
            return False
        if len(self._until) >= _MAX_REQUESTS:
            self._until = {key: until for key, until in self._until.items() if until > now.mono}
        if len(self._until) >= _MAX_REQUESTS:
            return False
        self._until[subject] = now.mono + _REQUEST_TIMEOUT
        return True

    def finish(self, subject: Subject, now: Moment, *, failed: bool) -> None:
        """Note the end of a request, or a listing that was not asked for."""
        self._until.pop(subject, None)
        self._failed.pop(subject, None)
        if failed:
            self._failed[subject] = now.mono + _FAILED_FOR

    def is_open(self, subject: Subject, now: Moment) -> bool:
        """Return whether a worker is about to answer."""
        return self._until.get(subject, 0.0) > now.mono

    def has_failed(self, subject: Subject, now: Moment) -> bool:
        """Return whether the last request has just failed."""
        return self._failed.get(subject, 0.0) > now.mono


class SubjectListings:
    """The last listing of each subject; the ones that were not used for longest are dropped.

    Equal listings are kept once.

    Args:
        max_subjects: The number of listings.
        max_bytes: The bytes of all definitions, equal listings counted once.

    Attributes:
        requests: What workers are asked to list.
        sequence: The number of changes so far.
        is_used: Whether some worker lists servers for single subjects. Otherwise all of them see
            what a server listed at first.
    """

    def __init__(
        self,
        max_subjects: int = bounds.MAX_SUBJECT_LISTINGS,
        max_bytes: int = bounds.MAX_SUBJECT_BYTES,
    ) -> None:
        self._max_subjects, self._max_bytes = max_subjects, max_bytes
        self._known: OrderedDict[Subject, _Known] = OrderedDict()
        self._shared: dict[str, tuple[ServerListing, int]] = {}
        """By digest, with the number of subjects that have it."""
        self._bytes = 0
        self._changes: deque[tuple[int, str, str]] = deque(maxlen=_MAX_CHANGES)
        self._views: dict[Reader, tuple[View, tuple[ServerListing | None, ...], View]] = {}
        self.requests = SubjectRequests()
        self.sequence = 0
        self.is_used = False

    def __len__(self) -> int:
        return len(self._known)

    def record(
        self, subject: Subject, run: Hashable, launch_hash: str, listing: ServerListing
    ) -> None:
        """Record what a run of a worker listed for a subject."""
        before = self._known.get(subject)
        shared, count = self._shared.get(listing.digest, (listing, 0))
        self._shared[listing.digest] = shared, count + 1
        self._bytes += _size(listing) if not count else 0
        if before is not None:
            self._release(before)
        self._known[subject] = _Known(launch_hash, shared, run)
        self._known.move_to_end(subject)
        if (
            before is None
            or before.listing.digest != listing.digest
            or before.launch_hash != launch_hash
        ):
            self._note(subject)
        while len(self._known) > 1 and (
            len(self._known) > self._max_subjects or self._bytes > self._max_bytes
        ):
            self._release(self._known.popitem(last=False)[1])

    def end(self, subject: Subject) -> None:
        """Forget what was listed for a subject whose login has ended."""
        known = self._known.pop(subject, None)
        if known is not None:
            self._release(known)
            self._note(subject)

    def keep_runs(self, runs: Iterable[Hashable]) -> None:
        """Forget what other workers have listed: they do not tell any more when logins end.

        Args:
            runs: The runs of workers that list servers for single subjects. Only the first is
                looked at while nothing is known: a large fleet joins one by one.
        """
        remaining = iter(runs)
        first = next(remaining, None)
        self.is_used = first is not None
        if not self._known:
            return
        kept = {first, *remaining}
        for subject, known in tuple(self._known.items()):
            if known.run not in kept:
                del self._known[subject]
                self._release(known)

    def find(self, subject: Subject, launch_hash: str) -> ServerListing | None:
        """Return what a launch of the server lists for a subject, or None if that is unknown."""
        known = self._known.get(subject)
        if known is None or known.launch_hash != launch_hash:
            return None
        self._known.move_to_end(subject)
        return known.listing

    def changed_since(self, sequence: int, tenant: str) -> frozenset[str]:
        """Return the users of a tenant for whom something changed, with `ALL_USERS` for all."""
        if sequence >= self.sequence:
            return frozenset()
        if not self._changes or self._changes[0][0] > sequence + 1:
            return frozenset({ALL_USERS})
        return frozenset(
            user for number, whose, user in self._changes if number > sequence and whose == tenant
        )

    def view(
        self,
        snapshot: Snapshot,
        last_known_good: Mapping[VariantKey, LastKnownGood],
        reader: Reader,
    ) -> View:
        """Return what a reader sees: of servers that act for somebody, what they list for it."""
        base = snapshot.view(reader.tenant, reader.agent)
        if not base.of_people or not self.is_used:
            return base
        subjects = {
            server_id: subject
            for server_id in base.of_people
            if (subject := subject_of(base.servers[server_id], reader)) is not None
        }
        without_login = [
            server_id
            for server_id in base.of_people
            if server_id not in subjects and base.servers[server_id].awaits_tenant
        ]
        if not subjects and not without_login:
            return base
        own = {
            server_id: self.find(subject, base.servers[server_id].hashes.launch)
            for server_id, subject in subjects.items()
        }
        used = tuple(own.values())
        cached = self._views.get(reader)
        if (
            cached is not None
            and cached[0] is base
            and len(cached[1]) == len(used)
            and all(listing is other for listing, other in zip(cached[1], used, strict=True))
        ):
            return cached[2]
        servers = dict(base.servers)
        for server_id, listing in own.items():
            served = base.servers[server_id]
            servers[server_id] = _listed_as(
                served, last_known_good.get(served.key), listing, reader
            )
        without_login += [
            server_id
            for server_id, subject in subjects.items()
            if own[server_id] is None and can_log_in(base.servers[server_id], subject)
        ]
        resolved = resolve_clashes_among(servers, always=True)
        view = View(add_admin_toolset(resolved, sorted(without_login)))
        if len(self._views) >= _MAX_VIEWS:  # callers may choose any names without credentials
            self._views.clear()
        self._views[reader] = base, used, view
        return view

    def served_for(
        self,
        snapshot: Snapshot,
        last_known_good: Mapping[VariantKey, LastKnownGood],
        subject: Subject,
    ) -> Served | None:
        """Return a server with what it lists for a subject; None if either is unknown."""
        served = snapshot.served.get(subject.variant)
        good = last_known_good.get(subject.variant)
        if served is None or good is None:
            return None
        listing = self.find(subject, served.hashes.launch)
        return _relisted(served, good, listing) if listing is not None else None

    def unlisted(self, base: View, reader: Reader) -> list[tuple[Served, Subject]]:
        """Return the servers of a view that were not listed for its reader, with whom for."""
        if not self.is_used:
            return []
        return [
            (served, subject)
            for served in map(base.servers.__getitem__, base.of_people)
            if (subject := subject_of(served, reader)) is not None
            and self.find(subject, served.hashes.launch) is None
        ]

    def _note(self, subject: Subject) -> None:
        self.sequence += 1
        self._changes.append((self.sequence, subject.tenant, subject.user or ALL_USERS))

    def _release(self, known: _Known) -> None:
        digest = known.listing.digest
        listing, count = self._shared.pop(digest)
        if count > 1:
            self._shared[digest] = listing, count - 1
        else:
            self._bytes -= _size(listing)


def subject_of(served: Served, reader: Reader) -> Subject | None:
    """Return whose listing of a server a reader sees; None for that of all."""
    kind, key = served.spec.part.auth.subject, served.key
    if kind == "tenant":
        return Subject(key, reader.tenant, "") if not key.tenant else None
    if kind == "user":
        alone = not reader.user and reader.sees_all
        return Subject(key, reader.tenant, reader.user) if not alone else None
    return Subject(key, reader.tenant, reader.user) if kind == "caller" and reader.user else None


def can_log_in(served: Served, subject: Subject) -> bool:
    """Return whether a server lists for a subject once somebody has logged in for it."""
    auth = served.spec.part.auth
    return auth.logs_in and bool(subject.user or auth.subject == "tenant")


def _listed_as(
    served: Served, good: LastKnownGood | None, listing: ServerListing | None, reader: Reader
) -> Served:
    """Return a server as it is for whom it listed something; None if that is unknown.

    What it listed for nobody in particular is shown until then. What it listed for somebody else is
    not: it may be about that person.
    """
    if listing is None or good is None:
        if not served.spec.part.auth.logs_in:
            return served
        return replace(served, listing=NOT_LISTED, exposed=(), prompts=())
    own = _relisted(served, good, listing)
    return granted_to(own, reader.tenant, reader.agent) or own


def _relisted(served: Served, good: LastKnownGood, listing: ServerListing) -> Served:
    """Return a served variant, by its rules, with another listing; it keeps all its names."""
    own = relist(good, listing)[0].without_clashes
    return replace(served, listing=listing, exposed=own.exposed, prompts=own.prompts)


def _size(listing: ServerListing) -> int:
    lists = (listing.tools, listing.prompts, listing.resources, listing.templates)
    return sum(len(item.definition) for items in lists for item in items)
