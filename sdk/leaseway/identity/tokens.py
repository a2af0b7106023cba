"""JSON web tokens: trusted issuers, their keys, and the principal for a token's claims.

`joserfc` verifies signatures; only asymmetric algorithms are accepted. An issuer's keys (JWKS) are
read from a file or a URL, again at a regular interval and when a token names an unknown key. If
reading fails or takes long, the last keys are used until `stale_after`. A token whose key cannot be
read is refused as not checkable, never as invalid.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from joserfc import jwt
from joserfc.errors import ExpiredTokenError, InvalidClaimError, JoseError
from joserfc.jwk import JWKRegistry, Key

from leaseway.identity.principal import (
    ALL_ROLES,
    Principal,
    Role,
    check_name,
    check_scope,
    not_checkable,
    parse_roles,
    unauthenticated,
)
from leaseway.identity.signatures import Signatures
from leaseway.wire import bounds
from leaseway.wire.channels.fetching import fetch, in_thread
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.file_stamp import FileStamp, file_stamp
from leaseway.wire.json_pointer import at_pointer
from leaseway.wire.names import is_valid_key
from leaseway.wire.secrets.trusted_files import read_trusted

_logger = logging.getLogger(__name__)

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
_SIGNATURES: Final = Signatures(ALGORITHMS)

_KEY_TYPES: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
"""The type of key of an algorithm, by its first two characters."""
_MAX_CANDIDATES: Final = 16
"""Keys that are tried for one token, of those with its id, or of all if it names none."""
_MAX_SKIPPED: Final = 5

MAX_TOKEN: Final = 16 * bounds.KIB
MAX_JWKS: Final = 1 * bounds.MIB
_FETCH_TIMEOUT: Final = 10.0
_MIN_INTERVAL: Final = 10.0
"""Seconds between two reads that unknown keys cause, because any client can send those."""
_MAX_ASKED: Final = 256
_MAX_KEY_ID: Final = 256
"""Unknown key ids, and their characters, that are remembered until the keys are read again."""
_MIN_DELAY: Final = 1.0
"""Seconds after which a token that cannot be checked may be sent again, at least."""
LEEWAY: Final = 30
"""Seconds of clock skew."""
_OTHERS: Final = "client "
_SUBJECTS: Final = {"sub": "", "client_id": _OTHERS, "azp": _OTHERS}
"""The claims that say whose a token is, the first one that it has, and what precedes their text."""
_MAX_SHOWN: Final = 128
_FRONT: Final = "/mcp"


@dataclass(frozen=True)
class Issuer:
    """A trusted issuer, and the meaning of its claims.

    A claim is named by its name, or, inside others, by a JSON pointer: `/realm_access/roles`.

    Attributes:
        issuer: The required `iss`, with or without a slash at its end.
        audience: The texts of which one is required as `aud`, or as a member of it.
        jwks: The location of its keys: a path or an `https` URL (`http` on loopback). Empty if its
            tokens are opaque (`introspection`).
        tenant: The tenant of all its tokens, or None to use `tenant_claim`.
        agent_claim: The claim with the agent, or empty for none.
        user_claim: The claim with the user, or empty: its tokens are no users'.
        user_prefix: Text before the claim in the user's name, which tells the users of several
            issuers apart.
        roles_claim: The claim with the roles, or empty: all are callers.
        roles: The roles that its tokens may have; others in the claim are ignored.
        refresh: Seconds between two reads of the keys.
        stale_after: Seconds after which keys that cannot be read again are no longer trusted.
        scopes: What MCP clients are told to request; nothing checks that tokens have them.
        is_only_one: Whether no other issuer is trusted, which may have equal subjects.
    """

    issuer: str
    audience: tuple[str, ...]
    jwks: str
    tenant: str | None = None
    tenant_claim: str = "tenant"
    agent_claim: str = ""
    user_claim: str = "sub"
    user_prefix: str = ""
    roles_claim: str = ""
    roles: frozenset[Role] = ALL_ROLES
    refresh: float = 300.0
    stale_after: float = 24 * 3600.0
    scopes: tuple[str, ...] = ()
    is_only_one: bool = True

    def accepts_audience(self, aud: object) -> bool:
        """Return whether a token with this `aud` is for one of the audiences.

        A front has an address for each server, `…/mcp/SERVER`, for which clients request tokens
        there. It needs no audience of its own beside `…/mcp`.
        """
        named = aud if isinstance(aud, list) else [aud]
        texts = [text for text in named if isinstance(text, str)]
        places = [text.removesuffix("/") for text in texts]
        fronts = (*places, *(place.rpartition("/")[0] for place in places))
        texts += (front for front in fronts if front.endswith(_FRONT))
        return any(text in self.audience for text in texts)


def issuer_key(name: str) -> str:
    """Return an issuer's name as it is compared: a slash at its end makes no other issuer."""
    return name.removesuffix("/")


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by its name or JSON pointer (RFC 6901); None if there is none."""
    if not name.startswith("/"):
        return claims.get(name) if name else None
    return at_pointer(claims, name)


def looks_like_token(credential: str) -> bool:
    return credential.startswith("eyJ") and credential.count(".") == 2


def _name(issuer: Issuer, claims: Mapping[str, Any]) -> str:
    """Return the name of the principal of a token, which is that of no other one.

    Sessions of MCP clients belong to it.
    """
    kind, who = next(
        (
            (kind, claims[claim])
            for claim, kind in _SUBJECTS.items()
            if isinstance(claims.get(claim), str) and claims[claim]
        ),
        ("", "no subject"),
    )
    is_plain = len(who) <= _MAX_SHOWN and who.isprintable()
    if not is_plain or (not kind and who.startswith(_OTHERS)) or "(sha256 " in who:
        digest = hashlib.sha256(who.encode(errors="surrogatepass")).hexdigest()[:16]
        who = f"{''.join(filter(str.isprintable, who))[:_MAX_SHOWN]} (sha256 {digest})"
    return f"token {kind}{who}{'' if issuer.is_only_one else f' of {issuer.issuer}'}"


def principal_from_claims(issuer: Issuer, claims: Mapping[str, Any]) -> Principal:
    """Return the principal of a verified token.

    Raises:
        Fault: PERMISSION_DENIED: a claim for the tenant, agent or roles is missing or invalid. (At
            UNAUTHENTICATED, MCP clients have people log in again, for a token that says the same.)
    """
    try:
        roles = _roles(issuer, claims)
        tenant = _tenant(issuer, claims, roles)
        check_scope(roles, tenant)
        agent = _claim(claims, issuer.agent_claim)
        if agent is not None:
            agent = check_name("agent", _text(issuer.agent_claim, agent))
    except ValueError as error:
        raise Fault(
            Reason.PERMISSION_DENIED,
            f"This token of {issuer.issuer} cannot be used: {error}",
        ) from None
    expires_at = None if claims.get("exp") is None else float(claims["exp"]) + LEEWAY
    user = _user(issuer, claims, roles) if tenant is not None else None
    return Principal(
        name=_name(issuer, claims),
        roles=roles,
        tenant=tenant,
        agent=agent,
        expires_at=expires_at,
        user=user,
    )


def _user(issuer: Issuer, claims: Mapping[str, Any], roles: frozenset[Role]) -> str | None:
    """Return the user of a token; None if it is a delegate's, or says none that can be used."""
    claimed = _claim(claims, issuer.user_claim)
    if Role.DELEGATE in roles or not isinstance(claimed, str) or not claimed:
        return None
    user = f"{issuer.user_prefix}{claimed}"
    return user if is_valid_key(user) else None


