"""The client of a login: the configured one, its metadata document, a kept or a new registration.

A client that was registered (RFC 7591) is kept once somebody has logged in with it, and used by the
logins of all subjects with the same redirect. An authorization server may forget it without a word:
then its page shows an error, and nobody returns. So a subject whose last login did not finish
gets a new client, and so does everybody once the client is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from leaseway.data_plane.oauth.errors import AuthorizationError
from leaseway.data_plane.oauth.kept_clients import forget_refused, tried
from leaseway.data_plane.oauth.metadata import AuthorizationServer
from leaseway.data_plane.oauth.obtaining import Wanted
from leaseway.data_plane.oauth.requests import Client, is_success, refusal
from leaseway.data_plane.oauth.web import (
    Web,
    document_of,
    identifier_in,
    place_of,
    seconds_in,
    text_in,
    texts_in,
)
from leaseway.vault.clients import ClientKey, ClientStore, RegisteredClient
from leaseway.wire.channels.endpoint import is_loopback_host

DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_REFRESH: Final = "refresh_token"
DEVICE: Final = "device"
"""The kind of logins on another device."""
OFFLINE_ACCESS: Final = "offline_access"
"""The scope that keeps a person logged in, where it is offered (OpenID Connect, section 11)."""
_OF_DOCUMENT: Final = frozenset({"invalid_client_metadata", "invalid_scope", "insufficient_scope"})
"""Codes with which a registration is refused because of what it asks for; the last one is
Keycloak's for scopes, also for `openid`."""
_INVALID_REDIRECT: Final = "invalid_redirect_uri"
_MAX_REFUSING: Final = 1_024
_Asked = tuple[str, str, str, str, str]
_refusing: Final[set[_Asked]] = set()
"""For whom an authorization server that offers `offline_access` refuses it: it depends on the
client, and people bring the refusal, who must not end it for other tenants."""
_LOGIN_TIME: Final = 900.0
"""Seconds for which a client must still be good when a login with it begins."""


@dataclass(frozen=True)
class LoginClient:
    """The client of one login.

    Attributes:
        client: The client.
        registered: Its registration, or None: it is configured, or named by its document.
        is_reused: Whether it was registered for an earlier login.
        is_configured: Whether it is the configured one.
    """

    client: Client
    registered: RegisteredClient | None = None
    is_reused: bool = False
    is_configured: bool = False

    @property
    def kept(self) -> RegisteredClient | None:
        """The registration of an earlier login that it uses, or None."""
        return self.registered if self.is_reused else None

    @property
    def own(self) -> Client | None:
        """The client that a login must remember; None for the configured one."""
        return None if self.is_configured else self.client

    def allowed(self, scopes: Sequence[str]) -> tuple[str, ...]:
        """Return the scopes that a login may request: not `offline_access` if it was not granted.

        Some authorization servers offer that, and register clients without it.
        """
        registered = None if self.registered is None else self.registered.scopes
        is_refused = registered is not None and OFFLINE_ACCESS not in registered
        return tuple(scope for scope in scopes if not (is_refused and scope == OFFLINE_ACCESS))

    def forget_refused(self, error: AuthorizationError, store: ClientStore) -> bool:
        """Forget a kept client that an error refuses; return whether another one may help."""
        kept = self.kept
        return kept is not None and forget_refused(error, store, kept.key.authority, kept.id)


