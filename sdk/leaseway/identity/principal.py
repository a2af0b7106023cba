"""The authenticated sender of a request: its tenant, its agent and its roles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from leaseway.wire.advice import for_operators
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import DEFAULT_TENANT, TENANT_RULE, is_valid_key, is_valid_tenant


class Role(StrEnum):
    """The role of a credential; a credential may have several."""

    CALLER = "caller"
    """Lists tools, calls them and acquires leases, for its tenant."""
    OPERATOR = "operator"
    """Sees and manages workers, leases, problems and logs of all tenants."""
    VIEWER = "viewer"
    """Sees the same as an operator, read-only."""
    APPROVER = "approver"
    """Approves or denies calls, of its tenant or, without a tenant, of all."""
    DELEGATE = "delegate"
    """Names the user for whom each request is, of its tenant or, without a tenant, of all."""
    PLANE = "plane"
    """Joins a control plane as a worker."""


ALL_ROLES: Final = frozenset(Role)
SEES_ALL: Final = frozenset({Role.OPERATOR, Role.VIEWER})
"""The roles that see all tenants."""
SYSTEM_ROLES: Final = SEES_ALL | {Role.PLANE}
"""The roles that reach beyond a tenant; only a credential without a tenant has them."""


@dataclass(frozen=True, slots=True)
class Principal:
    """The authenticated sender of a request.

    Attributes:
        name: The credential's name in the audit, such as `key 4kz2m7qa`; not secret.
        tenant: Its tenant, or None if each request names one.
        agent: Its agent, or None if each request names one.
        expires_at: When it expires, in seconds since 1970, or None for never.
        user: Its user, or None if it is no user's. Requests of a delegate may name one.
        recheck_at: When its authorization server is to be asked about it again, in seconds since
            1970, or None for never.
        token: The token that it was authenticated with, or empty if that was something else.
    """

    name: str
    roles: frozenset[Role]
    tenant: str | None = None
    agent: str | None = None
    expires_at: float | None = None
    user: str | None = None
    recheck_at: float | None = field(default=None, compare=False)
    token: str = field(default="", repr=False, compare=False)

    def tenant_for(self, claimed: str) -> str:
        """Return the tenant of a request.

        Args:
            claimed: The tenant that the request names, or empty.

        Raises:
            Fault: PERMISSION_DENIED: the request names another tenant, existing or not.
        """
        if self.tenant is None:
            return claimed or DEFAULT_TENANT
        if claimed and claimed != self.tenant:
            raise Fault(
                Reason.PERMISSION_DENIED,
                f"This credential is for tenant '{self.tenant}', but the request names another "
                "one. Omit the tenant, or use a credential of that tenant.",
            )
        return self.tenant

    def agent_for(self, claimed: str) -> str:
        """Return the agent of a request: the credential's, or else the claimed one."""
        return claimed if self.agent is None else self.agent

    @property
    def names_users(self) -> bool:
        """Whether its requests may name any user of the tenant."""
        return self.user is None and Role.DELEGATE in self.roles

    def speaks_for(self, user: str) -> bool:
        """Return whether its requests may be for a user, or, if the name is empty, for none."""
        return self.names_users or user == (self.user or "")

    def user_for(self, claimed: str) -> str:
        """Return the user of a request, or empty for none.

        Args:
            claimed: The user that the request names, or empty.

        Raises:
            Fault: PERMISSION_DENIED: the request names a user that the credential does not speak
                for.
        """
        if self.speaks_for(claimed):
            return claimed
        if not claimed:
            return self.user or ""
        raise Fault(
            Reason.PERMISSION_DENIED,
            f"This credential ({self.name}) may not speak for the user that the request names. "
            "Omit the user, or use a credential of that user, or one with the role delegate.",
        )

    def subject_token_for(self, user: str, given: str) -> str:
        """Return the token of whoever a request is for: the given one, or else the caller's own.

        The own token of a delegate is never used for a user that the request names.

        Args:
            user: The user of the request, or empty.
            given: The token that the request brings, or empty.
        """
        return given or (self.token if user == (self.user or "") else "")

    def has(self, roles: Iterable[Role]) -> bool:
        return not self.roles.isdisjoint(roles)

    def check_roles(self, roles: Iterable[Role], target: str) -> None:
        """Raise a PERMISSION_DENIED `Fault` unless the principal has one of the roles.

        Args:
            roles: The allowed roles.
            target: The start of the message: the RPC or address.
        """
        if not self.has(roles):
            raise Fault(
                Reason.PERMISSION_DENIED,
                f"{target} requires the role {' or '.join(sorted(roles))}; this credential "
                f"({self.name}) has {', '.join(sorted(self.roles)) or 'none'}. Use another "
                "credential.",
                metadata=for_operators(
                    "To create a key with that role: leaseway key create --role ROLE."
                ),
            )


