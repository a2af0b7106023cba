"""Tokens that all workers of a machine share, sealed beside the vault. Blocks.

Whoever holds the lock of a token is the only one that requests it: the others find the new one.
So 500 calls on two workers make one request, and a refresh token is never spent twice
(design.md#tokens-for-remote-servers).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any, Final

from leaseway.data_plane.oauth.discoveries import Discoveries
from leaseway.data_plane.oauth.errors import AuthorizationError
from leaseway.data_plane.oauth.exchange import exchange, subject_token_of
from leaseway.data_plane.oauth.kept_clients import forget_refused
from leaseway.data_plane.oauth.metadata import AuthorizationServer, habits_of, has_left
from leaseway.data_plane.oauth.obtaining import (
    RENEWED_EARLY,
    Attempt,
    Wanted,
    obtain,
    renewal_lead,
)
from leaseway.data_plane.oauth.proofs import PROOF_ALGORITHMS, USE_NONCE, ProofKey
from leaseway.data_plane.oauth.requests import (
    OF_CLIENT,
    Client,
    TokenAnswer,
    hidden_tokens,
    request_token,
)
from leaseway.data_plane.oauth.web import ATTEMPT, Web
from leaseway.spec.auth import LISTING_TOKEN, NEVER
from leaseway.vault.key import VaultError
from leaseway.vault.logins import Login, LoginKey, LoginStore

_logger = logging.getLogger(__name__)
LOGIN_LOCK: Final = ATTEMPT + 5.0
"""Seconds to wait for a process that renews a login."""
_ENDED: Final = frozenset(
    {"invalid_grant", "invalid_token", "bad_refresh_token", "invalid_refresh_token"}
)
"""Codes of an authorization server that does not know a refresh token any more. The first is the
standard's (RFC 6749, section 5.2)."""
_OF_REQUEST: Final = frozenset(
    {"invalid_scope", "invalid_target", "unsupported_grant_type", "invalid_dpop_proof", USE_NONCE}
)
"""Codes that say nothing about the login."""
_OF_RESOURCE: Final = frozenset({"invalid_target", "invalid_request"})
"""Codes of an authorization server that accepts no resource indicator in a renewal."""

SERVER: Final = "server"
CLIENT: Final = "client"
RESOURCE: Final = "resource"
_SCOPES: Final = "scopes"
ADDED: Final = "added_scopes"
_AUTH_METHOD: Final = "client_auth_method"
_REFUSED: Final = "refused"
"""Until when a login is not renewed, and the code and the text of the refusal."""
_REFUSED_FOR: Final = 300.0
"""Seconds."""
_PROOF_KEY: Final = "proof_key"
"""Members of `Login.metadata`: the endpoints, the client, the resource, the requested scopes of a
service, those that calls of a person have needed besides, and the key that the tokens are bound
to."""
_ROTATES: Final = "rotates"
"""Whether a renewal gave another refresh token; there after the first renewal."""
_AT_DISCOVERY: Final = "proof_algorithms"
"""What a login does not keep: it has a key, or none."""


