"""Authenticates the sender of a request by its headers and its certificate.

One object for each process. It watches its files: a new or revoked key or issuer takes effect
within about a second, also for open streams (`watch`). If a changed file is invalid, the last valid
settings stay in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from leaseway.identity.certificates import certificate_names, principal_for_names
from leaseway.identity.introspection import Introspector
from leaseway.identity.keys import (
    KeyFileError,
    KeyRecords,
    genuine_record,
    is_api_key,
    principal_for_key,
    read_key_file,
)
from leaseway.identity.principal import (
    LOOPBACK,
    SHARED_KEY,
    WORKER_KEY,
    Principal,
    Role,
    check_name,
    check_scope,
    unauthenticated,
)
from leaseway.identity.refusals import RpcRefusals
from leaseway.identity.settings import IdentityFileError, IdentitySettings, read_identity_file
from leaseway.identity.tokens import (
    IssuerKeys,
    claimed_issuer,
    issuer_key,
    looks_like_token,
    verify_token,
)
from leaseway.wire.channels.auth import bearer_credential
from leaseway.wire.channels.fetching import in_thread
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.file_stamp import file_stamp
from leaseway.wire.signals import Signal

_logger = logging.getLogger(__name__)
_POLL: Final = 1.0
_MIN_INTERVAL: Final = 0.05
"""Seconds between two refreshes that unknown keys cause, because any client can send those."""
_TOKEN_TTL: Final = 60.0
"""Seconds for which a verified token is cached, unless it expires earlier."""
_MAX_CACHED: Final = 4_096
_OUTAGE: Final = 300.0
"""Seconds for which an open stream goes on while its token cannot be checked again."""


class _StreamWatch:
    """An open stream with its credential."""

    def __init__(self, authorization: str | None, certificate: bytes | None, principal: Principal):
        self.authorization = authorization
        self.certificate = certificate
        self.principal = principal
        self.rechecking: asyncio.Task[None] | None = None
        self.revoked: asyncio.Future[Fault] = asyncio.get_running_loop().create_future()


class Authenticator:
    """Authenticates requests.

    Args:
        identity: The identity file, or None.
        keys: The API key file if the identity file names none, or None.
        shared: The shared keys, each with its principal.
        worker_key: The key with which workers join, or None.
        now: Returns seconds since 1970.
        clock: Returns monotonic seconds.

    Attributes:
        refusals: The refused RPCs.
        limit_reached: Emits the metadata of the error if the RPCs of a caller hold too much.

    Raises:
        IdentityFileError, KeyFileError: A file cannot be used.
    """

    def __init__(
        self,
        *,
        identity: Path | None = None,
        keys: Path | None = None,
        shared: Iterable[tuple[str, Principal]] = (),
        worker_key: str | None = None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.refusals = RpcRefusals()
        self.limit_reached: Signal[Mapping[str, str]] = Signal()
        self._identity_file = identity
        self._keys_file = keys
        self._shared = tuple((key.encode(), principal) for key, principal in shared)
        self._worker_key = worker_key.encode() if worker_key else None
        self._now = now
        self._clock = clock
        self._settings = IdentitySettings()
        self._issuers: dict[str, IssuerKeys] = {}
        self._introspector: Introspector | None = None
        self._keys: KeyRecords = {}
        self._tokens: dict[bytes, tuple[float, Principal]] = {}
        self._watches: set[_StreamWatch] = set()
        self._refreshed_at = float("-inf")
        self._refresh_lock = asyncio.Lock()
        self._file_stamps: object = self._stamps()
        self._load()

    @property
    def allows_all(self) -> bool:
        """Whether all senders have all roles, so no checks are needed."""
        return self.is_open and self._worker_key is None

    @property
    def issuers(self) -> tuple[str, ...]:
        """The trusted token issuers."""
        issuers = {key: keys.issuer.issuer for key, keys in self._issuers.items()}
        if self._introspector is not None:
            opaque = self._introspector.settings.issuer.issuer
            issuers.setdefault(issuer_key(opaque), opaque)
        return tuple(issuers.values())

    @property
    def scopes(self) -> tuple[str, ...]:
        """What MCP clients are told to request of the issuers."""
        issuers = [keys.issuer for keys in self._issuers.values()]
        if self._introspector is not None:
            issuers.append(self._introspector.settings.issuer)
        return tuple(dict.fromkeys(scope for issuer in issuers for scope in issuer.scopes))

    @property
    def accepts_certificates(self) -> bool:
        """Whether client certificates are credentials."""
        return bool(self._settings.certificates)

    @property
    def is_open(self) -> bool:
        """Whether callers need no credential, which is allowed on loopback only."""
        return not self._shared and not self._settings

    async def principal(
        self, authorization: str | None, certificate: bytes | None = None
    ) -> Principal:
        """Return the principal of a request.

        Args:
            authorization: The `Authorization` header, or None.
            certificate: The client certificate that TLS has verified, PEM or DER, or None.

        Raises:
            Fault: UNAUTHENTICATED: the credential is missing, invalid, expired or revoked.
                AUTHORIZATION_FAILED: it is a token that cannot be checked at the moment.
                PERMISSION_DENIED: it is a valid token that names no tenant or role.
        """
        if self.allows_all:
            return LOOPBACK
        if self._is_worker(authorization):
            return WORKER_KEY
        if self.is_open:
            return _LOOPBACK_CALLER
        principal = await self._credential(authorization, certificate)
        if principal.tenant is not None:
            try:
                check_name("tenant", principal.tenant)
                check_scope(principal.roles, principal.tenant)
            except ValueError as error:
                raise unauthenticated(f"This credential cannot be used: {error}") from None
        if self._worker_key is not None and Role.PLANE in principal.roles:
            return _without_plane(principal)
        return principal

    async def _credential(self, authorization: str | None, certificate: bytes | None) -> Principal:
        """Return the principal of the credential, which needs no worker key."""
        if authorization:
            credential = bearer_credential(authorization)
            if not credential:
                raise unauthenticated(f"The Authorization header has no bearer credential. {_HOW}")
            return await self._bearer(credential)
        if certificate and self._settings.certificates:
            found = principal_for_names(certificate_names(certificate), self._settings.certificates)
            if found is not None:
                return found
            raise unauthenticated(
                "No rule in the identity file matches a name in this client certificate."
            )
        raise unauthenticated(f"This address requires {self._accepted()}. {_HOW}")

    def for_role(self, *roles: Role) -> RoleCheck:
        """Return what authenticates `Authorization` headers for one of the roles."""
        return RoleCheck(self, roles)

    def _is_worker(self, authorization: str | None) -> bool:
        if self._worker_key is None or not authorization:
            return False
        credential = bearer_credential(authorization)
        return hmac.compare_digest(self._worker_key, credential.encode(errors="replace"))

    async def _bearer(self, credential: str) -> Principal:
        sent = credential.encode(errors="replace")
        for key, principal in self._shared:
            if hmac.compare_digest(key, sent):
                return principal
        if is_api_key(credential) and self._settings.keys is not None:
            found = principal_for_key(self._keys, credential, self._now())
            if found is None and self._may_have_changed():
                await self.refresh()  # the key may be new
                found = principal_for_key(self._keys, credential, self._now())
            if found is None:
                raise self._refused_key(credential)
            if found.tenant is None and Role.CALLER in found.roles:
                raise unauthenticated(
                    f"The API {found.name} cannot be used: a caller needs a tenant, and the key"
                    " file names none. Ask an operator for another one.",
                    found.name,
                )
            return found
        introspector = self._introspector_for(credential)
        if introspector is not None:
            return await introspector.principal(credential)
        if self._issuers and looks_like_token(credential):
            return await self._token(credential)
        raise unauthenticated(
            f"This credential is not accepted: this address requires {self._accepted()}. {_HOW}"
        )

    def _introspector_for(self, credential: str) -> Introspector | None:
        """Return who is asked about a credential.

        Nobody learns of API keys, of tokens that name another issuer, and of those that can be
        verified here.
        """
        if self._introspector is None or is_api_key(credential):
            return None
        issuer = claimed_issuer(credential) if looks_like_token(credential) else ""
        if not issuer:
            return self._introspector
        key = issuer_key(issuer)
        is_its = key == issuer_key(self._introspector.settings.issuer.issuer)
        return self._introspector if is_its and key not in self._issuers else None

    def _refused_key(self, credential: str) -> Fault:
        """Return why an API key is not accepted; whoever has its secret may know its state."""
        record = genuine_record(self._keys, credential)
        if record is None:
            return unauthenticated("This API key is unknown. Ask an operator for another one.")
        ended = "was revoked" if record.revoked_at else "has expired"
        return unauthenticated(
            f"The API {record.name} {ended}. Ask an operator for another one.", record.name
        )

    async def _token(self, token: str) -> Principal:
        digest = hashlib.sha256(token.encode()).digest()
        cached = self._tokens.get(digest)
        if cached is not None and self._clock() < cached[0]:
            expires = cached[1].expires_at
            if expires is None or self._now() < expires:
                return cached[1]
        while True:
            issuers = self._issuers
            principal = await verify_token(token, issuers, self._now)
            if issuers is self._issuers:  # else the file has changed while its keys were read
                break
        if len(self._tokens) >= _MAX_CACHED:
            self._tokens.clear()
        self._tokens[digest] = (self._clock() + _TOKEN_TTL, principal)
        return principal

    def _accepted(self) -> str:
        kinds = []
        if self._settings.keys is not None:
            kinds.append("an API key")
        if self._issuers or self._introspector is not None:
            kinds.append("a token")
        if self._settings.certificates:
            kinds.append("a client certificate")
        if self._shared:
            kinds.append("the shared key")
        return " or ".join(kinds)

    @contextlib.contextmanager
    def watch(
        self, authorization: str | None, certificate: bytes | None, principal: Principal
    ) -> Iterator[asyncio.Future[Fault]]:
        """Yield a future that gets a fault when the credential of a stream is no longer valid."""
        watch = _StreamWatch(authorization, certificate, principal)
        self._watches.add(watch)
        try:
            yield watch.revoked
        finally:
            self._watches.discard(watch)
            watch.revoked.cancel()
            if watch.rechecking is not None:
                watch.rechecking.cancel()

    async def run(self) -> None:
        """Watch the files and the open streams until cancelled."""
        self._log_access()
        while True:
            await asyncio.sleep(_POLL)
            for issuer in self._issuers.values():
                issuer.refresh()
            await self.refresh()

    def _log_access(self) -> None:
        keys = self._settings.keys
        if self.is_open:
            _logger.info(
                "No credentials are configured: every process on this machine may call for every "
                "tenant and operate this process."
            )
        elif keys is not None and not keys.exists():
            _logger.warning(
                "The key file %s does not exist, so no API key is accepted. Create a key: "
                "leaseway key create --keys %s",
                keys,
                keys,
            )

    async def refresh(self) -> None:
        """Reload changed files, and revoke streams whose credentials are no longer valid."""
        async with self._refresh_lock:  # concurrent callers wait for the same reload
            # Not in the shared threads, which may all be busy with the work of callers.
            files = await in_thread(self._stamps)
            self._refreshed_at = self._clock()
            changed = files != self._file_stamps
            if changed:
                self._file_stamps = files
                await in_thread(self._reload)
        for watch in tuple(self._watches):
            now, expires = self._now(), watch.principal.expires_at
            recheck = watch.principal.recheck_at
            is_due = changed or (expires is not None and expires <= now)
            if recheck is None:
                if is_due:
                    await self._check(watch)
            elif (is_due or recheck <= now) and watch.rechecking is None:
                # An authorization server that is slow must not delay the revocation of others.
                watch.rechecking = asyncio.create_task(self._recheck(watch), name="recheck token")

    def _may_have_changed(self) -> bool:
        is_due = self._clock() - self._refreshed_at > _MIN_INTERVAL
        return is_due or self._refresh_lock.locked() or self._stamps() != self._file_stamps

    async def _recheck(self, watch: _StreamWatch) -> None:
        try:
            await self._check(watch)
        finally:
            watch.rechecking = None

    async def _check(self, watch: _StreamWatch) -> None:
        try:
            principal = await self.principal(watch.authorization, watch.certificate)
        except Fault as fault:
            if fault.reason is Reason.AUTHORIZATION_FAILED and self._may_go_on(watch.principal):
                return
            reason = fault
        else:
            # Some authorization servers lengthen a token's life as it is used.
            as_before = replace(principal, expires_at=watch.principal.expires_at)
            is_introspected = principal.recheck_at is not None
            if (as_before if is_introspected else principal) == watch.principal:
                watch.principal = principal
                return
            reason = unauthenticated(
                "The tenant, agent, user or roles of this credential have changed; reconnect."
            )
        if not watch.revoked.done():
            watch.revoked.set_result(reason)

    def _may_go_on(self, principal: Principal) -> bool:
        """Return whether a stream goes on although its token cannot be checked again."""
        now, expires, recheck = self._now(), principal.expires_at, principal.recheck_at
        is_expired = expires is not None and expires <= now
        return not is_expired and recheck is not None and now < recheck + _OUTAGE

    def _reload(self) -> None:
        try:
            self._load()
        except (IdentityFileError, KeyFileError) as error:
            _logger.error("%s The previous credentials stay in force.", error)
        except Exception:  # or else no later change would be read
            _logger.exception("Reading credentials failed. The previous ones stay in force.")
        else:
            _logger.info("credentials reloaded")

    def _load(self) -> None:
        settings = (
            read_identity_file(self._identity_file)
            if self._identity_file is not None
            else IdentitySettings()
        )
        if settings.keys is None and self._keys_file is not None:
            settings = replace(settings, keys=self._keys_file)
        keys = read_key_file(settings.keys) if settings.keys is not None else {}
        if not settings and self._settings:
            raise IdentityFileError(
                f"{self._identity_file} has no credentials any more, which would allow all senders."
            )
        issuers = {}
        for issuer in settings.issuers:
            known = self._issuers.get(issuer_key(issuer.issuer))
            if known is None or known.issuer != issuer:
                changed = IssuerKeys(issuer, self._clock)
                known = changed if known is None else changed.after(known)
            issuers[issuer_key(issuer.issuer)] = known
        introspector = self._introspector
        if settings.introspection is None:
            introspector = None
        elif introspector is None or introspector.settings != settings.introspection:
            introspector = Introspector(settings.introspection, self._now, self._clock)
        self._settings, self._keys, self._issuers = settings, keys, issuers
        self._introspector = introspector
        self._tokens.clear()

    def _stamps(self) -> tuple[object, ...]:
        introspection = self._settings.introspection
        secret = None if introspection is None else introspection.secret_file
        paths = {self._identity_file, self._keys_file, self._settings.keys, secret} - {None}
        return tuple(
            (path, file_stamp(path)) for path in sorted(paths, key=str) if path is not None
        )


class RoleCheck:
    """Authenticates the `Authorization` headers of an address for one of some roles.

    Args:
        authenticator: Knows the credentials.
        roles: The roles, one of which is enough.
    """

    def __init__(self, authenticator: Authenticator, roles: Collection[Role]) -> None:
        self._authenticator = authenticator
        self._roles = roles

    async def __call__(self, authorization: str | None) -> Principal:
        """Return the principal of a request.

        Raises:
            Fault: As `Authenticator.principal`; PERMISSION_DENIED: it has none of the roles.
        """
        principal = await self._authenticator.principal(authorization)
        principal.check_roles(self._roles, "This address")
        return principal

    def watch(
        self, authorization: str | None, principal: Principal
    ) -> AbstractContextManager[asyncio.Future[Fault]]:
        """Return the watch of a stream's credential, as `Authenticator.watch` does."""
        return self._authenticator.watch(authorization, None, principal)


