"""A person's login: authorization code with PKCE and a redirect, or a device code.

Runs in the command line (`leaseway login`), with a loopback redirect, or in a worker, with the
console's; blocks, and leaves a sealed login for the workers of that machine. A client is
configured, named by its metadata document, or registered (RFC 7591).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode, urlsplit

from leaseway.data_plane.oauth.challenges import Challenge, challenge_of
from leaseway.data_plane.oauth.errors import AuthorizationError
from leaseway.data_plane.oauth.logins.redirects import MAX_CODE, Redirect, code_of
from leaseway.data_plane.oauth.metadata import (
    AuthorizationServer,
    Discovered,
    discover,
    habits_of,
)
from leaseway.data_plane.oauth.obtaining import Attempt, Wanted, new_key, scopes_of
from leaseway.data_plane.oauth.proofs import ProofKey
from leaseway.data_plane.oauth.requests import (
    Client,
    TokenAnswer,
    hidden_tokens,
    is_success,
    post,
    refusal,
    request_token,
)
from leaseway.data_plane.oauth.sealed import (
    SCOPES,
    client_of,
    described_login,
    server_of,
    with_key,
)
from leaseway.data_plane.oauth.web import (
    Web,
    document_of,
    identifier_in,
    is_web_address,
    place_of,
    seconds_in,
    text_in,
)
from leaseway.vault.logins import Login, LoginStore
from leaseway.wire.channels.endpoint import is_loopback_host

_CODE_LIFETIME: Final = 600.0
_POLL_INTERVAL: Final = 5.0
"""Seconds of a device code, unless the authorization server says others (RFC 8628)."""
_DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_INITIALIZE: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "leaseway", "version": "1"},
    },
}
_VERSION: Final = "2026-07-28"
_PREFIX: Final = "io.modelcontextprotocol/"
_DISCOVER: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "server/discover",
    "params": {
        "_meta": {
            f"{_PREFIX}protocolVersion": _VERSION,
            f"{_PREFIX}clientInfo": {"name": "leaseway", "version": "1"},
            f"{_PREFIX}clientCapabilities": {},
        }
    },
}
_MODERN: Final = {"MCP-Protocol-Version": _VERSION, "Mcp-Method": "server/discover"}
_OF_SCOPES: Final = frozenset({"invalid_client_metadata", "invalid_scope"})
"""Codes with which a registration is refused because of its scopes."""
LOGIN_TIMEOUT: Final = 300.0
"""Seconds that a person has for a login."""


@dataclass(frozen=True)
class Told:
    """What a person is shown.

    Attributes:
        url: The address to open.
        code: The code to enter there, or empty.
        fault: Why what the person has entered is of no use; then there is no address.
    """

    url: str = ""
    code: str = ""
    fault: str = ""


@dataclass(frozen=True)
class LoginRequest:
    """A login to carry out.

    Attributes:
        wanted: The server, its client, and the tenant.
        tell: Shows a person what to open.
        by_device: Whether a code is entered on another device.
        pasted: A file descriptor from which the redirect's address may be read, or None.
        timeout: Seconds that the person has.
        now: Seconds since 1970.
    """

    wanted: Wanted
    tell: Callable[[Told], None]
    by_device: bool = False
    pasted: int | None = None
    timeout: float = LOGIN_TIMEOUT
    now: Callable[[], float] = field(default=time.time)


def log_in(request: LoginRequest, store: LoginStore) -> tuple[Login, bool]:
    """Let a person log in; return the sealed login, and whether this created the vault's key.

    Raises:
        AuthorizationError: It failed.
        VaultError: It cannot be sealed.
    """
    wanted = request.wanted
    web = Web(wanted.configured)
    found, scopes = _discovered(web, wanted, store)
    ask = _by_device if request.by_device else _by_browser
    answer, registered = ask(request, web, found, scopes)
    return _seal(wanted, found, scopes, answer, registered, store, request.now())


def _discovered(web: Web, wanted: Wanted, store: LoginStore) -> tuple[Discovered, tuple[str, ...]]:
    """Return the authorization server, and the scopes to request."""
    before = store.read(wanted.login)
    challenge = _challenge(web, wanted)
    found = discover(web, wanted.web_url, wanted.auth, challenge)
    known = tuple((before.metadata.get(SCOPES) or ()) if before is not None else ())
    return found, _scopes(wanted, found, Attempt(challenge, known))


def _seal(
    wanted: Wanted,
    found: Discovered,
    scopes: tuple[str, ...],
    answer: TokenAnswer,
    registered: Client | None,
    store: LoginStore,
    now: float,
) -> tuple[Login, bool]:
    login = Login(
        wanted.login,
        scope=answer.scope or " ".join(scopes),
        access_token=answer.access_token,
        obtained_at=now,
        expires_at=None if answer.lifetime is None else now + answer.lifetime,
        refresh_token=answer.refresh_token,
        granted_at=now,
        metadata=with_key({SCOPES: list(scopes)}, answer.key),
    )
    login = described_login(login, found.server, found.resource, registered)
    return login, store.write(login)


def revoke(login: Login, configured: Client) -> str | None:
    """Revoke the tokens of a login at its authorization server; return why not, or None.

    Args:
        login: The login.
        configured: The configured client, for logins without one of their own.
    """
    server = server_of(login)
    token = login.refresh_token or login.access_token
    if not token:
        return None
    if not server.revocation_endpoint:
        return "its authorization server offers no revocation; the tokens end when they expire"
    web = Web([url for url in (login.key.url, login.issuer, login.key.authority) if url])
    kind = "refresh_token" if login.refresh_token else "access_token"
    form = {"token": token, "token_type_hint": kind}
    keep = hidden_tokens(token)
    try:
        post(web, server, server.revocation_endpoint, client_of(login, configured), form)
    except AuthorizationError as error:
        return str(error)
    finally:
        del keep
    return None


def _challenge(web: Web, wanted: Wanted) -> Challenge:
    """Return what the server says to a request without a token, in either era of MCP."""
    for message, headers in ((_DISCOVER, _MODERN), (_INITIALIZE, {})):
        try:
            response = web.post_json(wanted.web_url, message, headers)
        except AuthorizationError:
            continue
        if response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return challenge_of(HTTPStatus.UNAUTHORIZED, response.headers)
    return Challenge(HTTPStatus.UNAUTHORIZED)  # the well-known addresses are tried


def _scopes(wanted: Wanted, found: Discovered, attempt: Attempt) -> tuple[str, ...]:
    scopes = scopes_of(wanted.auth, attempt, found)
    # A refresh token is what keeps a person logged in (OpenID Connect, section 11).
    if "offline_access" in found.server.scopes:
        scopes = tuple(dict.fromkeys((*scopes, "offline_access")))
    return scopes


def _client(
    web: Web, wanted: Wanted, server: AuthorizationServer, redirect: str, scopes: Sequence[str]
) -> Client | None:
    """Return the client to register or to name by its document; None for the configured one.

    Raises:
        AuthorizationError: There is none.
    """
    if wanted.client.id:
        return None
    if wanted.auth.client_metadata_url and server.accepts_metadata_documents:
        return Client(wanted.auth.client_metadata_url)
    if not server.registration_endpoint:
        raise AuthorizationError(
            f"the authorization server {server.issuer} registers no clients: register one there,"
            f" with the redirect {redirect or 'of a native client'}, and write its client_id",
            is_lasting=True,
        )
    document: dict[str, object] = {
        "client_name": "Leaseway",
        "application_type": "native" if not redirect or is_loopback(redirect) else "web",
        "redirect_uris": [redirect] if redirect else [],
        "grant_types": [
            "refresh_token",
            "authorization_code" if redirect else _DEVICE_GRANT,
        ],
        "response_types": ["code"] if redirect else [],
        "token_endpoint_auth_method": _auth_method(server),
    }
    # Many servers let a client request only the scopes that it was registered with; others register
    # no client with a scope that only people or servers can have.
    for more in ({"scope": " ".join(scopes)},) * bool(scopes) + ({},):
        response = web.post_json(server.registration_endpoint, {**document, **more})
        if is_success(response) or refusal(server, response).code not in _OF_SCOPES:
            break
    if not is_success(response):
        raise refusal(server, response)
    registered = document_of(response) or {}
    client_id = identifier_in(registered, "client_id")
    if not client_id:
        raise AuthorizationError(
            f"{place_of(server.registration_endpoint)} answered without a client"
        )
    return Client(
        client_id,
        text_in(registered, "client_secret"),
        auth_method=text_in(registered, "token_endpoint_auth_method"),
    )


def is_loopback(redirect: str) -> bool:
    """Return whether a redirect stays on the person's machine."""
    return is_loopback_host(urlsplit(redirect).hostname or "")


