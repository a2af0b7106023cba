"""Unary calls that are suspended between two requests of their callers (design.md#calls).

A server asked the caller something, and the call continues with the answer. If it ends meanwhile,
its result is kept for the caller. Memory and time are bounded; a draining worker waits shorter.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.struct_pb2 import Struct

from leaseway.data_plane.services.unary import UnarySink
from leaseway.identity.principal import Principal
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.sharing.limits import LimitScope, over_limit
from leaseway.wire.sharing.newest import Newest

_logger = logging.getLogger(__name__)

MAX_BYTES: Final = 64 * bounds.MIB
"""Arguments, questions, events and results of all suspended calls. Beyond it the oldest ends."""

TIMEOUT: Final = 60.0
"""Seconds that a call is suspended."""

DRAIN_TIMEOUT: Final = 5.0
"""Maximum seconds that a call is suspended on a draining worker."""

_MAX_REMEMBERED: Final = 256
"""Ended suspended calls whose reason is remembered for their callers."""


@dataclass(frozen=True)
class _Suspended:
    tenant: str
    sink: UnarySink
    expiry: asyncio.TimerHandle


@dataclass(frozen=True)
class _Discarded:
    tenant: str
    reason: Reason
    sentence: str


class Continuations:
    """The suspended unary calls of a worker.

    Args:
        worker_id: This worker.
        incarnation: Its run.
        timeout: Seconds that a call is suspended.
        drain_timeout: Maximum seconds that a call is suspended on a draining worker.
        max_bytes: Maximum bytes of all suspended calls.
    """

    def __init__(
        self,
        worker_id: str,
        incarnation: str,
        timeout: float = TIMEOUT,
        drain_timeout: float = DRAIN_TIMEOUT,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._worker_id = worker_id
        self._incarnation = incarnation
        self._timeout = timeout
        self._drain_timeout = drain_timeout
        self._max_bytes = max_bytes
        self._loop = asyncio.get_running_loop()
        self._suspended: dict[str, _Suspended] = {}  # the oldest first
        self._discarded: Newest[str, _Discarded] = Newest(_MAX_REMEMBERED)
        self._is_draining = False
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._suspended)

    def suspend(self, sink: UnarySink) -> str:
        """Suspend a call; return the `request_state` that resumes it, once.

        Raises:
            Fault: OVERLOADED: too many calls are suspended, of this tenant or of all.
        """
        reached = self._limit_reached(sink)
        if reached is not None:
            limit, scope = reached
            owner = "" if scope == "worker" else f" of this {scope}"
            raise over_limit(
                "parked",
                scope,
                f"{limit} calls{owner} wait for their callers' answers on worker "
                f"{self._worker_id}; try again later, or call over an exchange.",
                started="yes",
            )
        state = f"{self._incarnation}.{secrets.token_urlsafe(24)}"
        expiry = self._loop.call_later(self._timeout, self._expire, state)
        self._suspended[state] = _Suspended(sink.tenant, sink, expiry)
        sink.suspend(self._check_memory)
        self._check_memory()
        return state

    def _limit_reached(self, sink: UnarySink) -> tuple[int, LimitScope] | None:
        """Return the limit that forbids to suspend a call, and its scope; None if there is none."""
        others = [entry.sink for entry in self._suspended.values()]
        if sum(other.tenant == sink.tenant for other in others) >= bounds.MAX_TENANT_PARKED:
            return bounds.MAX_TENANT_PARKED, "tenant"
        of_connection = sum(other.connection == sink.connection for other in others)
        if of_connection >= bounds.MAX_CONNECTION_PARKED:
            return bounds.MAX_CONNECTION_PARKED, "connection"
        return (bounds.MAX_PARKED, "worker") if len(others) >= bounds.MAX_PARKED else None

    def resume(
        self, state: str, tenant: str, answers: Mapping[str, Struct], principal: Principal
    ) -> UnarySink:
        """Resume a suspended call with its caller's answers.

        Raises:
            Fault: INVALID_REQUEST: the tenant, or its user, has no such call; or the call never
                asked one of the questions, and stays suspended. OVERLOADED, DRAINING: the call was
                discarded.
        """
        if state.partition(".")[0] != self._incarnation:
            raise Fault(
                Reason.INVALID_REQUEST,
                f"This request_state is not of this run of worker {self._worker_id}: a call "
                "continues on the worker that asked, and ends with it.",
            )
        entry = self._suspended.get(state)
        if entry is None or entry.tenant != tenant or not principal.speaks_for(entry.sink.user):
            raise self._not_found(state, tenant)
        entry.sink.answer(answers)
        return self._pop(state)

    def start_draining(self) -> None:
        """Shorten the timeout of all suspended calls, also future ones."""
        if self._is_draining:
            return
        self._is_draining = True
        self._timeout = min(self._timeout, self._drain_timeout)
        latest = self._loop.time() + self._timeout
        for state, entry in tuple(self._suspended.items()):
            if entry.expiry.when() > latest:
                entry.expiry.cancel()
                expiry = self._loop.call_at(latest, self._expire, state)
                self._suspended[state] = _Suspended(entry.tenant, entry.sink, expiry)

    async def wait_until_empty(self) -> None:
        while self._suspended:
            self._changed.clear()
            await self._changed.wait()

    def _pop(self, state: str) -> UnarySink:
        entry = self._suspended.pop(state)
        entry.expiry.cancel()
        entry.sink.resume()
        self._changed.set()
        return entry.sink

    def _expire(self, state: str) -> None:
        reason = Reason.DRAINING if self._is_draining else Reason.INVALID_REQUEST
        prefix = f"worker {self._worker_id} is draining and " if self._is_draining else ""
        cause = f"{prefix}its caller did not answer within {self._timeout:g} s"
        self._discard(state, reason, cause, logging.INFO)

    def _check_memory(self) -> None:
        # Later, because a sink often grows while it handles a server's message: cancelling another
        # call of the same server meanwhile would be unsafe.
        if self._held_bytes > self._max_bytes:
            self._loop.call_soon(self._free_memory)

    def _free_memory(self) -> None:
        while self._suspended and self._held_bytes > self._max_bytes:
            cause = (
                f"calls that wait for their callers hold more than {self._max_bytes} bytes on "
                f"worker {self._worker_id}, and it had waited longest"
            )
            self._discard(next(iter(self._suspended)), Reason.OVERLOADED, cause, logging.WARNING)

    @property
    def _held_bytes(self) -> int:
        return sum(entry.sink.held_bytes for entry in self._suspended.values())

    def _discard(self, state: str, reason: Reason, cause: str, level: int) -> None:
        sink = self._pop(state)
        action = "its result was dropped" if sink.result.done() else "it was cancelled"
        sentence = f"{action.capitalize()}: {cause}. Call again, or call over an exchange."
        self._discarded[state] = _Discarded(sink.tenant, reason, sentence)
        _logger.log(level, "A call of %s without an exchange: %s: %s.", sink.tool, action, cause)
        sink.discard(Fault(reason, sentence), cause)

    def _not_found(self, state: str, tenant: str) -> Fault:
        discarded = self._discarded.get(state)
        if discarded is not None and discarded.tenant == tenant:
            return Fault(
                discarded.reason, f"The call does not wait any more. {discarded.sentence}", "yes"
            )
        return Fault(
            Reason.INVALID_REQUEST,
            "No call waits under this request_state: it was continued already, or its "
            f"{self._timeout:g} s have passed.",
        )
