"""What follows a failed try of a call: another try, on the same worker or elsewhere, or the error.

`retry_policy.decide` holds the rule; this module collects its inputs and carries out its decision.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

from leaseway.sdk.calls import tracing
from leaseway.sdk.calls.requests import CallState
from leaseway.sdk.catalog.resolver import Resolver
from leaseway.sdk.leases.manager import LeaseManager
from leaseway.sdk.retry_policy import UNREADY, FailedTry, Retry, decide, more_informative
from leaseway.sdk.transport.faults import client_closed
from leaseway.sdk.transport.workers import WorkerPool
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.states import LEASE_ENDED

WAITS: Final = "leaseway.sdk.waits"
"""A logger of its own, so that the command line can show these lines without all others."""
_waits = logging.getLogger(WAITS)
_LONG_WAIT: Final = 1.0
"""Seconds from which a wait before the next try is logged."""

_HOLDER_LOST: Final = frozenset({Reason.WORKER_LOST, Reason.DRAINING, Reason.FATE_UNKNOWN})
"""How a release fails if the lease's worker has exited or is shutting down."""


class CallRecovery:
    """Prepares the next try of a failed call.

    Args:
        resolver: Resolves names again.
        pool: Connections to the workers.
        leases: The client's leases.
    """

    def __init__(self, resolver: Resolver, pool: WorkerPool, leases: LeaseManager) -> None:
        self._resolver = resolver
        self._pool = pool
        self._leases = leases
        self._now = asyncio.get_running_loop().time

    async def next_try(self, state: CallState, fault: Fault) -> None:
        """Prepare the next try of a call, and wait until it may start.

        Args:
            state: The call after the failed try.
            fault: How the try failed.

        Raises:
            Fault: There is no next try. The most informative fault of all tries is raised.
        """
        if state.events is not None:
            state.events.reset()
        fault = await self._check_lease(state, fault)
        if fault.reason in LEASE_ENDED and self._leases.book.is_closing:
            fault = replace(client_closed(sent=True), started=fault.started)
        failed_try = self._failed_try(state)
        target, link = state.target, state.link
        if target is not None and link is not None:
            if failed_try.placing:
                key = self._leases.key(state.session, target.server_id)
                self._leases.record_failed_acquisition(key, link.worker, fault)
            elif link.suspect and target.shared and not failed_try.elsewhere:
                self._resolver.invalidate(target, at_once=True)  # other workers may now serve it
        retry = decide(fault, failed_try)
        if retry is None:
            if state.release is not None and fault.reason in _HOLDER_LOST:
                # The lease ends with its worker, or expires.
                self._leases.book.forget_released(*state.release, self._now())
            raise more_informative(state.known, fault)
        state.known = more_informative(state.known, fault)
        await self._prepare(state, retry, fault)

    async def _check_lease(self, state: CallState, fault: Fault) -> Fault:
        """Return the fault for the caller; end the lease of the call if the failure ended it."""
        lease, link = state.lease, state.link
        if lease is not None and link is not None:
            fault = await self._leases.losses.handle_failure(
                lease, fault, state.deadline, draining=link.draining
            )
        if lease is not None and fault.reason in LEASE_ENDED:
            fault = replace(fault, metadata={"lease": lease.lease_id, **fault.metadata})
            self._leases.book.end(lease.lease_id, fault, self._now())
        return fault

    def _failed_try(self, state: CallState) -> FailedTry:
        target, link, lease = state.target, state.link, state.lease
        leased = target is not None and not target.shared
        placing = leased and lease is None and link is not None
        others = False
        if link is not None and target is not None and target.shared and lease is None:
            others = self._pool.has_others(target.workers, state.avoid | {link.worker})
        return FailedTry(
            tries=state.tries,
            remaining=state.deadline - self._now(),
            repeatable=target is not None and target.repeatable,
            repeated=state.repeated,
            cached=state.cached and link is not None,
            # A lease can only be released on the worker that holds it.
            pinned=lease is not None or bool(state.release and state.release.lease_id),
            leased=leased,
            placing=placing,
            # A session is not placed beside the lease that it has.
            elsewhere=others or (placing and not state.joins),
            slow=bool(state.slow),
        )

    def record_cancellation(self, state: CallState) -> None:
        """Record that the caller cancelled the call, which may have acquired a lease."""
        if state.span is not None:
            tracing.record_cancellation(state.span)
        target, link = state.target, state.link
        if target is not None and link is not None and not target.shared and state.lease is None:
            self._leases.record_failed_acquisition(
                self._leases.key(state.session, target.server_id), link.worker, None
            )

    async def _prepare(self, state: CallState, retry: Retry, fault: Fault) -> None:
        if state.span is not None:
            state.span.add_event("leaseway.retry", {"leaseway.tries": state.tries})
        state.repeated = state.repeated or retry.repeats
        if retry.avoid_worker and state.link is not None:
            state.avoid = state.avoid | {state.link.worker}
            if fault.reason in UNREADY:
                state.slow = state.slow | {state.link.worker}
        if retry.return_to_slow:
            state.avoid, state.slow = state.avoid - state.slow, frozenset()
        if state.target is not None and (retry.resolve or retry.avoid_worker):
            self._resolver.invalidate(state.target, at_once=retry.resolve)
        state.link = state.lease = state.release = None
        if retry.delay >= _LONG_WAIT:
            text = "%s is tried again in %.0f seconds: %s"
            _waits.info(text, state.name, retry.delay, fault.message)
        if retry.delay > 0:
            await asyncio.sleep(retry.delay)
