"""Leader election between control planes: one holds a Kubernetes Lease, the others wait.

Clocks of machines are never compared: a Lease has expired when its record has not changed for its
duration on the observer's clock. The API's optimistic locking lets one of several candidates win.
The others answer NOT_LEADER with the leader's address (design.md#sync). The epoch fences earlier
leaders: it increases with each change of holder and with each new Lease object.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol

import grpc

from leaseway.wire.channels.leader_channel import LEADER
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.status import abort

_logger = logging.getLogger(__name__)
_OURS: Final = "/leaseway.v1."
_CHANGES: Final = 1 << 20
"""Limit of holder changes of one Lease object in its epochs."""
_STEPS: Final = 6
"""Reads by a candidate, and renewals by a leader, per duration of a Lease."""
_SAFE: Final = 0.8
"""Part of the duration after which a leader that cannot renew stops leading. Candidates saw the
last renewal later, so they take the Lease only afterwards."""


class LeaseConflict(Exception):
    """Another candidate has written the Lease since it was read."""


class LeaseFailure(Exception):
    """The API rejected or did not answer a request; the message contains the reason."""


@dataclass(frozen=True)
class LeaseRecord:
    """The content of a Lease.

    Attributes:
        holder: The candidate that holds it; empty if it was released.
        duration: Seconds without renewal after which it expires.
        transitions: Number of holder changes.
        renewed: A text that differs after each renewal.
        created: When the Lease object was created, in Unix seconds on the API's clock.
        version: The resource version for optimistic locking.
    """

    holder: str
    duration: int
    transitions: int
    renewed: str = ""
    created: int = 0
    version: str = ""

    @property
    def leader(self) -> str:
        """The holder's address; empty without a holder."""
        return self.holder.rpartition("_")[0]


@dataclass(frozen=True)
class Observed:
    """A record, and since when it is unchanged on the observer's monotonic clock."""

    record: LeaseRecord
    since: float

    def update(self, record: LeaseRecord, now: float) -> Observed:
        """Return the observation after another read of the Lease."""
        same = (record.holder, record.renewed, record.transitions) == (
            self.record.holder,
            self.record.renewed,
            self.record.transitions,
        )
        return Observed(record, self.since if same else now)


Decision = Literal["renew", "take", "wait"]


def decide(observed: Observed, me: str, now: float) -> Decision:
    """Return what a candidate does about an existing Lease."""
    record = observed.record
    if record.holder == me:
        return "renew"
    if not record.holder or now - observed.since >= record.duration:
        return "take"
    return "wait"


def take_over(record: LeaseRecord, me: str, duration: int) -> LeaseRecord:
    """Return the record that makes a candidate the holder."""
    return replace(record, holder=me, duration=duration, transitions=record.transitions + 1)


def epoch_of(record: LeaseRecord) -> int:
    """Return the epoch of a record's holder.

    It is higher than that of every earlier holder, of an earlier Lease with the same name, and of a
    control plane without a Lease (microseconds since 1970).
    """
    return record.created * _CHANGES + min(record.transitions, _CHANGES - 1)


def candidate(address: str) -> str:
    """Return the candidate name of one run of a control plane, which contains its address."""
    return f"{address}_{secrets.token_hex(6)}"


class LeaseApi(Protocol):
    """Reads and writes the Lease; each method may raise LeaseFailure."""

    async def read(self) -> LeaseRecord | None:
        """Return the Lease, or None if it does not exist."""

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        """Create the Lease and return it as stored.

        Raises:
            LeaseConflict: It exists.
        """

    async def replace(self, record: LeaseRecord) -> LeaseRecord:
        """Write the Lease if it still has the record's version; return it as stored.

        Raises:
            LeaseConflict: It has another version.
        """


