"""The `mcp_admin` toolset on a worker: always available, without a process (design.md#leases)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from leaseway.data_plane.calls.call import ActiveCall
from leaseway.data_plane.calls.login import with_login
from leaseway.data_plane.core.calls.call import Outcome
from leaseway.data_plane.core.calls.incoming import IncomingCall
from leaseway.data_plane.core.tools.toolset import ExposedTool, ToolPlan, compile_toolset
from leaseway.data_plane.instances.login_watcher import LoginWatcher
from leaseway.data_plane.instances.pool import Pool
from leaseway.data_plane.leases.manager import WorkerLeaseManager
from leaseway.identity.principal import Principal
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.admin import ADMIN_TOOLSET, RELEASE_TOOL, TOOL_DEFINITIONS
from leaseway.wire.names import LeaseKey
from leaseway.wire.text.suggestions import alike

_MAX_LISTED: Final = 20
_TOOLSET: Final = compile_toolset(
    TOOL_DEFINITIONS.values(), [ExposedTool(name, name) for name in TOOL_DEFINITIONS], ""
)


class AdminTools:
    """Runs calls of Leaseway's own tools, after the executor has admitted them."""

    def __init__(self, pool: Pool, leases: WorkerLeaseManager, logins: LoginWatcher) -> None:
        self._pool = pool
        self._leases = leases
        self._logins = logins

    @staticmethod
    def plan(tool: str) -> ToolPlan:
        """Return the plan of a tool.

        Raises:
            Fault: TOOL_NOT_FOUND.
        """
        return _TOOLSET.find(ADMIN_TOOLSET, tool)

    def run(
        self, call: IncomingCall, arguments: Mapping[str, Any], principal: Principal
    ) -> Outcome:
        """Run an admitted call of `mcp_release` for whoever has made it.

        Raises:
            Fault: SESSION_REQUIRED; PERMISSION_DENIED: the lease is of another user.
        """
        if not call.session:
            raise Fault(
                Reason.SESSION_REQUIRED,
                f"{RELEASE_TOOL} releases a lease of the session that calls it: name a session.",
            )
        key = LeaseKey(call.tenant, call.session, arguments["serverId"])
        held = self._leases.find(key)
        if held is not None:
            self._leases.holders.check_principal(held.id, principal)
            if call.user:
                self._leases.holders.check_user(held, call.user)
        return self._release_named(call.lease_id, key) if call.lease_id else self._release(key)

    async def log_in(self, server_id: str, active: ActiveCall) -> None:
        """Have the caller log in to a server, and end its call.

        Raises:
            Fault: SERVER_NOT_READY or USER_REQUIRED; LOGIN_REQUIRED, with the address of the login
                page, if the caller opens none or does not finish in time.
        """
        call = active.call
        try:
            common = self._pool.resolve(server_id, call.tenant, call.agent)
        except Fault as fault:  # callers choose among all workers: another one may serve it
            raise replace(fault, reason=Reason.SERVER_NOT_READY) from None
        if not common.variant.spec.part.auth.logs_in:
            active.handle_outcome(_text(f"Nobody logs in to server {server_id}.", is_error=True))
            return
        await self.connect(server_id, active)
        text = f"You are logged in to server {server_id}. List the tools again to see its tools."
        active.handle_outcome(_text(text))

    async def connect(self, server_id: str, active: ActiveCall) -> None:
        """Connect a caller to a server with its login, for which it is asked if there is none.

        Raises:
            Fault: As `log_in`.
        """
        await with_login(active, self._logins, partial(self._connect, server_id))

    async def _connect(self, server_id: str, active: ActiveCall) -> None:
        """Use the login, and wait until the tools that come with it are known."""
        call = active.call
        used = None
        while True:
            generation = self._pool.resolve(
                server_id, call.tenant, call.agent, call.user, call.subject_token
            )
            try:
                async with generation.connection() as live:
                    await generation.relist(live)  # its login may have ended since it was opened
            except Fault:
                if generation is used or not generation.draining:
                    raise
                used = generation  # it was replaced meanwhile, as after logins of others
            else:
                if generation.lacks_listing:
                    generation.require_listing()
                await generation.wait_for_listing()
                return

    def _release(self, key: LeaseKey) -> Outcome:
        lease = self._leases.find(key)
        if lease is None:
            return self._nothing_to_release(key)
        self._leases.release(lease.id)
        return _released(key)

    def _release_named(self, lease_id: str, key: LeaseKey) -> Outcome:
        """Release only this lease; a newer one of its session stays."""
        lease = self._leases.get(lease_id)
        if lease is not None and lease.key == key:
            self._leases.release(lease_id)
            return _released(key)
        ended = self._leases.holders.ended_fault(lease_id, key.tenant)
        if ended.reason is Reason.LEASE_RELEASED:
            return _released(key)
        if ended.reason is Reason.LEASE_LOST:
            return self._nothing_to_release(key)
        return _text(f"There is nothing to release. {ended.message}", is_error=True)

    def _nothing_to_release(self, key: LeaseKey) -> Outcome:
        held = [
            lease.key.server_id
            for lease in self._leases.leases
            if (lease.key.tenant, lease.key.session) == (key.tenant, key.session)
        ]
        # Leases on other workers are unknown here, so this never claims that there are none.
        others = f" It holds leases of: {_list(held)}." if held else ""
        reason = self._reason_for_no_lease(key)
        return _text(f"There is nothing to release: {reason}.{others}", is_error=True)

    def _reason_for_no_lease(self, key: LeaseKey) -> str:
        specs = {
            variant.key.server_id: variant.spec
            for variant in self._pool.desired_state.visible_to(key.tenant)
            if not variant.spec.hidden
        }
        spec = specs.get(key.server_id)
        if spec is None:
            near = alike(key.server_id, specs)
            hint = f" (did you mean {_list(near)}?)" if near else ""
            return f"there is no server {key.server_id!a}{hint}"
        if spec.truely_stateless:
            return f"server {key.server_id} is shared and has no leases"
        return f"this session holds no lease of server {key.server_id}"


def _released(key: LeaseKey) -> Outcome:
    return _text(
        f"Released the lease of server {key.server_id}. Its state for this session is deleted; "
        "the next call of one of its tools starts with a fresh client."
    )


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more


def _text(text: str, *, is_error: bool = False) -> Outcome:
    result = {"content": [{"type": "text", "text": text}], "isError": is_error}
    return Outcome(msgspec.json.encode(result), is_error)
