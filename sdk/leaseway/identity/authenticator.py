"""From the headers and the certificate of a request to who sent it.

One object a process. Its files are followed: a key that is made or revoked, or an issuer that is
added, counts within about a second, also for streams that are open (`watch`). A change that cannot
be read keeps what was in force, and `problem` says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from leaseway.identity.certificates import names_in, principal_of
from leaseway.identity.keys import KeyFileError, Keys, check_key, is_api_key, read_key_file
from leaseway.identity.principal import (
    LOOPBACK,
    SHARED_KEY,
    WORKER_KEY,
    Principal,
    Role,
    unauthenticated,
)
from leaseway.identity.refusals import Refusals
from leaseway.identity.settings import IdentityFileError, IdentitySettings, read_identity_file
from leaseway.identity.tokens import KeysOfIssuer, check_token, looks_like_token
from leaseway.wire.errors import Fault, Reason

_logger = logging.getLogger(__name__)
_POLL: Final = 1.0
_PAUSE: Final = 0.05
"""Seconds between two looks that unknown keys cause: anybody can send such."""
_CACHED: Final = 60.0
"""Seconds for which a token that was good is taken for good, unless it expires before."""
_MOST_CACHED: Final = 4_096
_SCHEME: Final = "bearer"


class _Watch:
    """A stream that is open, and what it was opened with."""

    def __init__(self, authorization: str | None, certificate: bytes | None, who: Principal):
        self.authorization = authorization
        self.certificate = certificate
        self.principal = who
        self.ended: asyncio.Future[Fault] = asyncio.get_running_loop().create_future()


class Authenticator:
    """Says who sent a request.

    Args:
        identity: The identity file, or None.
        keys: The file of API keys where no identity file names one, or None.
        shared: Keys that planes and trusted services know, each with who that makes of them.
        now: Seconds since 1970.
        clock: Seconds, monotonic.

    Attributes:
        problem: Why the files as they are now cannot be used; empty while they can.
        refusals: RPCs that were refused by what it says.

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
        self.problem = ""
        self.refusals = Refusals()
        self._identity_file = identity
        self._keys_file = keys
        self._shared = tuple((key.encode(), who) for key, who in shared)
        self._worker_key = worker_key.encode() if worker_key else None
        self._now = now
        self._clock = clock
        self._settings = IdentitySettings()
        self._issuers: dict[str, KeysOfIssuer] = {}
        self._keys: Keys = {}
        self._tokens: dict[bytes, tuple[float, Principal]] = {}
        self._watches: set[_Watch] = set()
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()
        self._seen: object = self._files()
        self._load()

    @property
    def checks_nobody(self) -> bool:
        """Whether everybody may do everything, joining as a worker included."""
        return self.is_open and self._worker_key is None

    @property
    def issuers(self) -> tuple[str, ...]:
        """Whose tokens are believed at present."""
        return tuple(self._issuers)

    @property
    def is_open(self) -> bool:
        """Whether no credential is wanted of callers, which is so on loopback only."""
        return not self._shared and not self._settings

    async def principal(
        self, authorization: str | None, certificate: bytes | None = None
    ) -> Principal:
        """Return who sent a request.

        Args:
            authorization: Its `Authorization` header, or None.
            certificate: The client certificate that TLS has checked, PEM or DER, or None.

        Raises:
            Fault: UNAUTHENTICATED: it proves nothing, or what it proves is not (any more) good.
        """
        if self.is_open and self._worker_key is None:
            return LOOPBACK
        if self._is_worker(authorization):
            return WORKER_KEY
        if self.is_open:
            return _LOOPBACK_CALLER
        if authorization:
            scheme, _, credential = authorization.partition(" ")
            if scheme.lower() != _SCHEME or not credential:
                raise unauthenticated(f"What was sent is no bearer credential. {_HOW}")
            return await self._bearer(credential.strip())
        if certificate and self._settings.certificates:
            found = principal_of(names_in(certificate), self._settings.certificates)
            if found is not None:
                return found
            raise unauthenticated(
                "No rule of the identity file matches a name in this client certificate."
            )
        raise unauthenticated(f"This address wants {self._wanted()}. {_HOW}")

    def for_role(self, *roles: Role) -> Callable[[str | None], Awaitable[Principal]]:
        """Return the check of a listener for HTTP that only some roles may use.

        What it returns takes an `Authorization` header and raises a `Fault`: UNAUTHENTICATED or
        PERMISSION_DENIED.
        """

        async def admit(authorization: str | None) -> Principal:
            who = await self.principal(authorization)
            if not who.has(roles):
                raise Fault(
                    Reason.PERMISSION_DENIED,
                    f"This address is for the role {' or '.join(sorted(roles))}; this "
                    f"credential ({who.name}) has {', '.join(sorted(who.roles))}.",
                )
            return who

        return admit

    def _is_worker(self, authorization: str | None) -> bool:
        if self._worker_key is None or not authorization:
            return False
        credential = authorization.partition(" ")[2].strip()
        return hmac.compare_digest(self._worker_key, credential.encode(errors="replace"))

    async def _bearer(self, credential: str) -> Principal:
        sent = credential.encode(errors="replace")
        for key, who in self._shared:
            if hmac.compare_digest(key, sent):
                return who
        if is_api_key(credential) and self._settings.keys is not None:
            found = check_key(self._keys, credential, self._now())
            if found is None and self._may_have_changed():
                await self.look()  # it may have been made a moment ago
                found = check_key(self._keys, credential, self._now())
            if found is None:
                raise unauthenticated(
                    "This key is not known here, has expired, or was revoked. Ask whoever runs "
                    "this system for another one."
                )
            return found
        if self._issuers and looks_like_token(credential):
            return await self._token(credential)
        raise unauthenticated(
            f"What was sent is not {self._wanted()} that this address wants. {_HOW}"
        )

    async def _token(self, token: str) -> Principal:
        digest = hashlib.sha256(token.encode()).digest()
        known = self._tokens.get(digest)
        if known is not None and self._clock() < known[0]:
            expires = known[1].expires_at
            if expires is None or self._now() < expires:
                return known[1]
        found = await check_token(token, self._issuers, self._now)
        if len(self._tokens) >= _MOST_CACHED:
            self._tokens.clear()
        self._tokens[digest] = (self._clock() + _CACHED, found)
        return found

    def _wanted(self) -> str:
        kinds = []
        if self._settings.keys is not None:
            kinds.append("an API key")
        if self._issuers:
            kinds.append("a token")
        if self._settings.certificates:
            kinds.append("a client certificate")
        if self._shared:
            kinds.append("the shared key")
        return " or ".join(kinds)

    @contextlib.contextmanager
    def watch(
        self, authorization: str | None, certificate: bytes | None, who: Principal
    ) -> Iterator[asyncio.Future[Fault]]:
        """Yield a future that gets the reason when a credential is no longer good."""
        watch = _Watch(authorization, certificate, who)
        self._watches.add(watch)
        try:
            yield watch.ended
        finally:
            self._watches.discard(watch)
            watch.ended.cancel()

    async def run(self) -> None:
        """Follow the files and the streams until cancelled."""
        while True:
            await asyncio.sleep(_POLL)
            await self.look()

    async def look(self) -> None:
        """Read what has changed, and end the watches of credentials that are not good any more."""
        async with self._looking:  # who comes meanwhile waits for what is read, too
            files = await asyncio.to_thread(self._files)
            self._looked_at = self._clock()
            changed = files != self._seen
            if changed:
                self._seen = files
                await asyncio.to_thread(self._reload)
        for watch in tuple(self._watches):
            expires = watch.principal.expires_at
            if changed or (expires is not None and expires <= self._now()):
                await self._look_again(watch)

    def _may_have_changed(self) -> bool:
        looked_long_ago = self._clock() - self._looked_at > _PAUSE
        return looked_long_ago or self._looking.locked() or self._files() != self._seen

    async def _look_again(self, watch: _Watch) -> None:
        try:
            again = await self.principal(watch.authorization, watch.certificate)
        except Fault as fault:
            reason = fault
        else:
            if again == watch.principal:
                return
            reason = unauthenticated("What this credential stands for has changed; connect anew.")
        if not watch.ended.done():
            watch.ended.set_result(reason)

    def _reload(self) -> None:
        try:
            self._load()
        except (IdentityFileError, KeyFileError) as error:
            self.problem = f"{error} What was in force before stays so."
            _logger.error("%s", self.problem)
        else:
            self.problem = ""
            _logger.info("credentials read again")

    def _load(self) -> None:
        settings = (
            read_identity_file(self._identity_file)
            if self._identity_file is not None
            else IdentitySettings()
        )
        if settings.keys is None and self._keys_file is not None:
            settings = IdentitySettings(self._keys_file, settings.issuers, settings.certificates)
        keys = read_key_file(settings.keys) if settings.keys is not None else {}
        if not settings and self._settings:
            raise IdentityFileError(
                f"{self._identity_file} names no credential any more, which would let everybody in."
            )
        issuers = {}
        for issuer in settings.issuers:
            known = self._issuers.get(issuer.issuer)
            same = known is not None and known.issuer == issuer
            issuers[issuer.issuer] = known if same and known else KeysOfIssuer(issuer, self._clock)
        self._settings, self._keys, self._issuers = settings, keys, issuers
        self._tokens.clear()

    def _files(self) -> tuple[object, ...]:
        paths = {self._identity_file, self._keys_file, self._settings.keys} - {None}
        return tuple(_stamp(path) for path in sorted(paths, key=str) if path is not None)


