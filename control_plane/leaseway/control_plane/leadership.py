"""Which of several control planes leads: one holds a Lease of the Kubernetes API, the others wait.

`decide` is pure: from what the Lease says and how long it has said so, to what to do. Clocks of
machines are never compared: a Lease has run out when its record has not changed for its duration
on the clock of whoever looks. The API's own optimistic locking lets one of several takers win.

One that does not lead answers NOT_LEADER, and says who does (DESIGN §8).

The epoch fences: it grows with each change of holder, and with each Lease that is made anew.
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

__all__ = [
    "Elector",
    "LeaseApi",
    "LeaseConflict",
    "LeaseFailure",
    "LeaseRecord",
    "Observed",
    "candidate",
    "decide",
    "epoch_of",
]

_logger = logging.getLogger(__name__)
_OURS: Final = "/leaseway.v1."
_CHANGES: Final = 1 << 20
"""Changes of holder that one Lease can count before its epochs meet those of a Lease made later."""
_STEP: Final = 6
"""A candidate looks, and a leader renews, this often in the duration of a Lease."""
_SAFE: Final = 0.8
"""The part of its Lease's duration after which a leader that could not renew gives up: before
anyone else, who saw the last renewal later, may take it."""


class LeaseConflict(Exception):
    """Somebody else has written the Lease since it was read."""


class LeaseFailure(Exception):
    """The API did not take or answer a request; the message says why."""


@dataclass(frozen=True)
class LeaseRecord:
    """What a Lease says.

    Attributes:
        holder: Who holds it, as `candidate` makes it; empty where it was given back.
        duration: Seconds that it may go without a renewal.
        transitions: How often its holder has changed.
        renewed: A text that differs after each renewal.
        created: When the Lease object was made, in Unix seconds on the API's clock.
        version: What the API compares at the next write.
    """

    holder: str
    duration: int
    transitions: int
    renewed: str = ""
    created: int = 0
    version: str = ""

    @property
    def leader(self) -> str:
        """The address of the control plane that holds it; empty where nobody does."""
        return self.holder.rpartition("_")[0]


@dataclass(frozen=True)
class Observed:
    """A record, and since when it has said the same on the observer's own monotonic clock."""

    record: LeaseRecord
    since: float

    def seen(self, record: LeaseRecord, now: float) -> Observed:
        """Return what is observed once the Lease was read again."""
        same = (record.holder, record.renewed, record.transitions) == (
            self.record.holder,
            self.record.renewed,
            self.record.transitions,
        )
        return Observed(record, self.since if same else now)


Decision = Literal["renew", "take", "wait"]


def decide(observed: Observed, me: str, now: float) -> Decision:
    """Say what a candidate does about a Lease that exists."""
    record = observed.record
    if record.holder == me:
        return "renew"
    if not record.holder or now - observed.since >= record.duration:
        return "take"
    return "wait"


def take_over(record: LeaseRecord, me: str, duration: int) -> LeaseRecord:
    """Return what a candidate writes to become the holder."""
    return replace(record, holder=me, duration=duration, transitions=record.transitions + 1)


def epoch_of(record: LeaseRecord) -> int:
    """Return the epoch of a record's holder.

    It is above that of every earlier holder, of an earlier Lease of the same name, and of a
    control plane that ran without a Lease (microseconds since 1970).
    """
    return record.created * _CHANGES + min(record.transitions, _CHANGES - 1)


def candidate(address: str) -> str:
    """Return a name for one run of a control plane that others reach at an address."""
    return f"{address}_{secrets.token_hex(6)}"


class LeaseApi(Protocol):
    """Where the Lease is kept."""

    async def read(self) -> LeaseRecord | None:
        """Return the Lease, or None where there is none.

        Raises:
            LeaseFailure: The API can't be asked.
        """

    async def create(self, record: LeaseRecord) -> LeaseRecord:
        """Make the Lease and return it as it is kept.

        Raises:
            LeaseConflict: There is one already.
            LeaseFailure: The API did not take it.
        """

    async def replace(self, record: LeaseRecord) -> LeaseRecord:
        """Write the Lease, if it still is of the record's version, and return it as it is kept.

        Raises:
            LeaseConflict: It is not.
            LeaseFailure: The API did not take it.
        """