LOOPBACK: Final = Principal("an unauthenticated local caller", ALL_ROLES)
"""The sender if no credentials are configured, which is allowed on loopback only."""

SHARED_KEY: Final = Principal("the shared key", ALL_ROLES)
"""Holders of `LEASEWAY_KEY`: planes, and services that are trusted to name their tenant."""

WORKER_KEY: Final = Principal("the worker key", frozenset({Role.PLANE}))
"""Holders of `LEASEWAY_WORKER_KEY`: workers. If it is set, no other credential may join."""


def parse_roles(words: Iterable[str]) -> frozenset[Role]:
    """Return roles by their names; raises `ValueError` for an unknown name."""
    roles = set()
    for word in words:
        try:
            roles.add(Role(word))
        except ValueError:
            raise ValueError(
                f"'{word[:64]}' is no role; the roles are {', '.join(Role)}."
            ) from None
    return frozenset(roles)


def check_scope(roles: frozenset[Role], tenant: object) -> None:
    """Check that a credential with a tenant has no role that reaches beyond it.

    Args:
        tenant: Its tenant, or None.

    Raises:
        ValueError: It has a tenant and one of `SYSTEM_ROLES`.
    """
    beyond = roles & SYSTEM_ROLES
    if tenant is not None and beyond:
        raise ValueError(
            f"The role {' or '.join(sorted(beyond))} is for all tenants, so a credential with a "
            "tenant cannot have it."
        )


def check_user(roles: frozenset[Role], tenant: object, user: object) -> None:
    """Check that a credential of a user has a tenant, and does not speak for other users.

    Args:
        tenant: Its tenant, or None.
        user: Its user, or None.

    Raises:
        ValueError: It has a user and no tenant, or a user and the role delegate.
    """
    if user is None:
        return
    if tenant is None:
        raise ValueError("A user belongs to a tenant: name the tenant, too.")
    if Role.DELEGATE in roles:
        raise ValueError("The role delegate names the user of each request: omit the user.")


def check_name(what: str, name: str) -> str:
    """Return a tenant's or agent's name; raises `ValueError` if it is not valid.

    Args:
        what: `tenant`, `agent` or `user`, for the message.
    """
    if not name or not is_valid_key(name):
        raise ValueError(f"A {what} has 1 to 256 characters and no control characters.")
    if what == "tenant" and not is_valid_tenant(name):
        raise ValueError(f"A tenant's name has {TENANT_RULE}.")
    return name


CREDENTIAL: Final = "credential"
"""The metadata of a fault with the name of a credential that is genuine but no longer valid."""


def unauthenticated(message: str, credential: str = "") -> Fault:
    """Return the fault for a request whose credential is missing or invalid.

    Args:
        credential: The name of a genuine credential that has expired or was revoked, for the
            audit; empty for any other.
    """
    metadata = {CREDENTIAL: credential} if credential else {}
    return Fault(Reason.UNAUTHENTICATED, message, metadata=metadata)


def not_checkable(why: str, retry_delay: float) -> Fault:
    """Return the fault for a token of which nobody can say at the moment whether it is valid.

    It is no refusal: a client that took it for one would throw away a good token and log in again.

    Args:
        why: What completes "because ", with no other address than the issuer's: whoever sends a
            token need not know those behind this one.
        retry_delay: Seconds after which it may be different.
    """
    return Fault(
        Reason.AUTHORIZATION_FAILED,
        f"This token cannot be checked at the moment, because {why}. Try again later.",
        retry_delay=retry_delay,
    )