@dataclass(frozen=True)
class PlannedLogin:
    """A login that is to begin.

    Attributes:
        wanted: Whose login it is, to which server.
        server: The authorization server.
        kind: The redirect, as it is configured, or `DEVICE`.
        scopes: The requested ones.
        store: The kept clients.
    """

    wanted: Wanted
    server: AuthorizationServer
    kind: str
    scopes: Sequence[str]
    store: ClientStore

    @property
    def key(self) -> ClientKey:
        wanted, server = self.wanted, self.server
        return ClientKey(wanted.server, wanted.url, server.authority, self.kind)

    @property
    def subject(self) -> str:
        """Whose login it is."""
        return self.wanted.login.file_name

    def kept(self, now: float) -> RegisteredClient | None:
        """Return the client that was registered for earlier ones, if it can be used.

        Args:
            now: Seconds since 1970.
        """
        if self.wanted.client.id or self._has_document or not self.server.registration_endpoint:
            return None
        client = tried(self.store.read, self.key)
        if client is None or self.subject in client.unfinished:
            return None
        is_valid = client.expires_at is None or now + _LOGIN_TIME < client.expires_at
        scopes = set(self.scopes) - {OFFLINE_ACCESS}
        has_scopes = client.scopes is None or scopes <= set(client.scopes)
        return client if is_valid and has_scopes else None

    @property
    def _has_document(self) -> bool:
        return bool(self.wanted.auth.client_metadata_url and self.server.accepts_metadata_documents)

    def choose(self, web: Web, redirect: str, kept: RegisteredClient | None) -> LoginClient:
        """Return the client of a login, registered now if there is none.

        Args:
            web: Sends the registration.
            redirect: The redirect, or empty for none.
            kept: The result of `kept`; it is used if it has this redirect.

        Raises:
            AuthorizationError: There is none.
        """
        wanted = self.wanted
        if wanted.client.id:
            return LoginClient(wanted.client, is_configured=True)
        if self._has_document:
            return LoginClient(Client(wanted.auth.client_metadata_url))
        if kept is not None and kept.redirect == redirect:
            tried(self.store.begin, kept, self.subject)
            return LoginClient(_client_of(kept), kept, is_reused=True)
        registered = self._register(web, redirect)
        return LoginClient(_client_of(registered), registered)

    def _register(self, web: Web, redirect: str) -> RegisteredClient:
        server = self.server
        # A login that has to do without `offline_access` shares its client with those that have it.
        scopes = tuple(dict.fromkeys((*self.scopes, *_offline(server))))
        if not set(scopes) - {OFFLINE_ACCESS}:
            scopes = ()  # a client that names scopes has none of the usual ones (Keycloak)
        if not server.registration_endpoint:
            raise AuthorizationError(
                f"the authorization server {server.issuer} registers no clients:"
                f" {self._how_to_register(redirect)}",
                is_lasting=True,
            )
        document: dict[str, Any] = {
            "client_name": "Leaseway",
            "application_type": "native" if not redirect or is_loopback(redirect) else "web",
            "redirect_uris": [redirect] if redirect else [],
            "grant_types": [_REFRESH, "authorization_code" if redirect else DEVICE_GRANT],
            "response_types": ["code"] if redirect else [],
            "token_endpoint_auth_method": _auth_method(server),
        }
        named: Sequence[str] | None
        for named, changed in _variants(document, server, scopes):
            more = {} if named is None else {"scope": " ".join(named)}
            sent = {**document, **changed, **more}
            response = web.post_json(server.registration_endpoint, sent)
            if is_success(response) or refusal(server, response).code not in _OF_DOCUMENT:
                break
        if not is_success(response):
            error = refusal(server, response)
            if not error.is_outage:
                how = self._how_to_register(redirect, error.code)
                error.args = (f"{error}, when a client was to be registered: {how}",)
            raise error
        answer = document_of(response) or {}
        client_id, secret = identifier_in(answer, "client_id"), text_in(answer, "client_secret")
        if not client_id:
            raise AuthorizationError(
                f"{place_of(server.registration_endpoint)} answered without a client"
            )
        granted = texts_in(answer, "scope")
        if (named is not None or not scopes) and granted and OFFLINE_ACCESS not in granted:
            named = [scope for scope in named or () if scope != OFFLINE_ACCESS]
        # Zero is never (RFC 7591, section 3.2.1).
        expires_at = seconds_in(answer, "client_secret_expires_at") or None
        return RegisteredClient(
            key=self.key,
            id=client_id,
            secret=secret,
            auth_method=text_in(answer, "token_endpoint_auth_method"),
            redirect=redirect,
            scopes=named,
            expires_at=expires_at if secret else None,
        )

    def _how_to_register(self, redirect: str, code: str = "") -> str:
        """Return what a person does instead of a registration.

        Args:
            redirect: Of the login; empty for one on another device.
            code: Why the registration was refused; may be empty.
        """
        auth = self.wanted.auth
        how = (
            f"register one there, with the redirect {redirect or 'of a native client'}, and write"
            " its client_id"
        )
        has_port = auth.redirect_port or urlsplit(auth.redirect_uri).port
        if redirect and self.kind != redirect and not has_port:  # any was taken
            how = f"{how} and redirect_port: {urlsplit(redirect).port}"
        if self.server.accepts_metadata_documents:
            how = f"{how}, or write client_metadata_url, the address of a document about one"
        if code != _INVALID_REDIRECT:
            return how
        if is_loopback(redirect):
            name = "http://localhost/callback"
            return f"write redirect_uri: {name} in auth and log in by leaseway login, or {how}"
        return f"log in by leaseway login, whose redirect stays on its machine, or {how}"


