"""Report that a call in a session acquired a new lease.

Each command is a new process. Without this message the user could not know that a call used a
freshly started server, without the state of the commands before it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from leaseway.cli.output.tables import one_line, say
from leaseway.wire.messages.states import LEASE_OUTCOMES

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient, Lease

T = TypeVar("T")
_MAX_EVENTS: Final = 200
"""Events searched for the end of the previous lease."""


class HasNewLease(Protocol):
    """The result of a call, a prompt or a resource."""

    @property
    def new_lease(self) -> Lease | None:
        """The lease that the request acquired, or None."""


async def with_lease(request: Callable[[], Awaitable[T]]) -> T:
    """Return the result of a request; repeat it if the session's earlier lease has ended.

    The SDK reports that end once instead of starting a new server. A command has no state that it
    could rely on, and `print_new_lease` tells the user.
    """
    from leaseway.sdk import LeaseError

    try:
        return await request()
    except LeaseError as error:
        if error.started != "no":
            raise
        return await request()


async def print_new_lease(client: AsyncClient, session: str | None, result: HasNewLease) -> None:
    """Print to stderr that a request acquired a lease, and how the session's last one ended."""
    lease = result.new_lease
    if session is None or lease is None:
        return
    say(
        f"leaseway: Acquired lease {lease.id} of server '{lease.server_id}' for session"
        f" '{one_line(session)}' on worker {lease.worker}: the server has just been started.",
        err=True,
    )
    ended = await _last_end(client, session, lease)
    if ended:
        say(f"leaseway: The session's previous lease had ended: {ended}", err=True)


async def _last_end(client: AsyncClient, session: str, lease: Lease) -> str:
    from leaseway.sdk import LeasewayError
    from leaseway.sdk.operators.observe import fetch_events

    try:
        events = await fetch_events(
            client, server_id=lease.server_id, kinds=("lease",), last=_MAX_EVENTS
        )
    except LeasewayError:
        return ""  # the caller may lack permission to read events
    tenants = {event.tenant for event in events if event.lease_id == lease.id}
    ends = [
        event
        for event in events
        if event.session == session
        and event.lease_id != lease.id
        and event.action in LEASE_OUTCOMES
        # A caller who may read all tenants' events sees sessions with the same key.
        if not tenants or event.tenant in tenants
    ]
    return one_line(ends[-1].message) if ends else ""