class SealedTokens:
    """Obtains tokens through the sealed store; an `ObtainToken`.

    Args:
        store: The store, or None if the worker has no vault.
        now: Seconds since 1970.
    """

    def __init__(
        self,
        store: LoginStore | None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._now = now
        self._discoveries = Discoveries()
        self._is_stopping = False
        self._stamps: dict[LoginKey, object] = {}

    def __call__(self, wanted: Wanted, attempt: Attempt) -> TokenAnswer:
        """Return a token.

        Raises:
            AuthorizationError: There is none.
        """
        if wanted.auth.grant == "authorization_code":
            return self._of_login(wanted, attempt)
        if wanted.auth.subject == "caller" and subject_token_of(wanted):
            # It ends with its caller's token: nothing to seal.
            return exchange(wanted, attempt, self._discoveries)
        if wanted.auth.subject == "caller":
            return self._of_listing(wanted, attempt)
        return self._of_service(wanted, attempt)

    def stop(self) -> None:
        """Spend no refresh token from now on: the process may end before it stores the next one."""
        self._is_stopping = True

    # The service's own tokens.

    def _of_listing(self, wanted: Wanted, attempt: Attempt) -> TokenAnswer:
        """Return the token for listing tools, when nobody calls."""
        try:
            return self._of_service(wanted, attempt)
        except AuthorizationError as error:
            if error.is_lasting:
                how = f"(client_credentials), unless auth has a {LISTING_TOKEN}"
                error.args = (f"{error}; its tools are listed with the client's own token {how}",)
            raise

    def _of_service(self, wanted: Wanted, attempt: Attempt) -> TokenAnswer:
        """Return a token of the service, shared with other workers if the vault has a key."""
        store = self._sealing()
        if store is None:
            return obtain(wanted, attempt)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(store.exclusive(wanted.login, LOGIN_LOCK))
                known = store.read(wanted.login)
            except VaultError as error:
                _logger.warning("Tokens are not shared between workers: %s", error)
                return obtain(wanted, attempt)
            if known is not None and self._is_usable(known, wanted, attempt):
                asked = set(known.metadata.get(_SCOPES, ()))
                if asked >= {*wanted.auth.scopes, *attempt.scopes}:
                    return self._answer(known)
            answer = obtain(wanted, attempt)
            login = self._login_of(Login(wanted.login), replace(answer, refresh_token=""))
            scopes = [*wanted.auth.scopes, *attempt.scopes]
            metadata = {**login.metadata, _SCOPES: scopes}
            self._write(store, replace(login, metadata=metadata))
            return answer

    def _sealing(self) -> LoginStore | None:
        try:
            return self._store if self._store is not None and self._store.has_key else None
        except VaultError:
            return None  # the worker reports its vault

    # Logins of people.

    def _of_login(self, wanted: Wanted, attempt: Attempt) -> TokenAnswer:
        if self._store is None and attempt.is_optional:
            raise _nobody()
        if self._store is None:
            raise AuthorizationError("this worker has no vault for logins", is_lasting=True)
        try:
            wanted = self._with_subject(self._store, wanted, attempt)
            _login_in(self._store, wanted)  # a lock would leave a file for each caller without one
            with self._store.exclusive(wanted.login, LOGIN_LOCK):
                answer = self._refreshed(self._store, wanted, attempt)
                return replace(answer, login=wanted.login)
        except VaultError as error:
            raise AuthorizationError(str(error).rstrip("."), is_lasting=True) from None

    def _with_subject(self, store: LoginStore, wanted: Wanted, attempt: Attempt) -> Wanted:
        """Return what is wanted for a subject: a probe uses the first login that there is.

        If a server refuses whatever is asked with its token, it is the newest of the others.
        """
        if not wanted.is_of_anybody:
            return wanted
        is_for_users = wanted.auth.subject == "user"
        logins: Sequence[Login] = store.all(wanted.server)[0]
        if attempt.is_doubted:
            logins = sorted(logins, key=partial(_preference, attempt.refused))
        for login in logins:
            key = login.key
            if wanted.tenant not in ("", key.tenant) or bool(key.user) is not is_for_users:
                continue
            found = replace(wanted, tenant=key.tenant, user=key.user)
            if found.login == key and not login.ended:
                return found
        raise _nobody()

    def _refreshed(self, store: LoginStore, wanted: Wanted, attempt: Attempt) -> TokenAnswer:
        login = _login_in(store, wanted)
        if login.ended:
            raise AuthorizationError(f"the login {login.ended}", needs_login=True, has_ended=True)
        if attempt.challenge.status == 403 and not set(attempt.scopes) <= set(login.scope.split()):
            raise self._needs_more(store, login, attempt)
        if self._is_usable(login, wanted, attempt):
            return self._answer(login)
        web = Web(wanted.configured)  # the issuer is what a server has named
        # A server that refuses a token may have moved to another authorization server.
        moves = attempt.refused and not wanted.auth.names_server
        if moves and has_left(web, wanted.web_url, attempt.challenge, login.issuer):
            store.write(login.ended_by("is of an authorization server that it no longer uses"))
            raise AuthorizationError(
                "it uses another authorization server than at the login",
                needs_login=True,
                has_ended=True,
            )
        is_kept = attempt.is_new or (attempt.is_doubted and not login.refresh_token)
        if is_kept and login.access_token:
            return self._answer(login)
        if not login.refresh_token:
            store.write(login.ended_by("has expired"))
            raise AuthorizationError("the login has expired", needs_login=True, has_ended=True)
        return self._renewed(store, login, wanted, attempt, web)

    def _renewed(
        self, store: LoginStore, login: Login, wanted: Wanted, attempt: Attempt, web: Web
    ) -> TokenAnswer:
        """Spend the refresh token of a login, and store what that gives."""
        self._check_not_refused(login)
        self._begin_spending(store, login)
        server, resource = server_of(login), login.metadata.get(RESOURCE, "")
        form = {
            "grant_type": "refresh_token",
            "refresh_token": login.refresh_token,
            "resource": resource,
            "scope": login.scope if habits_of(server).needs_scopes else "",
        }
        keep = hidden_tokens(login.refresh_token, login.access_token)
        client, key = client_of(login, wanted.client), _key_for(login, wanted, attempt)
        request = partial(request_token, web, server, client, is_bound=wanted.needs_bound)
        try:
            try:
                answer = request(form, key)
            except AuthorizationError as error:
                if not resource or error.code not in _OF_RESOURCE:
                    raise
                # Some know the resource from the login, and accept it there only.
                answer, resource = request({**form, "resource": ""}, key), ""
        except AuthorizationError as error:
            if not error.is_lasting or error.code not in _ENDED:
                store.end_spending(login.key)  # as far as anybody knows, it was not spent
                if _needs_another(login, error):
                    self._refuse(store, login, error)
                raise
            self._end(store, login, "has expired or was revoked")
            raise AuthorizationError(
                "the login has expired or was revoked",
                code=error.code,
                needs_login=True,
                has_ended=True,
            ) from None
        finally:
            del keep
        rotates = answer.refresh_token not in ("", login.refresh_token)
        if not rotates:
            answer = replace(answer, refresh_token=login.refresh_token)
        renewed = self._login_of(login, answer)
        metadata = {**renewed.metadata, RESOURCE: resource, _ROTATES: rotates, _REFUSED: None}
        if self._write(store, replace(renewed, metadata=metadata)):
            store.end_spending(login.key)
        return replace(answer, granted_at=login.granted_at)

    def _end(self, store: LoginStore, login: Login, cause: str) -> None:
        store.write(login.ended_by(cause))
        store.end_spending(login.key)

    def _refuse(self, store: LoginStore, login: Login, error: AuthorizationError) -> None:
        """Make an error ask for a login, and note it for all workers, which try again later.

        Every attempt changes the login's file, after which workers look for a new login at once.
        """
        # The next login registers another one.
        client = client_of(login, Client(""))
        forget_refused(error, store.clients, server_of(login).authority, client.id)
        error.needs_login = error.has_ended = True
        error.args = (f"the login cannot be renewed: {error}",)
        refused = [self._now() + _REFUSED_FOR, error.code, str(error)]
        store.write(replace(login, metadata={**login.metadata, _REFUSED: refused}))

    def _check_not_refused(self, login: Login) -> None:
        until, code, text = login.metadata.get(_REFUSED) or (0.0, "", "")
        if 0 < until - self._now() <= _REFUSED_FOR:
            raise AuthorizationError(
                text, code=code, is_lasting=True, needs_login=True, has_ended=True
            )

    def _begin_spending(self, store: LoginStore, login: Login) -> None:
        """Note that a refresh token is being spent, before it is: it may be good for one use only.

        Raises:
            AuthorizationError: A process that has ended may have spent it, or this one is ending.
            VaultError: That cannot be noted, so neither could the next token.
        """
        if self._is_stopping:
            raise AuthorizationError("the worker is stopping")
        if store.is_spending(login):  # whoever spent it has the lock no more, and stored nothing
            self._end(store, login, "was being renewed by a process that was killed")
            raise AuthorizationError(
                "a process that was killed, or could not store the next one, may have spent its"
                " refresh token, which is not spent twice",
                needs_login=True,
                has_ended=True,
            )
        if login.metadata.get(_ROTATES, True):
            store.begin_spending(login)

    def _needs_more(self, store: LoginStore, login: Login, attempt: Attempt) -> AuthorizationError:
        """Note the scopes that the next login requests, and return the error."""
        noted = login.metadata.get(ADDED, ())
        if not set(attempt.scopes) <= set(noted):  # each write has calls that wait sent again
            scopes = list(dict.fromkeys((*noted, *attempt.scopes)))
            store.write(replace(login, metadata={**login.metadata, ADDED: scopes}))
        return AuthorizationError(
            f"a call needs further permissions ({' '.join(attempt.scopes)})", needs_login=True
        )

    def granted(self, logins: Collection[LoginKey]) -> Mapping[LoginKey, float | None]:
        """Return when people logged in, in seconds since 1970; None if somebody has ended that.

        Of some logins, only those whose files have changed since the last look are read and
        returned. Blocks.
        """
        found: dict[LoginKey, float | None] = {}
        for key in logins if self._store is not None else ():
            assert self._store is not None
            stamp = self._store.stamp(key)
            if self._stamps.get(key) == stamp:
                continue
            try:
                login = self._store.read(key)
            except VaultError:
                continue  # the next renewal says why
            if login is None or login.ended:
                self._stamps.pop(key, None)
                found[key] = None
            else:
                self._stamps[key] = stamp
                found[key] = login.granted_at
        return found

    # Both.

    def _is_usable(self, login: Login, wanted: Wanted, attempt: Attempt) -> bool:
        """Return whether another worker has obtained a token that is still good."""
        if not login.access_token or login.access_token == attempt.refused:
            return False
        if wanted.needs_bound and key_of(login) is None:
            return False
        if login.expires_at is None:
            return True
        early = renewal_lead(login.expires_at - login.obtained_at)
        # A token from the future was obtained before the clock was set back.
        return login.obtained_at - RENEWED_EARLY < self._now() < login.expires_at - early

    def _answer(self, login: Login) -> TokenAnswer:
        lifetime = login.expires_at - login.obtained_at if login.expires_at is not None else None
        return TokenAnswer(
            login.access_token,
            lifetime,
            login.scope,
            age=max(0.0, self._now() - login.obtained_at),
            granted_at=login.granted_at,
            key=key_of(login),
            hidden=hidden_tokens(login.access_token, login.refresh_token),
        )

    def _login_of(self, login: Login, answer: TokenAnswer) -> Login:
        now = self._now()
        return replace(
            login,
            access_token=answer.access_token,
            obtained_at=now,
            expires_at=None if answer.lifetime is None else now + answer.lifetime,
            refresh_token=answer.refresh_token,
            scope=answer.scope or login.scope,
            metadata=with_key(login.metadata, answer.key),
        )

    def _write(self, store: LoginStore, login: Login) -> bool:
        """Keep tokens; return whether that succeeded: the caller has them in any case."""
        try:
            store.write(login)
        except VaultError as error:
            _logger.error("The token of the server %s is not kept: %s", login.key.server, error)
            return False
        return True


def _preference(refused: str, login: Login) -> tuple[bool, float]:
    """Return the place of a login among others whose token is not refused: the newest is first."""
    return login.access_token == refused, -login.granted_at


def _login_in(store: LoginStore, wanted: Wanted) -> Login:
    login = store.read(wanted.login)
    if login is None:
        raise _nobody()
    return login


def _nobody() -> AuthorizationError:
    return AuthorizationError("nobody is logged in", needs_login=True)


def server_of(login: Login) -> AuthorizationServer:
    """Return the authorization server of a login, as it was discovered then."""
    stored = login.metadata.get(SERVER, {})
    names = {field.name for field in fields(AuthorizationServer)}  # a newer version may store more
    known: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value  # JSON has no tuples
        for name, value in stored.items()
        if name in names
    }
    return AuthorizationServer(**known)


