"""What a command says of the lease of the session that it was told to call in.

A command knows nothing of the one before it: that a call began a new lease, with a fresh server,
would go unseen, and with it the loss of what the one before had done there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from leaseway.cli.output.tables import one_line, say

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient, Lease

_ENDS: Final = frozenset({"released", "expired", "revoked", "lost"})
_LAST: Final = 200
"""Events that are looked through for the end of the lease before."""


class MayLease(Protocol):
    """The result of a call, a prompt or a resource."""

    @property
    def new_lease(self) -> Lease | None:
        """The lease that the request acquired, or None."""


async def tell_new_lease(client: AsyncClient, session: str | None, result: MayLease) -> None:
    """Say on stderr that a request in a named session began a lease, and how the last one ended."""
    lease = result.new_lease
    if session is None or lease is None:
        return
    say(
        f"leaseway: This began lease {lease.id} of server '{lease.server_id}' for session"
        f" '{one_line(session)}', on worker {lease.worker}: the server starts afresh.",
        err=True,
    )
    ended = await _last_end(client, session, lease)
    if ended:
        say(f"leaseway: The session's lease before it had ended: {ended}", err=True)


async def _last_end(client: AsyncClient, session: str, lease: Lease) -> str:
    from leaseway.sdk import LeasewayError
    from leaseway.sdk.operators.observe import fetch_events

    try:
        events = await fetch_events(client, server_id=lease.server_id, kinds=("lease",), last=_LAST)
    except LeasewayError:
        return ""  # who may not see events still has the result
    tenants = {event.tenant for event in events if event.lease_id == lease.id}
    ends = [
        event
        for event in events
        if event.session == session and event.lease_id != lease.id and event.action in _ENDS
        # Who may see all tenants' has sessions of one name.
        if not tenants or event.tenant in tenants
    ]
    return one_line(ends[-1].message) if ends else ""
