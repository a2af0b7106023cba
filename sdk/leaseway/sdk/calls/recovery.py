"""What follows from the failure of one try of a call: another try, elsewhere or anew, or its end.

The rule itself is `retry.decide`; here is what it needs to know and what is done about it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from leaseway.sdk.calls import tracing
from leaseway.sdk.calls.call_state import CallState
from leaseway.sdk.catalog.resolver import Resolver
from leaseway.sdk.leases.book import SessionLeaseKey
from leaseway.sdk.leases.manager import LEASE_ENDED, LeaseManager
from leaseway.sdk.retry_policy import UNREADY, Again, Tried, decide, more_informative
from leaseway.sdk.transport.workers import WorkerPool
from leaseway.wire.errors import Fault, Reason

_HOLDER_GONE: Final = frozenset({Reason.WORKER_LOST, Reason.DRAINING, Reason.FATE_UNKNOWN})
"""How a release fails on a worker that has gone or goes."""


class Recovery:
    """Brings the calls of one client from a try that failed to the next one.

    Args:
        resolver: Has names asked for again.
        pool: Knows whether other workers are left.
        leases: Is told what happened on the leases.
    """

    def __init__(self, resolver: Resolver, pool: WorkerPool, leases: LeaseManager) -> None:
        self._resolver = resolver
        self._pool = pool
        self._leases = leases
        self._now = asyncio.get_running_loop().time

    async def next_try(self, state: CallState, fault: Fault) -> None:
        """Prepare the next try of a call, and wait until it may begin.

        Args:
            state: The call, as the try left it.
            fault: How the try failed.

        Raises:
            Fault: There is no next try; the one that says most about what went wrong.
        """
        if state.events is not None:
            state.events.reset()
        fault = await self._judged(state, fault)
        tried = self._tried(state)
        target, link = state.target, state.link
        if target is not None and link is not None:
            if tried.placing:
                key = SessionLeaseKey(state.session, target.server_id)
                self._leases.record_failed_acquisition(key, link.worker, fault)
            elif link.suspect and target.shared and not tried.elsewhere:
                self._resolver.doubt(target, at_once=True)  # others may serve it by now
        again = decide(fault, tried)
        if again is None:
            if state.release is not None and fault.reason in _HOLDER_GONE:
                self._leases.book.forget_released(
                    *state.release
                )  # it ends with its worker, or with its time
            raise more_informative(state.known, fault)
        state.known = more_informative(state.known, fault)
        await self._prepare(state, again, fault)

    async def _judged(self, state: CallState, fault: Fault) -> Fault:
        """Return what a failure means for the lease that the call ran on, which it may end."""
        held, link = state.held, state.link
        if held is not None and link is not None:
            fault = await self._leases.losses.handle_failure(
                held, fault, state.deadline, draining=link.draining
            )
        if held is not None and fault.reason in LEASE_ENDED:
            fault = replace(fault, metadata={"lease": held.lease_id, **fault.metadata})
            self._leases.book.end(held.lease_id, fault)
        return fault

    def _tried(self, state: CallState) -> Tried:
        target, link, held = state.target, state.link, state.held
        leased = target is not None and not target.shared
        placing = leased and held is None and link is not None
        others = False
        if link is not None and target is not None and target.shared and held is None:
            others = self._pool.others(target.workers, state.avoid | {link.worker})
        return Tried(
            tries=state.tries,
            remaining=state.deadline - self._now(),
            repeatable=target is not None and target.repeatable,
            repeated=state.repeated,
            cached=state.cached and link is not None,
            # What one worker holds is released there or nowhere.
            pinned=held is not None or bool(state.release and state.release.lease_id),
            leased=leased,
            placing=placing,
            elsewhere=others or placing,
            slow=bool(state.slow),
        )

    def cancelled(self, state: CallState) -> None:
        """Note a call that its caller cancelled; it may have acquired a lease."""
        if state.span is not None:
            tracing.cancelled(state.span)
        target, link = state.target, state.link
        if target is not None and link is not None and not target.shared and state.held is None:
            self._leases.record_failed_acquisition(
                SessionLeaseKey(state.session, target.server_id), link.worker, None
            )

    async def _prepare(self, state: CallState, again: Again, fault: Fault) -> None:
        if state.span is not None:
            state.span.add_event("leaseway.retry", {"leaseway.tries": state.tries})
        state.repeated = state.repeated or again.repeats
        if again.avoid_worker and state.link is not None:
            state.avoid = state.avoid | {state.link.worker}
            if fault.reason in UNREADY:
                state.slow = state.slow | {state.link.worker}
        if again.return_to_slow:
            state.avoid, state.slow = state.avoid - state.slow, frozenset()
        if state.target is not None and (again.resolve or again.avoid_worker):
            self._resolver.doubt(state.target, at_once=again.resolve)
        state.link = state.held = state.release = None
        if again.delay > 0:
            await asyncio.sleep(again.delay)