def _auth_method(server: AuthorizationServer) -> str:
    methods = server.client_auth_methods
    known = ("none", "client_secret_basic", "client_secret_post")
    return next((method for method in known if method in methods), "client_secret_basic")


# In a browser of this machine.


def _by_browser(
    request: LoginRequest, web: Web, found: Discovered, scopes: tuple[str, ...]
) -> tuple[TokenAnswer, Client | None]:
    auth = request.wanted.auth

    def reject(fault: str) -> None:
        request.tell(Told(fault=fault))

    with Redirect(auth.redirect_uri, auth.redirect_port) as redirect:
        begun = _begun(request.wanted, web, found, scopes, redirect.url, redirect.state)
        request.tell(Told(begun.url))
        answer = redirect.wait(request.timeout, request.pasted, reject)
    return _granted(begun, answer), begun.registered


@dataclass(frozen=True)
class BegunLogin:
    """A login whose person is at the authorization server.

    Attributes:
        scopes: The requested ones.
        registered: The client that was registered for it, or None for the configured one.
        redirect: Where the person's browser returns to.
        state: What the redirect must contain.
        verifier: The secret of PKCE, which only the one that began the login has.
        url: The address to open.
        key: The key that the tokens are to be bound to, or None.
    """

    wanted: Wanted
    found: Discovered
    scopes: tuple[str, ...]
    registered: Client | None
    redirect: str
    state: str
    verifier: str = field(repr=False)
    url: str
    key: ProofKey | None = field(default=None, repr=False)