async def run_until_revoked(
    revoked: asyncio.Future[Fault], serving: Coroutine[Any, Any, Any]
) -> None:
    """Run what serves a stream until it ends or the stream's credential is revoked.

    Args:
        revoked: Of `Authenticator.watch`.
        serving: Serves the stream; it is cancelled when the credential is revoked.

    Raises:
        Fault: The credential is no longer valid.
    """
    task = asyncio.ensure_future(serving)
    try:
        ends: set[asyncio.Future[Any]] = {task, revoked}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # retrieve it, or asyncio logs it; the peer disconnected
    if revoked.done() and task.cancelled():
        raise revoked.result()
    await task


def authenticator_for(
    key: str | None,
    *,
    identity: Path | None = None,
    keys: Path | None = None,
    worker_key: str | None = None,
) -> Authenticator:
    """Return the authenticator of a plane.

    Args:
        key: The credential that the process itself sends. Unless it is an API key or a token, it is
            the shared key, whose senders are trusted.
        identity: The identity file, or None.
        keys: The API key file, or None.
        worker_key: The key with which workers join. Without it, they join with the shared key or,
            without any credential, freely.

    Raises:
        IdentityFileError, KeyFileError: A file cannot be used.
    """
    is_own = key is None or is_api_key(key) or looks_like_token(key)
    trusted = SHARED_KEY if worker_key is None else _without_plane(SHARED_KEY)
    shared = () if is_own or key is None else ((key, trusted),)
    return Authenticator(identity=identity, keys=keys, shared=shared, worker_key=worker_key)


def _without_plane(principal: Principal) -> Principal:
    return replace(principal, roles=principal.roles - {Role.PLANE})


_LOOPBACK_CALLER: Final = _without_plane(LOOPBACK)


_HOW: Final = "Set LEASEWAY_KEY, or send the header Authorization: Bearer CREDENTIAL."
