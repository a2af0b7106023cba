"""JSON web tokens: which issuers are believed, and what their claims say about a caller.

`joserfc` checks signatures; only algorithms with a public key are taken. The issuers' keys (JWKS)
come from a file or a URL. They are read again when a token names a key that is not among them, and
regularly; where that fails the known ones are used for as long as `stale_after` says, never longer.
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
    Principal,
    Role,
    check_name,
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
"""What a token may be signed with; none of them takes a secret that both sides know."""

LONGEST_TOKEN: Final = 16 * bounds.KIB
MAX_JWKS: Final = 1 * bounds.MIB
_FETCH_TIMEOUT: Final = 10.0
_PAUSE: Final = 10.0
"""Seconds between two readings that tokens with unknown keys cause: anybody can send such."""
_LEEWAY: Final = 30
"""Seconds by which two clocks may differ."""


@dataclass(frozen=True)
class Issuer:
    """Whose tokens are believed, and what their claims mean.

    Attributes:
        issuer: What `iss` must be.
        audience: What `aud` must be or hold.
        jwks: Where its keys are: a path or an `https` URL (`http` on loopback).
        tenant: The tenant of all its tokens, or None: `tenant_claim` says.
        tenant_claim: The claim that names the tenant.
        agent_claim: The claim that names the agent, or empty for none.
        roles_claim: The claim that lists roles, or empty: all are callers.
        refresh: Seconds between two readings of the keys.
        stale_after: Seconds after which keys that cannot be read again are not believed any more.
    """

    issuer: str
    audience: str
    jwks: str
    tenant: str | None = None
    tenant_claim: str = "tenant"
    agent_claim: str = ""
    roles_claim: str = ""
    refresh: float = 300.0
    stale_after: float = 24 * 3600.0


def looks_like_token(credential: str) -> bool:
    return credential.startswith("eyJ") and credential.count(".") == 2


def principal_from_claims(issuer: Issuer, claims: Mapping[str, Any]) -> Principal:
    """Return who a token that was checked speaks for.

    Raises:
        Fault: UNAUTHENTICATED: its claims name no tenant, or what cannot be one.
    """
    try:
        roles = _roles(issuer, claims)
        tenant = _tenant(issuer, claims, roles)
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
        return frozenset({Role.CALLER})
    if isinstance(words, str):
        words = words.split()
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"its claim '{issuer.roles_claim}' is no list of roles.")
    known = {role.value for role in Role}
    roles = parse_roles(word for word in words if word in known)  # others mean others' roles
    if not roles:
        raise ValueError(f"its claim '{issuer.roles_claim}' names none of {', '.join(Role)}.")
    return roles


def _tenant(issuer: Issuer, claims: Mapping[str, Any], roles: frozenset[Role]) -> str | None:
    if issuer.tenant is not None:
        return issuer.tenant
    named = claims.get(issuer.tenant_claim)
    if named is None:
        if Role.CALLER in roles or Role.APPROVER in roles:
            raise ValueError(f"it has no claim '{issuer.tenant_claim}', which names the tenant.")
        return None
    return check_name("tenant", _text(issuer.tenant_claim, named))


def _text(claim: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"its claim '{claim}' is no text.")
    return value


class KeysOfIssuer:
    """One issuer's keys as they are now.

    Args:
        issuer: Whose.
        clock: Seconds, monotonic.
    """

    def __init__(self, issuer: Issuer, clock: Callable[[], float]) -> None:
        self.issuer = issuer
        self.problem = ""
        self._clock = clock
        self._keys: KeySet | None = None
        self._ids: frozenset[str] = frozenset()
        self._read_at = float("-inf")
        self._tried_at = float("-inf")
        self._seen: object = None
        self._lock = asyncio.Lock()

    async def keys_for(self, key_id: str | None) -> KeySet:
        """Return the keys to check a token with.

        Raises:
            Fault: UNAUTHENTICATED: they were never read, or too long ago.
        """
        now = self._clock()
        unknown = key_id is not None and key_id not in self._ids
        due = self._keys is None or unknown or now - self._read_at > self.issuer.refresh
        if due and (self._lock.locked() or self._may_read()):  # a reading may be under way
            async with self._lock:
                if self._may_read():
                    await self._refresh()
        if self._keys is None or self._clock() - self._read_at > self.issuer.stale_after:
            raise unauthenticated(
                f"The keys of {self.issuer.issuer} cannot be read, so that its tokens cannot be "
                f"checked: {self.problem}"
            )
        return self._keys

    def _may_read(self) -> bool:
        """Return whether reading may find something new: the file changed, or time has passed."""
        if "://" not in self.issuer.jwks and _stamp(self.issuer.jwks) != self._seen:
            return True
        return self._clock() - self._tried_at > _PAUSE

    async def _refresh(self) -> None:
        if "://" not in self.issuer.jwks:
            self._seen = _stamp(self.issuer.jwks)  # before it is read: it may change meanwhile
        try:
            content = await asyncio.to_thread(_load, self.issuer.jwks)
            document = json.loads(content)
            keys = KeySet.import_key_set(document)
        except (OSError, ValueError, RecursionError, KeyError, TypeError, JoseError) as error:
            self.problem = f"{self.issuer.jwks}: {str(error) or type(error).__name__}"
        else:
            self._keys = keys
            self._ids = frozenset(
                each["kid"] for each in document["keys"] if isinstance(each.get("kid"), str)
            )
            self._read_at = self._clock()
            self.problem = ""
        self._tried_at = self._clock()


def _stamp(place: str) -> object:
    """Return what tells whether a file has changed."""
    try:
        status = Path(place).stat()
    except OSError as error:
        return error.errno
    return status.st_mtime_ns, status.st_size, status.st_ino


def _load(place: str) -> bytes:
    if "://" not in place:
        with Path(place).open("rb") as file:
            content = file.read(MAX_JWKS + 1)
    else:
        try:
            with urllib.request.urlopen(place, timeout=_FETCH_TIMEOUT) as response:  # noqa: S310 - the configuration takes http and https only
                content = response.read(MAX_JWKS + 1)
        except urllib.error.HTTPError as error:
            raise OSError(f"it answers {error.code}.") from None
    if len(content) > MAX_JWKS:
        raise OSError(f"it has more than {MAX_JWKS} bytes.")
    return bytes(content)


async def check_token(
    token: str, issuers: Mapping[str, KeysOfIssuer], now: Callable[[], float]
) -> Principal:
    """Return who a token speaks for.

    Args:
        token: As it was sent.
        issuers: By what `iss` is to be.
        now: Seconds since 1970.

    Raises:
        Fault: UNAUTHENTICATED, with the reason; never with the token.
    """
    if len(token) > LONGEST_TOKEN:
        raise unauthenticated(f"A token has at most {LONGEST_TOKEN} characters.")
    header, claimed = _unverified(token)
    known = issuers.get(claimed)
    if known is None:
        raise unauthenticated("This token is of an issuer that is not believed here.")
    issuer = known.issuer
    key_id = header.get("kid")
    keys = await known.keys_for(key_id if isinstance(key_id, str) else None)
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
        why = getattr(error, "error", "") or type(error).__name__
        raise unauthenticated(
            f"This token of {issuer.issuer} is not good ({why}). Get a fresh one for the "
            f"audience '{issuer.audience}'."
        ) from None
    return principal_from_claims(issuer, claims)


def _unverified(token: str) -> tuple[Mapping[str, Any], str]:
    """Return a token's header and who it says it is of: only to find the keys to check it with."""
    parts = []
    for part in token.split(".")[:2]:
        try:
            parts.append(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))))
        except (ValueError, RecursionError):
            parts.append(None)
    header, claims = (*parts, None, None)[:2]
    issuer = claims.get("iss") if isinstance(claims, dict) else None
    if not isinstance(header, dict) or not isinstance(issuer, str):
        raise unauthenticated("What was sent as a token is none.")
    return header, issuer
