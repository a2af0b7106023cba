"""Recently ended leases: for clients that list leases, and for sessions that do not know. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from leaseway.control_plane.core.denial import Denial
from leaseway.control_plane.core.placement.table import HeldLease, UnreportedLease
from leaseway.wire.bounds import LEASE_MEMORY
from leaseway.wire.errors import Reason
from leaseway.wire.messages.states import LEASE_END_REASONS, LeaseOutcome
from leaseway.wire.names import LeaseKey
from leaseway.wire.sharing.newest import Newest

_RETENTION: Final = 60.0
_MAX_ENDS: Final = 4096


@dataclass(frozen=True, slots=True)
class ReportedLeaseEnd:
    """How a lease ended, as its worker reported it."""

    lease_id: str
    tenant: str
    how: str
    """`released`, `revoked`, `expired` or `lost`; newer workers may send other values."""
    session: str = ""
    """Empty if an older worker reported the end, as is the server."""
    server_id: str = ""
    unasked: bool = False
    """Whether its session did not ask for the end."""
    message: str = ""
    """Why, in a sentence for its session; empty unless unasked."""
    clients: frozenset[str] = frozenset()
    """Of a lease that may have existed (`UnreportedLease`): who may have got it."""

    @property
    def key(self) -> LeaseKey:
        return LeaseKey(self.tenant, self.session, self.server_id)


_MAX_NOTICES: Final = 16_384


class _Told(NamedTuple):
    """An end of which a session counts as told, and the client that has yet to show that it was."""

    end: ReportedLeaseEnd
    client: str = ""


class EndNotices:
    """Ends of leases of which their sessions have not been told (design.md#leases).

    The next caller of the session is told once, within 10 minutes, instead of getting a new server
    without the state that it relies on. At most 16,384; the oldest are dropped.
    """

    def __init__(self) -> None:
        self._notices: OrderedDict[LeaseKey, tuple[ReportedLeaseEnd, float]] = OrderedDict()
        # A worker reports recent ends again when its stream was broken.
        self._settled: OrderedDict[str, float] = OrderedDict()
        # A caller hears of an end from the worker, perhaps before the control plane does.
        self._known: OrderedDict[tuple[LeaseKey, str], float] = OrderedDict()
        self._told: Newest[LeaseKey, _Told] = Newest(_MAX_NOTICES)

    def record(self, end: ReportedLeaseEnd, now: float) -> None:
        """Record an end, unless its session already knows; its last one counts."""
        key = end.key
        if end.lease_id in self._settled or not (end.session and end.server_id):
            return
        self._notices.pop(key, None)
        if (key, end.lease_id) in self._known:
            self._count_as_told(end, now)
        elif end.unasked:
            self._notices[key] = (end, now)
        self._forget_old(now)

    def know(self, key: LeaseKey, lease_ids: Iterable[str], now: float) -> None:
        """Note ends that the session of a key knows: they are not told if they are reported later.

        Args:
            lease_ids: The leases that have ended.
            now: The current time.
        """
        end, told = self.find(key), self._told.get(key)
        for lease_id in lease_ids:
            if end is not None and self._is_news_of(lease_id, end):
                del self._notices[key]
                end = None
            if told is not None and told.end.lease_id == lease_id:
                self._told[key] = _Told(told.end)  # its client has got the answer
            self._known[key, lease_id] = now
            self._known.move_to_end((key, lease_id))
        self._forget_old(now)

    def _is_news_of(self, lease_id: str, end: ReportedLeaseEnd) -> bool:
        """Return whether a lease is the one that was lost before its worker reported it."""
        run = lease_id.rpartition("-")[0]
        is_news = (end.key, lease_id) not in self._known and lease_id not in self._settled
        return is_news and bool(end.clients) and end.lease_id.startswith(f"{run}-")

    def find(self, key: LeaseKey) -> ReportedLeaseEnd | None:
        """Return the end that the session of a key does not know."""
        entry = self._notices.get(key)
        return None if entry is None else entry[0]

    def settle(self, key: LeaseKey, now: float, client: str = "") -> ReportedLeaseEnd | None:
        """Return the end of which a client of a session is to be told; it then counts as told.

        A client that has not named the end that it was told last did not get the answer, and is
        told again. One that alone could know of a lease is not told its end.

        Args:
            key: The session and server.
            now: The current time.
            client: The client that is told; empty if it is unknown, or acquires a lease whatever
                ended.
        """
        self._forget_old(now)
        entry = self._notices.pop(key, None)
        if entry is None:
            told = self._told.get(key)
            is_unheard = client and told is not None and told.client == client
            return told.end if told is not None and is_unheard and self.last_told(key) else None
        end, _ = entry
        is_known = (key, end.lease_id) in self._known or end.clients == {client}
        self._count_as_told(end, now, "" if is_known else client)
        return None if is_known else end

    def _count_as_told(self, end: ReportedLeaseEnd, now: float, client: str = "") -> None:
        self._settled[end.lease_id] = now
        self._told[end.key] = _Told(end, client)

    def last_told(self, key: LeaseKey) -> str:
        """Return the last lease of a key whose end counts as told, or empty."""
        told = self._told.get(key)
        return told.end.lease_id if told is not None and told.end.lease_id in self._settled else ""

    def _forget_old(self, now: float) -> None:
        oldest = now - LEASE_MEMORY
        while self._notices:
            _end, at = next(iter(self._notices.values()))
            if len(self._notices) <= _MAX_NOTICES and at > oldest:
                break
            self._notices.popitem(last=False)
        while self._settled:
            at = next(iter(self._settled.values()))
            if len(self._settled) <= _MAX_NOTICES and at > oldest:
                break
            self._settled.popitem(last=False)
        while self._known:
            at = next(iter(self._known.values()))
            if len(self._known) <= _MAX_NOTICES and at > oldest:
                break
            self._known.popitem(last=False)


def end_denial(end: ReportedLeaseEnd) -> Denial:
    """Return the answer for a session's first call after its lease ended."""
    return Denial(
        LEASE_END_REASONS.get(end.how, Reason.LEASE_LOST),
        f"{end.message} The session '{end.session}' is told this once: its next call of server"
        f" '{end.server_id}' gets a new lease.",
        metadata={"lease": end.lease_id, "server": end.server_id},
    )


def lost_with_worker(lease: HeldLease) -> ReportedLeaseEnd:
    """Return the end of a lease whose worker is lost."""
    return _end_of(
        lease,
        "lost",
        f"Lease {lease.id} was lost with worker '{lease.worker_id}', and the state that the server"
        " kept for it.",
    )


def lost_unreported(lease: UnreportedLease) -> ReportedLeaseEnd:
    """Return the end of a lease that a lost worker may have granted and not reported."""
    message = (
        f"Worker '{lease.worker_id}' was lost just after calls of the session had been sent to it."
        " If it had granted them a lease, that was lost, and the state that the server kept for it."
    )
    end = _end_of(lease, "lost", message)
    return replace(end, clients=lease.clients)


def left_on_draining_worker(lease: HeldLease) -> ReportedLeaseEnd:
    """Return the end of a lease whose worker shuts down and takes no new calls."""
    return _end_of(
        lease,
        "revoked",
        f"Lease {lease.id} ends with worker '{lease.worker_id}', which is shutting down, and the"
        " state that the server kept for it is lost.",
    )


def _end_of(
    lease: HeldLease | UnreportedLease, how: LeaseOutcome, message: str
) -> ReportedLeaseEnd:
    key = lease.key
    return ReportedLeaseEnd(
        lease_id=lease.id,
        tenant=key.tenant,
        how=how,
        session=key.session,
        server_id=key.server_id,
        unasked=True,
        message=message,
    )


class LeaseEnds:
    """The ends that workers reported within the last minute, at most 4,096 of them.

    No decision depends on them, so a restarted control plane starts with none.
    """

    def __init__(self) -> None:
        self._ends: OrderedDict[str, tuple[ReportedLeaseEnd, float]] = OrderedDict()

    def record(self, ends: Iterable[ReportedLeaseEnd], now: float) -> None:
        """Record ends; drop the oldest ones over the limit."""
        for end in ends:
            self._ends[end.lease_id] = (end, now)
            self._ends.move_to_end(end.lease_id)
        self._forget_old(now)

    def recent(self, now: float) -> list[ReportedLeaseEnd]:
        """Return the recent ends, oldest first."""
        self._forget_old(now)
        return [end for end, _at in self._ends.values()]

    def _forget_old(self, now: float) -> None:
        while self._ends:
            _end, at = next(iter(self._ends.values()))
            if len(self._ends) <= _MAX_ENDS and now - at < _RETENTION:
                return
            self._ends.popitem(last=False)