def _roles(issuer: Issuer, claims: Mapping[str, Any]) -> frozenset[Role]:
    words = _claim(claims, issuer.roles_claim)
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
    tenant = _claim(claims, issuer.tenant_claim)
    if tenant is None:
        if Role.CALLER in roles or Role.APPROVER in roles:
            raise ValueError(f"it has no claim '{issuer.tenant_claim}', which names the tenant.")
        return None
    return check_name("tenant", _text(issuer.tenant_claim, tenant))


def _text(claim: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"its claim '{claim}' must be a string.")
    return value


class JwkSet:
    """The usable keys of a JWKS document.

    An entry that this release does not understand costs only itself: issuers publish keys of new
    kinds before they use them.

    Args:
        document: The decoded document.

    Attributes:
        skipped: Why entries cannot be used.
        are_all_named: Whether each key has an id: one without may have signed any token.

    Raises:
        ValueError: It is no JWKS document.
    """

    def __init__(self, document: object) -> None:
        entries = document.get("keys") if isinstance(document, dict) else None
        if not isinstance(entries, list):
            raise ValueError("it is no JWKS document: it has no list 'keys'.")
        self.skipped: list[str] = []
        self._keys: list[tuple[str | None, Key]] = []
        for number, entry in enumerate(entries, start=1):
            if _is_for_others(entry):
                continue
            try:
                self._keys.append(_signing_key(entry))
            except (ValueError, TypeError, KeyError, AttributeError, JoseError) as error:
                self.skipped.append(f"key {number}: {str(error)[:200] or type(error).__name__}")
        self.ids: Final = frozenset(key_id for key_id, _ in self._keys if key_id is not None)
        self.are_all_named: Final = all(key_id is not None for key_id, _ in self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def candidates(self, key_id: str | None, algorithm: object) -> list[Key]:
        """Return the keys that may have signed a token, at most `_MAX_CANDIDATES`; its own first.

        Args:
            key_id: The token's `kid`, or None.
            algorithm: The token's `alg`.
        """
        kind = _KEY_TYPES.get(str(algorithm)[:2])
        fitting = [(known, key) for known, key in self._keys if key.key_type == kind]
        named = [key for known, key in fitting if known == key_id]
        others = [key for known, key in fitting if known != key_id and None in (key_id, known)]
        return (named + others)[:_MAX_CANDIDATES]


def _is_for_others(entry: object) -> bool:
    """Return whether an entry is no key for signatures, as many issuers have one for encryption."""
    if not isinstance(entry, dict):
        return False
    use, operations = entry.get("use"), entry.get("key_ops")
    is_listed = isinstance(operations, list) and "verify" not in operations
    return use not in (None, "sig") or is_listed


def _signing_key(entry: object) -> tuple[str | None, Key]:
    """Return the id and the key of an entry of a JWKS document."""
    if not isinstance(entry, dict):
        raise TypeError("it is no JSON object")
    members = {name: value for name, value in entry.items() if value is not None}
    key_id = members.get("kid")
    if key_id is not None and not isinstance(key_id, str):
        raise ValueError("its kid is no string")
    if members.get("kty") not in _KEY_TYPES.values():
        raise ValueError("its kty is none of RSA, EC and OKP")
    return key_id, JWKRegistry.import_key(members)


class IssuerKeys:
    """The current keys of one issuer.

    They are read in a thread of their own, at most once at a time. Tokens of known keys never wait
    for a web server.

    Args:
        clock: Returns monotonic seconds.
    """

    def __init__(self, issuer: Issuer, clock: Callable[[], float]) -> None:
        self.issuer = issuer
        self.problem = ""
        self._clock = clock
        self._keys: JwkSet | None = None
        self._asked: set[str] = set()
        self._absent: frozenset[str] = frozenset()
        self._read_at = float("-inf")
        self._tried_at = float("-inf")
        self._file_stamp: FileStamp | None = None
        self._is_file = "://" not in issuer.jwks
        self._reading: asyncio.Task[None] | None = None

    def after(self, before: IssuerKeys) -> IssuerKeys:
        """Return these; take over what was read before at the same place, by other settings."""
        if before.issuer.jwks == self.issuer.jwks:
            self.problem, self._keys = before.problem, before._keys
            self._read_at, self._tried_at = before._read_at, before._tried_at
            self._file_stamp, self._absent = before._file_stamp, before._absent
        return self

    async def keys_for(self, key_id: str | None) -> JwkSet:
        """Return the keys to verify a token with; read them if the key id is unknown.

        Raises:
            Fault: AUTHORIZATION_FAILED: the key of the token cannot be read at the moment.
        """
        is_known = self._knows(key_id)
        asked = key_id[:_MAX_KEY_ID] if key_id is not None else None
        if not is_known and asked is not None and len(self._asked) < _MAX_ASKED:
            self._asked.add(asked)
        reading = self._read_if_due(is_known)
        if reading is not None and (self._is_file or not is_known):
            await asyncio.shield(reading)
        # A key that is unknown after a failed read, or was not yet looked for, may be a new one.
        is_missing = self.problem or not (self._is_file or asked in self._absent)
        if self._keys is None or not self._is_trusted() or (is_missing and not self._knows(key_id)):
            wait = self._tried_at + _MIN_INTERVAL - self._clock()
            keys = f"the keys of {self.issuer.issuer}"
            is_unread = self.problem or not self._is_trusted()
            why = (
                f"{keys} cannot be read" if is_unread else f"{keys} were just read without its own"
            )
            raise not_checkable(why, max(_MIN_DELAY, wait))
        return self._keys

    async def keys_after(self, keys: JwkSet) -> JwkSet:
        """Return the newest keys; read them again if that is due.

        Args:
            keys: Those of which none has signed a token that does not say which one has.
        """
        reading = self._read_if_due(False)
        if reading is not None:
            await asyncio.shield(reading)
        return self._keys if self._keys is not None and self._is_trusted() else keys

    def _knows(self, key_id: str | None) -> bool:
        """Return whether a key is there that the token of this key id may be of."""
        if self._keys is None or not self._is_trusted():
            return False
        return key_id is None or key_id in self._keys.ids or not self._keys.are_all_named

    def refresh(self) -> None:
        """Start to read the keys if they have been in use and are old."""
        if self._keys is not None:
            self._read_if_due(True)

    def _is_trusted(self) -> bool:
        age = self._clock() - self._read_at
        return self._keys is not None and age <= self.issuer.stale_after

    def _read_if_due(self, is_known: bool) -> asyncio.Task[None] | None:
        """Return the reading of the keys, a new one if it is due, or None."""
        if self._reading is None and self._may_read():
            is_old = self._clock() - self._read_at > self.issuer.refresh
            if is_old or not is_known:
                self._tried_at = self._clock()
                self._reading = asyncio.create_task(self._read(), name="read keys of an issuer")
                self._reading.add_done_callback(self._read_ended)
        return self._reading

    def _read_ended(self, _reading: asyncio.Task[None]) -> None:
        self._reading = None

    def _may_read(self) -> bool:
        """Return whether the file has changed, or the minimum interval has passed."""
        if self._is_file and file_stamp(Path(self.issuer.jwks)) != self._file_stamp:
            return True
        return self._clock() - self._tried_at > _MIN_INTERVAL

    async def _read(self) -> None:
        asked, self._asked = self._asked, set()
        stamp = (
            file_stamp(Path(self.issuer.jwks)) if self._is_file else None
        )  # it may change meanwhile
        try:
            async with asyncio.timeout(_FETCH_TIMEOUT + 1.0):
                keys = await in_thread(_read_keys, self.issuer.jwks)
        except (OSError, ValueError, RecursionError) as error:
            self._fail(f"{self.issuer.jwks}: {str(error) or type(error).__name__}")
        else:
            if keys.skipped and (self._keys is None or self._keys.skipped != keys.skipped):
                _logger.warning(
                    "%s has keys that cannot be used and are skipped: %s",
                    self.issuer.jwks,
                    "; ".join(keys.skipped[:_MAX_SKIPPED]),
                )
            if self.problem:
                _logger.info("The keys of %s can be read again.", self.issuer.issuer)
            known = self._keys.ids if self._keys is not None else frozenset()
            self._absent = (known | asked) - keys.ids
            self._keys = keys
            self._read_at = self._clock()
            self.problem = ""
        self._file_stamp = stamp
        self._tried_at = self._clock()

    def _fail(self, problem: str) -> None:
        if problem != self.problem:
            _logger.warning(
                "The keys of %s cannot be read, so tokens of keys that were not read before cannot "
                "be checked: %s",
                self.issuer.issuer,
                problem,
            )
        self.problem = problem


def _read_keys(location: str) -> JwkSet:
    keys = JwkSet(json.loads(_load(location)))
    if not len(keys):
        raise ValueError(f"it has no usable key. {'; '.join(keys.skipped[:_MAX_SKIPPED])}")
    return keys


def _load(location: str) -> bytes:
    if "://" in location:
        return fetch(
            location,
            limit=MAX_JWKS,
            timeout=_FETCH_TIMEOUT,
            accept="application/json",
            is_protected=True,
        )
    content = read_trusted(Path(location), MAX_JWKS)
    if len(content) > MAX_JWKS:
        raise OSError(f"it has more than {MAX_JWKS} bytes.")
    return content


async def _verified_claims(
    token: str, header: Mapping[str, Any], issuer_keys: IssuerKeys, keys: JwkSet
) -> dict[str, Any]:
    """Return the claims of a token that one of an issuer's keys has signed.

    Raises:
        JoseError, ValueError, TypeError, KeyError: None has.
    """
    key_id = _key_id(header)
    try:
        return _claims_of(token, keys.candidates(key_id, header.get("alg")))
    except (JoseError, ValueError, TypeError, KeyError):
        if key_id in keys.ids:
            raise
        newer = await issuer_keys.keys_after(keys)
        if newer is keys:
            raise
        return _claims_of(token, newer.candidates(key_id, header.get("alg")))


def _claims_of(token: str, keys: Sequence[Key]) -> dict[str, Any]:
    """Return the claims of a token that one of the keys has signed.

    Raises:
        JoseError, ValueError, TypeError, KeyError: None has.
    """
    failure: Exception = ValueError("No key of the issuer fits.")
    for key in keys:
        try:
            return jwt.decode(token, key, registry=_SIGNATURES).claims
        except (JoseError, ValueError, TypeError, KeyError) as error:
            failure = error
    raise failure


async def verify_token(
    token: str, issuers: Mapping[str, IssuerKeys], now: Callable[[], float]
) -> Principal:
    """Verify a token and return its principal.

    Args:
        issuers: The trusted issuers by their `issuer_key`.
        now: Returns seconds since 1970.

    Raises:
        Fault: UNAUTHENTICATED, with the reason and never with the token. AUTHORIZATION_FAILED: its
            key cannot be read at the moment. PERMISSION_DENIED: as `principal_from_claims`.
    """
    if len(token) > MAX_TOKEN:
        raise unauthenticated(f"A token has at most {MAX_TOKEN} characters.")
    header, issuer_name = _unverified(token)
    issuer_keys = issuers.get(issuer_key(issuer_name))
    if issuer_keys is None:
        raise unauthenticated("The issuer of this token is not trusted.")
    issuer = issuer_keys.issuer
    keys = await issuer_keys.keys_for(_key_id(header))
    claims: Mapping[str, Any] = {}
    try:
        claims = await _verified_claims(token, header, issuer_keys, keys)
        registry = jwt.JWTClaimsRegistry(
            now=int(now()),
            leeway=LEEWAY,
            iss={"essential": True, "value": issuer_name},  # the one that was looked up
            exp={"essential": True},
        )
        registry.validate(claims)
        if not isinstance(claims.get("sub", ""), str):  # joserfc checks this from 1.8 on
            raise InvalidClaimError("sub")
        if not issuer.accepts_audience(claims.get("aud")):
            raise InvalidClaimError("aud")
    except (JoseError, ValueError, TypeError, KeyError) as error:
        name = _name(issuer, claims) if claims else ""  # its signature is right
        text = f"This token of {issuer.issuer} is not valid: {_why(error, header, claims, issuer)}"
        raise unauthenticated(text, name) from None
    return replace(principal_from_claims(issuer, claims), token=token)


def _why(error: Exception, header: Any, claims: Mapping[str, Any], issuer: Issuer) -> str:
    """Return why a token is not valid, and what to do; `claims` are empty if nothing vouches."""
    wanted = f"Get a new one for the audience {' or '.join(map(repr, issuer.audience))}."
    if not claims and header.get("alg") not in ALGORITHMS:
        return f"its algorithm is none of {', '.join(ALGORITHMS)}."
    if not claims:
        return f"none of the issuer's keys has signed it. {wanted}"
    if isinstance(error, ExpiredTokenError):
        return f"it has expired. {wanted}"
    claim = getattr(error, "claim", "nbf" if "nbf" in claims else "iat")  # joserfc before 1.6.5
    value = claims.get(claim)
    if claim in ("nbf", "iat") and isinstance(value, int | float):
        return f"its '{claim}' is in the future. Correct Leaseway's clock, or the issuer's."
    shown = f"no {claim}" if value is None else f"the {claim} {value!r:.{_MAX_SHOWN}}"
    return f"it has {shown}. {wanted}"


def _key_id(header: Mapping[str, Any]) -> str | None:
    key_id = header.get("kid")
    return key_id if isinstance(key_id, str) else None


def claimed_issuer(token: str) -> str:
    """Return the issuer that an unverified token names; empty if it names none."""
    try:
        return _unverified(token)[1]
    except Fault:
        return ""


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
