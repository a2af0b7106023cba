"""The stage that finds the instance for a call, or waits for one: shared or leased."""

from __future__ import annotations

from leaseway.data_plane.calls.call import ActiveCall
from leaseway.data_plane.calls.login import with_login
from leaseway.data_plane.core.calls.call import Callbacks, answerable
from leaseway.data_plane.core.leases.table import WorkerLease
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.instances.login_watcher import LoginWatcher
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.leases.acquirer import Acquirer
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason


class InstanceStage:
    """Gives each call its instance, on which the call counts from then on.

    Args:
        pool: The servers of the worker.
        leases: The leases of the worker.
        logins: The logins of people that calls use.
    """

    def __init__(self, pool: Pool, leases: WorkerLeaseManager, logins: LoginWatcher) -> None:
        self._pool = pool
        self._leases = leases
        self._holders = leases.holders
        self._logins = logins
        self._confirmation = leases.confirmation

    def enter(self, active: ActiveCall) -> bool:
        """Let a call pass if its instance is ready; otherwise wait for it in a task."""
        if active.live is not None:
            return True
        generation, call = active.generation, active.call
        if generation.is_shared and not call.lease_id:
            # A successor that has not started may let its predecessor serve the call.
            live = generation.supervisor.live or generation.shared_for(
                "" if call.method else call.tool
            )
            client = active.client
            if client is not None and client.is_legacy and live is not None and live.is_modern:
                live = generation.legacy_for(live, "" if call.method else call.tool)
        else:
            live = self._leased(active)
        if live is None:
            active.wait_for(self._wait)
            return False
        active.live = live
        live.calls += 1
        return True

    def _leased(self, active: ActiveCall) -> LiveInstance | None:
        """Return the instance of a call's lease; None if the call must wait for one of them."""
        call = active.call
        key = call.lease_key
        if call.lease_id:
            lease: WorkerLease | None = self._holders.get_held(call.lease_id, key)
            self._holders.check_user(lease, active.generation.key.user)
        elif not key.session:
            raise Fault(
                Reason.SESSION_REQUIRED,
                f"Server {key.server_id} keeps state for each session: name a session.",
            )
        else:
            lease = self._leases.find(key)
            if lease is not None:
                self._holders.check_user(lease, active.generation.key.user)
                self._leases.add_client(lease, call.acquirer)
        if lease is None:
            return None
        live = self._leases.live_instance(lease)
        if live is not None and active.lease is None:
            if self._confirmation.clock() >= self._confirmation.until:
                return None
            active.lease = lease
            self._leases.start_call(lease)
        return live

    async def _wait(self, active: ActiveCall) -> None:
        if active.generation.variant.spec.part.auth.logs_in:
            await with_login(active, self._logins, self._find)
        else:
            await self._find(active)

    async def _find(self, active: ActiveCall) -> None:
        generation, call = active.generation, active.call
        if generation.is_shared and not call.lease_id:
            live = await self._wait_for_shared(active)
        else:
            live = await self._wait_for_lease(active)
        active.live = live
        live.calls += 1

    async def _wait_for_shared(self, active: ActiveCall) -> LiveInstance:
        active.event("waiting for the instance to start")
        generation, call, client = active.generation, active.call, active.client
        tool = "" if call.method else call.tool
        while True:
            try:
                live = await generation.wait_for_shared(tool)
                if client is not None and client.is_legacy and live.is_modern:
                    live = await generation.wait_for_legacy(live, tool)
            except Fault:
                newest = self._pool.resolve(
                    call.server_id, call.tenant, call.agent, call.user, call.subject_token
                )
                if newest is generation or not newest.is_shared:
                    raise
                generation = newest
            else:
                active.event("the instance is up")
                return live

    async def _wait_for_lease(self, active: ActiveCall) -> LiveInstance:
        """Return the instance of a call's lease; acquire the lease if necessary."""
        active.event("waiting for a lease")
        await self._confirmation.wait()  # first: it may end the lease
        call = active.call
        ttl = call.lease_ttl if call.lease_ttl is not None else bounds.LEASE_TTL
        key = call.lease_key
        if call.lease_id:
            held = self._holders.get_held(call.lease_id, key)
            self._holders.check_user(held, active.generation.key.user)
            key = held.key
        elif call.report_end:
            self._leases.report_end(key, call.known_ends)
        lease, created = await self._leases.acquire(
            key,
            Acquirer(
                agent=call.agent,
                user=call.user,
                subject_token=call.subject_token,
                credential=active.caller.name,
                client=call.acquirer,
            ),
            ttl=ttl,
            client=active.client,
            callbacks=_callbacks(active),
        )
        active.event("the lease is held")
        live = self._leases.live_instance(lease)
        if live is None:
            raise self._holders.ended_fault(lease.id)
        active.lease, active.is_new_lease = lease, created
        self._leases.start_call(lease)
        return live


def _callbacks(active: ActiveCall) -> Callbacks | None:
    """Return what answers a server that asks at its start, before it has the call."""
    answers = active.call.answers
    if not answers:
        return None
    return Callbacks(on_ask=active.ask, answers=answerable(answers), client=active.client)