class Elector:
    """One candidate.

    Attributes:
        leading: Whether this control plane leads now.
        leader: Where the one that leads is reached; empty while nobody is known to lead.

    Args:
        api: Where the Lease is.
        me: This candidate, from `candidate`.
        duration: Seconds that a leader may be silent before another takes over.
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
            await asyncio.sleep(self._duration / _STEP)

    async def hold(self) -> str:
        """Renew until this candidate leads no more; return why not, as a sentence."""
        while True:
            await asyncio.sleep(self._duration / _STEP)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._deadline()):
                    await self._step()
            if self._observed is not None and self._observed.record.holder != self._me:
                return self._lose_lead(f"Another leads: {self.leader or 'nobody yet'}.")
            if self._clock() >= self._renewed_at + self._duration * _SAFE:
                return self._lose_lead(
                    f"The Lease could not be renewed for {self._duration * _SAFE:.1f} s"
                    f" ({self._failing or 'the API did not answer in time'}), so that another may"
                    " take it."
                )

    async def release(self) -> None:
        """Let another take over at once; nothing happens if this candidate does not lead."""
        held, self.leading = self._observed, False
        if held is None or held.record.holder != self._me:
            return
        with contextlib.suppress(LeaseConflict, LeaseFailure, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._api.replace(replace(held.record, holder=""))

    async def _step(self) -> LeaseRecord | None:
        """Look once and act on it; return the record where this candidate holds the Lease."""
        began = self._clock()
        try:
            async with asyncio.timeout(max(1.0, self._duration / 2)):
                record = await self._written(await self._api.read())
        except LeaseConflict:
            return None  # another was faster; what it wrote is read next time
        except (LeaseFailure, TimeoutError) as error:
            self._fails(str(error) or "it did not answer in time")
            return None
        self._failing = ""
        if record is None:
            return None
        self._renewed_at = began
        return record

    async def _written(self, found: LeaseRecord | None) -> LeaseRecord | None:
        now = self._clock()
        if found is None:
            self._observed, self.leader = None, ""
            return self._mine(await self._api.create(LeaseRecord(self._me, self._duration, 0)))
        observed = self._observed
        observed = Observed(found, now) if observed is None else observed.seen(found, now)
        self._observed, self.leader = observed, found.leader
        match decide(observed, self._me, now):
            case "wait":
                return None
            case "renew" if self.leading:
                return self._mine(await self._api.replace(found))
            case _:  # also its own from a term that has ended: what it said then is past
                self.leader = ""
                return self._mine(
                    await self._api.replace(take_over(found, self._me, self._duration))
                )

    def _mine(self, record: LeaseRecord) -> LeaseRecord:
        self._observed, self.leader = Observed(record, self._clock()), record.leader
        return record

    def _deadline(self) -> float:
        # On the loop's clock, which tests do not replace together with theirs.
        left = self._renewed_at + self._duration * _SAFE - self._clock()
        return asyncio.get_running_loop().time() + max(0.0, left)

    def _lose_lead(self, why: str) -> str:
        self.leading = False
        if self.leader == self._me.rpartition("_")[0]:
            self.leader = ""
        _logger.warning("This control plane leads no more. %s", why)
        return why

    def _fails(self, why: str) -> None:
        level = logging.DEBUG if why == self._failing else logging.WARNING
        self._failing = why
        _logger.log(level, "The Lease that says who leads can't be kept: %s", why)


class LeaderGate(grpc.aio.ServerInterceptor):
    """Lets requests through while this control plane leads; health and reflection always.

    Args:
        elector: Knows who leads.
    """

    def __init__(self, elector: Elector) -> None:
        self._elector = elector

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Pass an RPC on, or answer it with NOT_LEADER."""
        if self._elector.leading or not handler_call_details.method.startswith(_OURS):
            return await continuation(handler_call_details)
        # One handler refuses every kind of RPC: it reads none of it.
        return grpc.stream_stream_rpc_method_handler(self._refuse)

    async def _refuse(self, _requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        leader = self._elector.leader
        who = f"the one at {leader} does" if leader else "none does yet"
        message = f"This control plane does not lead; {who}. Ask again there."
        fault = Fault(Reason.NOT_LEADER, message, metadata={LEADER: leader})
        await abort(context, fault)