def _variants(
    document: Mapping[str, Any], server: AuthorizationServer, scopes: Sequence[str]
) -> Iterator[tuple[Sequence[str] | None, Mapping[str, object]]]:
    """Yield the scopes of a registration, None for none, with what else is changed in it.

    Many servers let a client request only the scopes that it was registered with; others register
    no client with a scope that only people or servers can have, or with what they do not name.
    """
    usual = tuple(scopes) or None
    yield usual, {}
    if usual is not None:
        yield None, {}
    if server.grant_types and _REFRESH not in server.grant_types:
        yield usual, {"grant_types": [name for name in document["grant_types"] if name != _REFRESH]}
    if not server.client_auth_methods:
        yield usual, {"token_endpoint_auth_method": "none"}


def refuses_offline(planned: PlannedLogin, client: LoginClient, error: AuthorizationError) -> bool:
    """Return whether a login may have failed for `offline_access`; it is not requested again."""
    requested = OFFLINE_ACCESS in client.allowed(planned.scopes)
    asked = requested and OFFLINE_ACCESS not in planned.wanted.auth.scopes
    if error.code != "invalid_scope" or not asked:
        return False
    if len(_refusing) >= _MAX_REFUSING:
        _refusing.clear()
    _refusing.add(_asked(planned.wanted, planned.server))
    return True


def _asked(wanted: Wanted, server: AuthorizationServer) -> _Asked:
    return wanted.server, wanted.url, wanted.tenant, wanted.client.id, server.authority


def offered(wanted: Wanted, server: AuthorizationServer, scopes: Sequence[str]) -> tuple[str, ...]:
    """Return some scopes, with `offline_access` if an authorization server gives it."""
    if OFFLINE_ACCESS in wanted.auth.scopes:
        return tuple(scopes)
    if _asked(wanted, server) in _refusing:
        return tuple(scope for scope in scopes if scope != OFFLINE_ACCESS)
    return tuple(dict.fromkeys((*scopes, *_offline(server))))


def _offline(server: AuthorizationServer) -> tuple[str, ...]:
    return (OFFLINE_ACCESS,) if OFFLINE_ACCESS in server.scopes else ()


def keep(client: LoginClient, store: ClientStore, subject: str) -> None:
    """Keep the client of a login that a subject has finished."""
    registered = client.registered
    if registered is None:
        return
    if client.is_reused:
        tried(store.end, registered, subject)
    else:
        tried(store.write, registered)


def _client_of(registered: RegisteredClient) -> Client:
    return Client(registered.id, registered.secret, auth_method=registered.auth_method)


def is_loopback(redirect: str) -> bool:
    """Return whether a redirect stays on the person's machine."""
    return is_loopback_host(urlsplit(redirect).hostname or "")


def _auth_method(server: AuthorizationServer) -> str:
    methods = server.client_auth_methods
    if "none" in methods:
        return "none"
    known = ("client_secret_basic", "client_secret_post")  # it knows which of them it does well
    return next((method for method in methods if method in known), known[0])
