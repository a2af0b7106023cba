"""JSON web tokens: trusted issuers, their keys, and the principal for a token's claims.

`joserfc` verifies signatures; only asymmetric algorithms are accepted. An issuer's keys (JWKS) are
read from a file or a URL, again at a regular interval and when a token names an unknown key. If
reading fails, the last keys are used until `stale_after`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from leaseway.identity.principal import (
    ALL_ROLES,
    Principal,
    Role,
    check_name,
    check_scope,
    parse_roles,
    unauthenticated,
)
from leaseway.wire import bounds

ALGORITHMS: Final = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "Ed25519",
    "EdDSA",
)
"""The accepted signature algorithms, none of which uses a shared secret."""

MAX_TOKEN: Final = 16 * bounds.KIB
MAX_JWKS: Final = 1 * bounds.MIB
_FETCH_TIMEOUT: Final = 10.0
_MIN_INTERVAL: Final = 10.0
"""Seconds between two reads that unknown keys cause, because any client can send those."""
_LEEWAY: Final = 30
"""Seconds of clock skew."""


@dataclass(frozen=True)
class Issuer:
    """A trusted issuer, and the meaning of its claims.

    Attributes:
        issuer: The required `iss`.
        audience: The required `aud`, or a member of it.
        jwks: The location of its keys: a path or an `https` URL (`http` on loopback).
        tenant: The tenant of all its tokens, or None to use `tenant_claim`.
        tenant_claim: The claim with the tenant.
        agent_claim: The claim with the agent, or empty for none.
        roles_claim: The claim with the roles, or empty: all are callers.
        roles: The roles that its tokens may have; others in the claim are ignored.
        refresh: Seconds between two reads of the keys.
        stale_after: Seconds after which keys that cannot be read again are no longer trusted.
    """

    issuer: str
    audience: str
    jwks: str
    tenant: str | None = None
    tenant_claim: str = "tenant"
    agent_claim: str = ""
    roles_claim: str = ""
    roles: frozenset[Role] = ALL_ROLES
    refresh: float = 300.0
    stale_after: float = 24 * 3600.0


def looks_like_token(credential: str) -> bool:
    return credential.startswith("eyJ") and credential.count(".") == 2


def principal_from_claims(issuer: Issuer, claims: Mapping[str, Any]) -> Principal:
    """Return the principal of a verified token.

    Raises:
        Fault: UNAUTHENTICATED: a claim for the tenant, agent or roles is missing or invalid.
    """
    try:
        roles = _roles(issuer, claims)
        tenant = _tenant(issuer, claims, roles)
        check_scope(roles, tenant)
        agent = claims.get(issuer.agent_claim) if issuer.agent_claim else None
        if agent is not None:
            agent = check_name("agent", _text(issuer.agent_claim, agent))
    except ValueError as error:
        raise unauthenticated(f"This token of {issuer.issuer} cannot be used: {error}") from None
    subject = claims.get("sub")
    shown = subject[:128] if isinstance(subject, str) and subject.isprintable() else "no subject"
    return Principal(f"token {shown}", roles, tenant, agent, float(claims["exp"]) + _LEEWAY)


def _roles(issuer: Issuer, claims: Mapping[str, Any]) -> frozenset[Role]:
    words = claims.get(issuer.roles_claim) if issuer.roles_claim else None
    if words is None:
        words = [Role.CALLER.value]
    if isinstance(words, str):
        words = words.split()
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"its claim '{issuer.roles_claim}' must be a list of roles.")
    allowed = {role.value for role in issuer.roles}
    roles = parse_roles(word for word in words if word in allowed)  # ignore those of other systems
    if not roles:
        raise ValueError(f"it has none of the roles {', '.join(sorted(issuer.roles))}.")
    return roles


def _tenant(issuer: Issuer, claims: Mapping[str, Any], roles: frozenset[Role]) -> str | None:
    if issuer.tenant is not None:
        return issuer.tenant
    tenant = claims.get(issuer.tenant_claim)
    if tenant is None:
        if Role.CALLER in roles or Role.APPROVER in roles:
            raise ValueError(f"it has no claim '{issuer.tenant_claim}', which names the tenant.")
        return None
    return check_name("tenant", _text(issuer.tenant_claim, tenant))


def _text(claim: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"its claim '{claim}' must be a string.")
    return value


class IssuerKeys:
    """The current keys of one issuer.

    Args:
        issuer: The issuer.
        clock: Returns monotonic seconds.
    """

    def __init__(self, issuer: Issuer, clock: Callable[[], float]) -> None:
        self.issuer = issuer
        self.problem = ""
        self._clock = clock
        self._keys: KeySet | None = None
        self._ids: frozenset[str] = frozenset()
        self._read_at = float("-inf")
        self._tried_at = float("-inf")
        self._file_stamp: object = None
        self._lock = asyncio.Lock()

    async def keys_for(self, key_id: str | None) -> KeySet:
        """Return the keys to verify a token with; read them if the key id is unknown.

        Raises:
            Fault: UNAUTHENTICATED: they could not be read for too long.
        """
        now = self._clock()
        unknown = key_id is not None and key_id not in self._ids
        due = self._keys is None or unknown or now - self._read_at > self.issuer.refresh
        if due and (self._lock.locked() or self._may_read()):  # or another task reads them
            async with self._lock:
                if self._may_read():
                    await self._refresh()
        if self._keys is None or self._clock() - self._read_at > self.issuer.stale_after:
            raise unauthenticated(
                f"The keys of {self.issuer.issuer} cannot be read, so its tokens cannot be "
                f"verified: {self.problem}"
            )
        return self._keys

    def _may_read(self) -> bool:
        """Return whether the file has changed, or the minimum interval has passed."""
        if "://" not in self.issuer.jwks and _stamp(self.issuer.jwks) != self._file_stamp:
            return True
        return self._clock() - self._tried_at > _MIN_INTERVAL

    async def _refresh(self) -> None:
        if "://" not in self.issuer.jwks:
            self._file_stamp = _stamp(
                self.issuer.jwks
            )  # before reading, because it may change meanwhile
        try:
            content = await asyncio.to_thread(_load, self.issuer.jwks)
            document = json.loads(content)
            keys = KeySet.import_key_set(document)
        except (OSError, ValueError, RecursionError, KeyError, TypeError, JoseError) as error:
            self.problem = f"{self.issuer.jwks}: {str(error) or type(error).__name__}"
        else:
            self._keys = keys
            self._ids = frozenset(
                key["kid"] for key in document["keys"] if isinstance(key.get("kid"), str)
            )
            self._read_at = self._clock()
            self.problem = ""
        self._tried_at = self._clock()


def _stamp(path: str) -> object:
    """Return a value that differs after a file has changed."""
    try:
        status = Path(path).stat()
    except OSError as error:
        return error.errno
    return status.st_mtime_ns, status.st_size, status.st_ino


def _load(location: str) -> bytes:
    if "://" not in location:
        with Path(location).open("rb") as file:
            content = file.read(MAX_JWKS + 1)
    else:
        try:
            with urllib.request.urlopen(location, timeout=_FETCH_TIMEOUT) as response:  # noqa: S310 - http and https only
                content = response.read(MAX_JWKS + 1)
        except urllib.error.HTTPError as error:
            raise OSError(f"it responds with {error.code}.") from None
    if len(content) > MAX_JWKS:
        raise OSError(f"it has more than {MAX_JWKS} bytes.")
    return bytes(content)


async def verify_token(
    token: str, issuers: Mapping[str, IssuerKeys], now: Callable[[], float]
) -> Principal:
    """Verify a token and return its principal.

    Args:
        token: The token.
        issuers: The trusted issuers by their `iss`.
        now: Returns seconds since 1970.

    Raises:
        Fault: UNAUTHENTICATED, with the reason and never with the token.
    """
    if len(token) > MAX_TOKEN:
        raise unauthenticated(f"A token has at most {MAX_TOKEN} characters.")
    header, issuer_name = _unverified(token)
    issuer_keys = issuers.get(issuer_name)
    if issuer_keys is None:
        raise unauthenticated("The issuer of this token is not trusted.")
    issuer = issuer_keys.issuer
    key_id = header.get("kid")
    keys = await issuer_keys.keys_for(key_id if isinstance(key_id, str) else None)
    try:
        claims = jwt.decode(token, keys, algorithms=list(ALGORITHMS)).claims
        registry = jwt.JWTClaimsRegistry(
            now=int(now()),
            leeway=_LEEWAY,
            iss={"essential": True, "value": issuer.issuer},
            aud={"essential": True, "value": issuer.audience},
            exp={"essential": True},
        )
        registry.validate(claims)
    except (JoseError, ValueError, TypeError, KeyError) as error:
        reason = getattr(error, "error", "") or type(error).__name__
        raise unauthenticated(
            f"This token of {issuer.issuer} is not valid ({reason}). Get a new one for the "
            f"audience '{issuer.audience}'."
        ) from None
    return principal_from_claims(issuer, claims)


def _unverified(token: str) -> tuple[Mapping[str, Any], str]:
    """Return an unverified token's header and issuer, to find the keys to verify it with."""
    parts = []
    for part in token.split(".")[:2]:
        try:
            parts.append(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))))
        except (ValueError, RecursionError):
            parts.append(None)
    header, claims = (*parts, None, None)[:2]
    issuer = claims.get("iss") if isinstance(claims, dict) else None
    if not isinstance(header, dict) or not isinstance(issuer, str):
        raise unauthenticated("This is not a valid token.")
    return header, issuer