class Elector:
    """A candidate in the election.

    Attributes:
        leading: Whether this control plane is the leader.
        leader: The leader's address; empty if unknown.

    Args:
        api: Stores the Lease.
        me: This candidate's name, from `candidate`.
        duration: The Lease's duration in seconds.
        clock: The monotonic clock.
    """

    def __init__(
        self, api: LeaseApi, me: str, duration: int, clock: Callable[[], float] | None = None
    ) -> None:
        self._api = api
        self._me = me
        self._duration = duration
        self._clock = clock or asyncio.get_running_loop().time
        self._observed: Observed | None = None
        self._renewed_at = 0.0
        self._failing = ""
        self._may_hold = False
        self.leading = False
        self.leader = ""

    async def lead(self) -> int:
        """Wait until this candidate leads; return its epoch."""
        while True:
            record = await self._step()
            if record is not None:
                self.leading, self.leader = True, record.leader
                _logger.info("This control plane leads, in epoch %d.", epoch_of(record))
                return epoch_of(record)
            await asyncio.sleep(self._duration / _STEPS)

    async def renew_until_lost(self) -> str:
        """Renew the Lease until the lead is lost; return the reason as a sentence."""
        while True:
            await asyncio.sleep(self._duration / _STEPS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._deadline()):
                    await self._step()
            if self._observed is not None and self._observed.record.holder != self._me:
                return self.step_down(f"The new leader is: {self.leader or 'none yet'}.")
            if self._clock() >= self._renewed_at + self._duration * _SAFE:
                return self.step_down(
                    f"The Lease could not be renewed for {self._duration * _SAFE:.1f} s"
                    f" ({self._failing or 'the API did not answer in time'}), so that another may"
                    " take it."
                )

    async def release(self) -> None:
        """Release the Lease if this candidate holds it, so that another can lead at once.

        The Lease is read again: a write that was cut when this candidate stopped may have succeeded
        or may still do so. It then refuses this one, which is repeated.
        """
        self.leading = False
        if not self._may_hold:
            return
        with contextlib.suppress(LeaseFailure, TimeoutError):
            async with asyncio.timeout(1.0):
                while (found := await self._api.read()) and found.holder == self._me:
                    with contextlib.suppress(LeaseConflict):
                        await self._api.replace(replace(found, holder=""))
                        return

    async def _step(self) -> LeaseRecord | None:
        """Read the Lease and act once; return the record if this candidate holds it."""
        began = self._clock()
        try:
            async with asyncio.timeout(max(1.0, self._duration / 2)):
                record = await self._written(await self._api.read())
        except LeaseConflict:
            return None  # another candidate was faster; the next step reads its record
        except (LeaseFailure, TimeoutError) as error:
            self._log_failure(str(error) or "it did not answer in time")
            return None
        self._failing = ""
        if record is None:
            return None
        self._renewed_at = began
        return record

    async def _written(self, found: LeaseRecord | None) -> LeaseRecord | None:
        now = self._clock()
        self._may_hold = found is not None and found.holder == self._me
        if found is None:
            self._observed, self.leader = None, ""
            self._may_hold = True  # as soon as the API has the request
            return self._mine(await self._api.create(LeaseRecord(self._me, self._duration, 0)))
        observed = self._observed
        observed = Observed(found, now) if observed is None else observed.update(found, now)
        self._observed, self.leader = observed, found.leader
        match decide(observed, self._me, now):
            case "wait":
                return None
            case "renew" if self.leading:
                return self._mine(await self._api.replace(found))
            case _:  # also its own Lease of an earlier term
                self.leader, self._may_hold = "", True
                return self._mine(
                    await self._api.replace(take_over(found, self._me, self._duration))
                )

    def _mine(self, record: LeaseRecord) -> LeaseRecord:
        self._observed, self.leader = Observed(record, self._clock()), record.leader
        return record

    def _deadline(self) -> float:
        # Timeouts use the loop's clock, which tests do not replace.
        remaining = self._renewed_at + self._duration * _SAFE - self._clock()
        return asyncio.get_running_loop().time() + max(0.0, remaining)

    def step_down(self, reason: str) -> str:
        """Stop leading, for a reason in a sentence; return it."""
        self.leading = False
        if self.leader == self._me.rpartition("_")[0]:
            self.leader = ""
        _logger.warning("This control plane is no longer the leader. %s", reason)
        return reason

    def _log_failure(self, reason: str) -> None:
        level = logging.DEBUG if reason == self._failing else logging.WARNING
        self._failing = reason
        _logger.log(level, "The leader's Lease cannot be read or written: %s", reason)


class LeaderGate(grpc.aio.ServerInterceptor):
    """Rejects requests while this control plane is not the leader, except health and reflection."""

    def __init__(self, elector: Elector) -> None:
        self._elector = elector

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Pass on an RPC, or answer it with NOT_LEADER."""
        if self._elector.leading or not handler_call_details.method.startswith(_OURS):
            return await continuation(handler_call_details)
        # One handler rejects all kinds of RPCs, as it reads no request.
        return grpc.stream_stream_rpc_method_handler(self._refuse)

    async def _refuse(self, _requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        leader = self._elector.leader
        where = f"send the request to {leader}" if leader else "there is none yet, try again"
        message = f"This control plane is not the leader; {where}."
        await abort(context, Fault(Reason.NOT_LEADER, message, metadata={LEADER: leader}))