def begin_login(wanted: Wanted, store: LoginStore, redirect: str) -> BegunLogin:
    """Begin a login whose redirect goes to another program, which passes it to `finish_login`.

    Raises:
        AuthorizationError: It failed.
        VaultError: The previous login cannot be read.
    """
    web = Web(wanted.configured)
    found, scopes = _discovered(web, wanted, store)
    return _begun(wanted, web, found, scopes, redirect, secrets.token_urlsafe(32))


def finish_login(begun: BegunLogin, answer: Mapping[str, str], store: LoginStore) -> Login:
    """Seal a login with the parameters of its redirect, whose state is right.

    Raises:
        AuthorizationError: It failed.
        VaultError: It cannot be sealed.
    """
    tokens = _granted(begun, answer)
    wanted, found = begun.wanted, begun.found
    sealed = _seal(wanted, found, begun.scopes, tokens, begun.registered, store, time.time())
    return sealed[0]


def _begun(
    wanted: Wanted,
    web: Web,
    found: Discovered,
    scopes: tuple[str, ...],
    redirect: str,
    state: str,
) -> BegunLogin:
    from mcp.client.auth.oauth2 import PKCEParameters

    server = found.server
    if not server.authorization_endpoint:
        raise AuthorizationError(
            f"the authorization server {server.issuer} names no authorization endpoint",
            is_lasting=True,
        )
    registered, key = _client(web, wanted, server, redirect, scopes), new_key(found)
    pkce = PKCEParameters.generate()
    query = {
        "response_type": "code",
        "client_id": (registered or wanted.client).id,
        "redirect_uri": redirect,
        "state": state,
        "code_challenge": pkce.code_challenge,
        "code_challenge_method": "S256",
        "scope": " ".join(scopes),
        "resource": found.resource,
        "dpop_jkt": "" if key is None else key.thumbprint,  # the code is of no use without it
        # Some servers give a refresh token only after an explicit consent.
        "prompt": "consent" if "offline_access" in scopes else "",
        **habits_of(server).login,
        **wanted.auth.parameters,
    }
    url = _with_query(server.authorization_endpoint, query)
    return BegunLogin(
        wanted=wanted,
        found=found,
        scopes=scopes,
        registered=registered,
        redirect=redirect,
        state=state,
        verifier=pkce.code_verifier,
        url=url,
        key=key,
    )