def key_of(login: Login) -> ProofKey | None:
    """Return the key that the tokens of a login are bound to, or None."""
    stored = login.metadata.get(_PROOF_KEY)
    return ProofKey(**stored) if stored else None


def with_key(metadata: Mapping[str, Any], key: ProofKey | None) -> Mapping[str, Any]:
    """Return the metadata of a login whose tokens are bound to a key, or to none."""
    others = {name: value for name, value in metadata.items() if name != _PROOF_KEY}
    return others if key is None else {**others, _PROOF_KEY: asdict(key)}


def _key_for(login: Login, wanted: Wanted, attempt: Attempt) -> ProofKey | None:
    """Return the key for the next token of a login: its own, or the first if one is needed now."""
    if wanted.auth.dpop == NEVER:
        return None
    is_needed = wanted.needs_bound or attempt.challenge.asks_only_proof
    return key_of(login) or (ProofKey.create(PROOF_ALGORITHMS[0]) if is_needed else None)


def _needs_another(login: Login, error: AuthorizationError) -> bool:
    """Return whether a refusal to renew a login is one that another login may help against.

    A client that was registered for the login may be forgotten; the next login registers another
    one. Some authorization servers have other codes for a refresh token that they do not accept, or
    none. The login stays, because they may be wrong.
    """
    code = error.code
    if not error.is_lasting or not code:
        return error.is_unexplained
    if code in OF_CLIENT:
        return bool(login.metadata.get(CLIENT))
    return code not in _OF_REQUEST


def client_of(login: Login, configured: Client) -> Client:
    """Return the client of a login: the registered one, or the configured one."""
    registered = login.metadata.get(CLIENT)
    if not registered:
        return configured
    return Client(**registered, auth_method=str(login.metadata.get(_AUTH_METHOD, "")))


def described_login(
    login: Login, server: AuthorizationServer, resource: str, client: Client | None
) -> Login:
    """Return a login with what a refresh needs to know."""
    known = asdict(server)
    del known[_AT_DISCOVERY]
    metadata = {
        **login.metadata,
        SERVER: known,
        RESOURCE: resource,
        CLIENT: None if client is None else {"id": client.id, "secret": client.secret},
        _AUTH_METHOD: "" if client is None else client.auth_method,
    }
    return replace(login, metadata=metadata, issuer=server.issuer)