def authenticator_for(
    key: str | None,
    *,
    identity: Path | None = None,
    keys: Path | None = None,
    worker_key: str | None = None,
) -> Authenticator:
    """Return what a plane checks its callers by.

    Args:
        key: What the process itself sends. If it is no API key or token, it is the shared key, and
            whoever sends it is trusted.
        identity: The identity file, or None.
        keys: The file of API keys, or None.
        worker_key: What workers join with. Where it is given, the shared key does not let in
            workers; without one, it does, and where there is no credential at all, everybody.

    Raises:
        IdentityFileError, KeyFileError: A file cannot be used.
    """
    own = key is None or is_api_key(key) or looks_like_token(key)
    trusted = SHARED_KEY if worker_key is None else _no_plane(SHARED_KEY)
    shared = () if own or key is None else ((key, trusted),)
    made = Authenticator(identity=identity, keys=keys, shared=shared, worker_key=worker_key)
    if made.is_open:
        _logger.info(
            "No credentials are configured: whoever is on this machine may call for every tenant "
            "and operate this process."
        )
    return made


def _no_plane(principal: Principal) -> Principal:
    return replace(principal, roles=principal.roles - {Role.PLANE})


_LOOPBACK_CALLER: Final = _no_plane(LOOPBACK)


def _stamp(path: Path) -> tuple[object, ...]:
    try:
        status = path.stat()
    except OSError as error:
        return str(path), error.errno
    return str(path), status.st_mtime_ns, status.st_size, status.st_ino


_HOW: Final = "Set LEASEWAY_KEY to it, or send it as: Authorization: Bearer."