def _granted(begun: BegunLogin, answer: Mapping[str, str]) -> TokenAnswer:
    """Return the tokens for the code of a redirect."""
    server = begun.found.server
    code = code_of(answer, server)
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": begun.redirect,
        "code_verifier": begun.verifier,
        "resource": begun.found.resource,
    }
    keep = hidden_tokens(code, begun.verifier)
    client = begun.registered or begun.wanted.client
    web, is_bound = Web(begun.wanted.configured), begun.wanted.needs_bound
    tokens = request_token(web, server, client, form, begun.key, is_bound=is_bound)
    del keep
    return tokens


def _with_query(endpoint: str, query: Mapping[str, str]) -> str:
    text = urlencode({name: value for name, value in query.items() if value})
    return f"{endpoint}{'&' if urlsplit(endpoint).query else '?'}{text}"


# On another device (RFC 8628).


@dataclass(frozen=True)
class _DeviceCode:
    device_code: str = field(repr=False)
    user_code: str
    address: str
    expires_in: float
    interval: float


def _by_device(
    request: LoginRequest, web: Web, found: Discovered, scopes: tuple[str, ...]
) -> tuple[TokenAnswer, Client | None]:
    server = found.server
    if not server.device_endpoint:
        raise AuthorizationError(
            f"the authorization server {server.issuer} offers no login by a code on another device",
            is_lasting=True,
        )
    registered = _client(web, request.wanted, server, "", scopes)
    client = registered or request.wanted.client
    asked = {
        **request.wanted.auth.parameters,
        "scope": " ".join(scopes),
        "resource": found.resource,
        "client_id": client.id,
    }
    device = _device_code(web, server, client, asked)
    request.tell(Told(device.address, device.user_code))
    deadline = time.monotonic() + min(request.timeout, device.expires_in)
    form = {
        "grant_type": _DEVICE_GRANT,
        "device_code": device.device_code,
        "resource": found.resource,
    }
    keep = hidden_tokens(device.device_code)
    interval, key = max(1.0, min(device.interval, 60.0)), new_key(found)
    failure = f"nobody has logged in within {request.timeout:g} s"
    while time.monotonic() < deadline:
        time.sleep(interval)
        try:
            web = Web(request.wanted.configured)
            answer = request_token(
                web, server, client, form, key, is_bound=request.wanted.needs_bound
            )
        except AuthorizationError as error:
            if error.code == "slow_down":
                interval += 5
            elif error.is_outage:  # the person may have entered the code meanwhile
                interval, failure = min(2 * interval, 60.0), str(error)
            elif error.code != "authorization_pending":
                raise
        else:
            del keep
            return answer, registered
    raise AuthorizationError(failure)


def _device_code(
    web: Web, server: AuthorizationServer, client: Client, form: Mapping[str, str]
) -> _DeviceCode:
    response = post(web, server, server.device_endpoint, client, form)
    answer = document_of(response) or {}
    device_code, user_code = text_in(answer, "device_code", MAX_CODE), text_in(answer, "user_code")
    if not device_code or not user_code:
        raise AuthorizationError(f"{place_of(server.device_endpoint)} answered without a code")
    # Some authorization servers follow a draft in which it is a URL.
    names = ("verification_uri_complete", "verification_uri", "verification_url")
    address = next((text for name in names if (text := text_in(answer, name))), "")
    if not is_web_address(address) or not user_code.isprintable():
        raise AuthorizationError(
            f"{place_of(server.device_endpoint)} answered with a page that is no web address, or"
            " with a code that cannot be shown"
        )
    return _DeviceCode(
        device_code=device_code,
        user_code=user_code,
        address=address,
        expires_in=_positive(seconds_in(answer, "expires_in"), _CODE_LIFETIME),
        interval=_positive(seconds_in(answer, "interval"), _POLL_INTERVAL),
    )


def _positive(seconds: float | None, default: float) -> float:
    return seconds if seconds is not None and seconds > 0 else default
