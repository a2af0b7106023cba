"""Approvals whose every change is in the store before it holds (design.md#what-lasts).

Operations run one after another: the core says what is to change, the store keeps it, then the core
applies it. A write whose outcome is unknown is settled before anything else: its record is read
again. So a control plane never believes what its store, and its successor, do not know.

A record that this release does not understand is left as it is, and its approval counts as not
given: whoever calls is asked about again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from typing import Final

from leaseway.control_plane.approval_records import MalformedRecord, decode, encode
from leaseway.control_plane.core.approvals import (
    Answer,
    ApprovalRecord,
    ApprovalRequest,
    Approvals,
)
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.store.port import (
    MAX_CHANGES,
    TIMEOUT,
    Change,
    Delete,
    Put,
    Room,
    Store,
    StoreConflict,
    StoredRecord,
    StoreError,
    StoreFenced,
    StoreUnavailable,
    read_all,
)
from leaseway.wire.advice import for_operators
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.signals import Signal

RETRY: Final = 2.0
"""Seconds after a failure of the store in which nothing asks it again."""
_PATIENCE: Final = TIMEOUT - 0.5
"""Seconds that an operation waits for those before it; a worker waits 5 s for its answer."""
_TRIES: Final = 3
"""Tries of a change. A second one follows a write that was thought lost and happened after all."""


@dataclass(frozen=True, slots=True)
class Term:
    """For how long these approvals count: as long as no newer epoch has claimed the store.

    Attributes:
        epoch: The epoch of the control plane.
        elected: Whether it comes from an election of leaders.
    """

    epoch: int
    elected: bool = False


class StoredApprovals:
    """The approvals of one term of a control plane.

    Methods raise a Fault with STORE_UNAVAILABLE while the store fails, or with NOT_LEADER after an
    election that this control plane has lost.

    Args:
        store: Keeps the records.
        clock: Returns the current time.
        term: The epoch to claim the store with; the first operation does.

    Attributes:
        changed: One was `asked`, `approved`, `denied`, `used` or `expired`.
        troubled: The store fails with this error, with each failure, or works again (None).
        unreadable: These records of a room are not understood.
    """

    def __init__(self, store: Store, clock: Callable[[], Moment], term: Term) -> None:
        self.store = store
        self._clock = clock
        self.term = term
        self._state = Approvals()
        self.changed = self._state.changed
        self.troubled = Signal[StoreError | None]()
        self.unreadable = Signal[Room, Sequence[str]]()
        self._lock = asyncio.Lock()
        self._epoch: int | None = None  # as claimed
        self._versions: dict[str, int] = {}
        self._unsettled: set[str] = set()
        self._unreadable: set[str] = set()
        self._failure: StoreError | None = None
        self._retry_at = -inf

    @property
    def usable_epoch(self) -> int | None:
        """The epoch to write with; None if the store has not been claimed, or fails."""
        return self._epoch if self._failure is None else None

    async def ask(self, question: ApprovalRequest, *, use: bool, use_id: str = "") -> Answer:
        """Return whether a call may run, see `Approvals.ask`."""
        async with self._turn():
            for _ in range(_TRIES):
                await self._settle()
                answer = self._state.ask(question, self._clock(), use=use, use_id=use_id)
                if answer.record is None or not answer.changes or await self._keep(answer.record):
                    return answer
            raise _restless()

    async def decide(
        self, approval_id: str, tenant: str, by: str, *, approve: bool, note: str = ""
    ) -> ApprovalRecord:
        """Approve or deny a call, see `Approvals.decide`.

        Raises:
            Fault: INVALID_REQUEST: it is unknown, not understood, or no longer waiting.
        """
        async with self._turn():
            for _ in range(_TRIES):
                await self._settle()
                if approval_id in self._unreadable:
                    raise _not_understood(approval_id)
                now = self._clock()
                decided = self._state.decide(
                    approval_id, tenant, by, now, approve=approve, note=note
                )
                if await self._keep(decided):
                    return decided
            raise _restless()

    async def refresh(self) -> None:
        """Read what is not known yet. Without the store, what was read before still counts."""
        if self._epoch is not None and not self._unsettled:
            return
        try:
            async with self._turn():
                await self._settle()
        except Fault:
            if self._epoch is None:
                raise

    def get(self, approval_id: str, tenant: str) -> ApprovalRecord | None:
        """Return an approval of a tenant, or of any tenant (empty), if it is known."""
        return self._state.get(approval_id, tenant)

    def listed(self, tenant: str) -> list[ApprovalRecord]:
        """Return the known approvals of a tenant, or of all tenants (empty), newest first."""
        return self._state.listed(tenant, self._clock())

    def expire(self) -> None:
        """Expire approvals, and remove old ones."""
        self._state.expire(self._clock())

    def next_expiry(self) -> float | None:
        """Return when `expire` is due on the monotonic clock, or None."""
        return self._state.next_deadline()

    def next_deadline(self) -> float | None:
        """Return when `maintain` is due on the monotonic clock, or None."""
        if self._lock.locked():
            return None  # whoever holds it may do it
        if self._failure is not None:
            return self._retry_at if self._retry_at < inf else None
        if self._epoch is None or self._unsettled or self._state.removed():
            return self._clock().mono
        return None

    def needs_maintenance(self) -> bool:
        """Whether `maintain` is due."""
        due = self.next_deadline()
        return due is not None and due <= self._clock().mono

    async def maintain(self) -> None:
        """Claim the store, delete removed records, and try a store that has failed again."""
        try:
            async with self._turn():
                if self._failure is not None and self._epoch is not None:
                    # Claiming shows whether writes succeed again. Who has claimed it is newer.
                    await self.store.claim(self._epoch, elected=True)
                    self.note(None)
                await self._settle()
                await self._delete_removed()
        except Fault:
            return  # it has been reported

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Wait for the operations before this one; convert errors of the store to faults."""
        try:
            try:
                async with asyncio.timeout(_PATIENCE):
                    await self._lock.acquire()
            except TimeoutError:
                raise StoreUnavailable("Other operations on the store take long.") from None
            try:
                if self._failure is not None and self._clock().mono < self._retry_at:
                    raise self._failure.with_traceback(None)
                if self._epoch is None:
                    await self._claim()
                yield
            except StoreError as error:
                self.note(error)
                raise
            finally:
                self._lock.release()
        except StoreFenced as error:
            if self.term.elected:
                message = "This control plane is no longer the leader; try again."
                raise Fault(Reason.NOT_LEADER, message) from error
            raise _unavailable() from error
        except StoreError as error:
            raise _unavailable() from error

    async def _claim(self) -> None:
        """Claim the store for the term, and read its records."""
        claimed = await self.store.claim(self.term.epoch, elected=self.term.elected)
        records = await read_all(self.store, Room.APPROVALS)
        now = self._clock()
        read = {record.key: _decoded(record, now) for record in records}
        self._state.restore((found for found in read.values() if found is not None), now)
        self._versions = {record.key: record.version for record in records}
        self._epoch = claimed
        self.note(None)
        self._leave_alone(*(key for key, found in read.items() if found is None))

    async def _settle(self) -> None:
        """Read the records whose last write had an unknown outcome."""
        for key in sorted(self._unsettled):
            found = await self.store.read(Room.APPROVALS, prefix=key, limit=1)
            for record in found:
                self._versions[key] = record.version
                approval = _decoded(record, self._clock())
                if approval is None:
                    self._leave_alone(key)
                else:
                    self._state.apply(approval)
            if not found:
                self._versions.pop(key, None)
            self._unsettled.discard(key)

    def _leave_alone(self, *keys: str) -> None:
        """Note that records are not understood: nothing is decided on them or written over them."""
        for key in keys:
            self._state.discard(key)
        self._unreadable.update(keys)
        if keys:
            self.unreadable.emit(Room.APPROVALS, keys)

    async def _keep(self, record: ApprovalRecord) -> bool:
        """Write and apply a record; return False if the store has another version of it."""
        version = self._versions.get(record.id, 0)
        removed = self._removed()
        put = Put(Room.APPROVALS, record.id, encode(record), expected=version)
        self._unsettled.add(record.id)  # until the outcome is known, also if this is cancelled
        try:
            await self._write([put, *map(_deletion, removed)])
        except StoreConflict:
            return False
        self._unsettled.discard(record.id)
        self._versions[record.id] = version + 1
        self._state.confirm_removed(removed)
        self._state.apply(record)
        return True

    async def _delete_removed(self) -> None:
        while removed := self._removed():
            await self._write([*map(_deletion, removed)])
            self._state.confirm_removed(removed)

    def _removed(self) -> list[str]:
        removed = sorted(self._state.removed())[: MAX_CHANGES - 1]
        for approval_id in removed:
            self._versions.pop(approval_id, None)
        return removed

    async def _write(self, changes: Iterable[Change]) -> None:
        assert self._epoch is not None
        await self.store.write(self._epoch, [*changes])
        self.note(None)

    def note(self, failure: StoreError | None) -> None:
        """Note that the store fails, which `maintain` then tries again, or works (None)."""
        had, self._failure = self._failure, failure
        if failure is None:
            self._retry_at = -inf
            if had is None:
                return
        elif failure is had:
            return
        else:
            fenced = isinstance(failure, StoreFenced)
            self._retry_at = inf if fenced else self._clock().mono + RETRY
        self.troubled.emit(failure)


def _decoded(record: StoredRecord, now: Moment) -> ApprovalRecord | None:
    """Return the approval of a record, or None if this release does not understand it."""
    try:
        found = decode(record.value, now)
    except MalformedRecord:
        return None
    return found if found.id == record.key else None


def _not_understood(approval_id: str) -> Fault:
    return Fault(
        Reason.INVALID_REQUEST,
        f"This release does not understand the record of approval '{approval_id}', so nobody can"
        " decide on it here. A newer release may have written it. The caller can try again, and is"
        " asked about anew.",
    )


def _deletion(approval_id: str) -> Change:
    return Delete(Room.APPROVALS, approval_id)


def _restless() -> StoreError:
    return StoreUnavailable("Something else keeps changing records of the store.")


def _unavailable() -> Fault:
    return Fault(
        Reason.STORE_UNAVAILABLE,
        "The control plane cannot use its store, which keeps approvals: no call is approved, or"
        " runs with an approval, until it can. Try again later. A decision may have been kept.",
        metadata=for_operators(
            "`leaseway problems` says why. Look at `leaseway approvals` before you repeat a"
            " decision."
        ),
        retry_delay=RETRY,
    )
