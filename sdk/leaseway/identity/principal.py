"""Who a caller is found to be: its tenant, its agent and what it may ask for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import DEFAULT_TENANT, is_valid_key


class Role(StrEnum):
    """What a credential is for; one may have several."""

    CALLER = "caller"
    """Lists, calls and leases for its tenant."""
    OPERATOR = "operator"
    """Sees and steers the system: workers, leases, problems and logs of all tenants."""
    VIEWER = "viewer"
    """Sees what an operator sees, and changes nothing."""
    APPROVER = "approver"
    """Agrees to calls that wait for a person, of its tenant or, without one, of all."""
    PLANE = "plane"
    """Joins a control plane as a worker."""


ALL_ROLES: Final = frozenset(Role)
SEES_ALL: Final = frozenset({Role.OPERATOR, Role.VIEWER})
"""Who looks at the whole system, whatever tenants it serves."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who sent a request.

    Attributes:
        name: What the audit calls the credential, such as `key 4kz2m7qa`; holds no secret.
        roles: What it may ask for.
        tenant: Whose requests it may send, or None: each request says so itself.
        agent: Which program of the tenant it is, or None: each request says so itself.
        expires_at: When it ends, in seconds since 1970, or None for never.
    """

    name: str
    roles: frozenset[Role]
    tenant: str | None = None
    agent: str | None = None
    expires_at: float | None = None

    def tenant_for(self, claimed: str) -> str:
        """Return the tenant of a request that names one, or none (empty).

        Raises:
            Fault: PERMISSION_DENIED: it names another one than the credential does. Whether the
                other one exists makes no difference.
        """
        if self.tenant is None:
            return claimed or DEFAULT_TENANT
        if claimed and claimed != self.tenant:
            raise Fault(
                Reason.PERMISSION_DENIED,
                f"This credential is of tenant '{self.tenant}', and the request names another "
                "one. Leave the tenant out, or use a credential of that tenant.",
            )
        return self.tenant

    def agent_for(self, claimed: str) -> str:
        """Return the agent of a request: what the credential says wins over what it claims."""
        return claimed if self.agent is None else self.agent

    def has(self, roles: Iterable[Role]) -> bool:
        return not self.roles.isdisjoint(roles)


LOOPBACK: Final = Principal("nobody (loopback, no credentials configured)", ALL_ROLES)
"""Everybody, where no credential is wanted: on loopback only."""

SHARED_KEY: Final = Principal("the shared key", ALL_ROLES)
"""Whoever knows `LEASEWAY_KEY`: planes, and services that are trusted to name their tenant."""


WORKER_KEY: Final = Principal("the worker key", frozenset({Role.PLANE}))
"""Whoever knows `LEASEWAY_WORKER_KEY`: workers. Where it is set, nobody else joins."""


def parse_roles(words: Iterable[str]) -> frozenset[Role]:
    """Return roles by their names.

    Raises:
        ValueError: One is no role; the message lists those there are.
    """
    known = {role.value: role for role in Role}
    roles: set[Role] = set()
    for word in words:
        if word not in known:
            raise ValueError(f"'{word[:64]}' is no role; the roles are {', '.join(known)}.")
        roles.add(known[word])
    return frozenset(roles)


def check_name(what: str, name: str) -> str:
    """Return a tenant's or an agent's name if it can be one.

    Raises:
        ValueError: It is empty, too long, or has control characters.
    """
    if not name or not is_valid_key(name):
        raise ValueError(f"A {what} has 1 to 256 characters and no control characters.")
    return name


def unauthenticated(message: str) -> Fault:
    """Return the refusal of a request that does not prove who sent it."""
    return Fault(Reason.UNAUTHENTICATED, message)
