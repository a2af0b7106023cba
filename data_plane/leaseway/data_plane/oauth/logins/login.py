"""A person's login: authorization code with PKCE and a redirect, or a device code.

Runs in the command line (`leaseway login`), with a loopback redirect, or in a worker, with the
console's; blocks, and leaves a sealed login for the workers of that machine. A client is
configured, named by its metadata document, or registered (RFC 7591).
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode, urlsplit

from leaseway.data_plane.oauth.challenges import Challenge, challenge_of
from leaseway.data_plane.oauth.errors import AuthorizationError
from leaseway.data_plane.oauth.logins.clients import (
    DEVICE,
    DEVICE_GRANT,
    OFFLINE_ACCESS,
    LoginClient,
    PlannedLogin,
    keep,
    offered,
    refuses_offline,
)
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
    post,
    request_token,
)
from leaseway.data_plane.oauth.sealed import (
    ADDED,
    LOGIN_LOCK,
    client_of,
    described_login,
    server_of,
    with_key,
)
from leaseway.data_plane.oauth.web import (
    Web,
    document_of,
    is_web_address,
    place_of,
    seconds_in,
    text_in,
)
from leaseway.spec.auth import Auth
from leaseway.vault.clients import RegisteredClient
from leaseway.vault.logins import Login, LoginKey, LoginStore
from leaseway.wire.clients.mcp_headers import METHOD_HEADER, VERSION_HEADER
from leaseway.wire.messages.mcp import HANDSHAKE_VERSIONS, MODERN_VERSIONS

_CODE_LIFETIME: Final = 600.0
_POLL_INTERVAL: Final = 5.0
"""Seconds of a device code, unless the authorization server says others (RFC 8628)."""
_INITIALIZE: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": HANDSHAKE_VERSIONS[-1],
        "capabilities": {},
        "clientInfo": {"name": "leaseway", "version": "1"},
    },
}
_PREFIX: Final = "io.modelcontextprotocol/"
_DISCOVER: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "server/discover",
    "params": {
        "_meta": {
            f"{_PREFIX}protocolVersion": MODERN_VERSIONS[-1],
            f"{_PREFIX}clientInfo": {"name": "leaseway", "version": "1"},
            f"{_PREFIX}clientCapabilities": {},
        }
    },
}
_MODERN: Final = {VERSION_HEADER: MODERN_VERSIONS[-1], METHOD_HEADER: "server/discover"}
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
    wanted, auth = request.wanted, request.wanted.auth
    web = Web(wanted.configured)
    found, scopes = _discovered(web, wanted, store)
    kind = DEVICE if request.by_device else f"{auth.redirect_uri} {auth.redirect_port}"
    planned = PlannedLogin(
        wanted=wanted, server=found.server, kind=kind, scopes=scopes, store=store.clients
    )
    kept = planned.kept(request.now())
    ask = _by_device if request.by_device else _by_browser
    try:
        return ask(request, web, found, planned, kept, store)
    except _AgainError:
        planned = replace(planned, scopes=offered(wanted, planned.server, planned.scopes))
        return ask(request, Web(wanted.configured), found, planned, None, store)


class _AgainError(AuthorizationError):
    """The kept client of a login, or a scope that is offered, was refused: others may help."""


@contextlib.contextmanager
def _forgetting(client: LoginClient, planned: PlannedLogin) -> Iterator[None]:
    """Forget the client of a login, or a scope, that is refused meanwhile."""
    try:
        yield
    except AuthorizationError as error:
        if client.forget_refused(error, planned.store) or refuses_offline(planned, client, error):
            raise _AgainError(f"{error}; open the new address that the command shows") from error
        raise


def _discovered(web: Web, wanted: Wanted, store: LoginStore) -> tuple[Discovered, tuple[str, ...]]:
    """Return the authorization server, and the scopes to request.

    Those that calls have needed beside the named ones are requested again, others of earlier logins
    are not: the server may not know them any more, or the operator not want them.
    """
    challenge = _challenge(web, wanted)
    found = discover(web, wanted.web_url, wanted.auth, challenge)
    named = scopes_of(wanted.auth, Attempt(challenge), found)
    scopes = dict.fromkeys((*named, *_added(store, wanted.login)))
    return found, offered(wanted, found.server, tuple(scopes))


def _added(store: LoginStore, key: LoginKey) -> Sequence[str]:
    """Return the scopes that calls have needed beside those that the server names."""
    before = store.read(key)
    return () if before is None else before.metadata.get(ADDED) or ()


def _seal(
    planned: PlannedLogin,
    found: Discovered,
    answer: TokenAnswer,
    client: LoginClient,
    store: LoginStore,
    now: float,
) -> tuple[Login, bool]:
    scopes = planned.scopes
    login = Login(
        planned.wanted.login,
        scope=answer.scope or " ".join(scopes),
        access_token=answer.access_token,
        obtained_at=now,
        expires_at=None if answer.lifetime is None else now + answer.lifetime,
        refresh_token=answer.refresh_token,
        granted_at=now,
        metadata=with_key({ADDED: list(_added(store, planned.wanted.login))}, answer.key),
    )
    login = described_login(login, found.server, found.resource, client.own)
    # A worker that renews the previous login would otherwise write it again afterwards.
    with store.exclusive(login.key, LOGIN_LOCK):
        is_new_key = store.write(login)
    keep(client, store.clients, planned.subject)
    return login, is_new_key


def revoke(login: Login, configured: Client, addresses: Sequence[str] = ()) -> str | None:
    """Revoke the tokens of a login at its authorization server; return why not, or None.

    Args:
        login: The login.
        configured: The configured client, for logins without one of their own.
        addresses: What the server's entry now names, such as where tokens are revoked.
    """
    server = server_of(login)
    token = login.refresh_token or login.access_token
    if not token:
        return None
    if not server.revocation_endpoint:
        return "its authorization server offers no revocation; the tokens end when they expire"
    key = login.key  # the login's issuer may be what the server has named
    web = Web([url for url in (key.url, key.issuer, key.configured_at, *addresses) if url])
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


# In a browser of this machine.


def _by_browser(
    request: LoginRequest,
    web: Web,
    found: Discovered,
    planned: PlannedLogin,
    kept: RegisteredClient | None,
    store: LoginStore,
) -> tuple[Login, bool]:
    def reject(fault: str) -> None:
        request.tell(Told(fault=fault))

    _check_page(found.server)
    with _redirect(request.wanted.auth, kept) as redirect:
        client = planned.choose(web, redirect.url, kept)
        with _forgetting(client, planned):
            begun = _begun(web, planned, found, redirect.url, redirect.state, client)
        request.tell(Told(begun.url))
        answer = redirect.wait(request.timeout, request.pasted, reject)
        with _forgetting(client, planned):
            tokens = _granted(begun, answer)
        return _seal(planned, found, tokens, client, store, request.now())


def _check_page(server: AuthorizationServer) -> None:
    """Raise an `AuthorizationError` if an authorization server has no page for logins."""
    if not server.authorization_endpoint:
        raise AuthorizationError(
            f"the authorization server {server.issuer} names no authorization endpoint",
            is_lasting=True,
        )


def _redirect(auth: Auth, kept: RegisteredClient | None) -> Redirect:
    """Return where the browser returns to: if any port will do, the one that is registered."""
    if kept is not None and not auth.redirect_port:
        with contextlib.suppress(AuthorizationError, ValueError):  # the port is in use
            return Redirect(auth.redirect_uri, urlsplit(kept.redirect).port or 0)
    return Redirect(auth.redirect_uri, auth.redirect_port)


@dataclass(frozen=True)
class BegunLogin:
    """A login whose person is at the authorization server.

    Attributes:
        planned: Whose it is, and what it requests.
        client: The client.
        redirect: Where the person's browser returns to.
        state: What the redirect must contain.
        verifier: The secret of PKCE, which only the one that began the login has.
        url: The address to open.
        key: The key that the tokens are to be bound to, or None.
    """

    planned: PlannedLogin
    found: Discovered
    client: LoginClient
    redirect: str
    state: str
    verifier: str = field(repr=False)
    url: str
    key: ProofKey | None = field(default=None, repr=False)

    @property
    def wanted(self) -> Wanted:
        """The server and the subject."""
        return self.planned.wanted


def begin_login(wanted: Wanted, store: LoginStore, redirect: str) -> BegunLogin:
    """Begin a login whose redirect goes to another program, which passes it to `finish_login`.

    Raises:
        AuthorizationError: It failed.
        VaultError: The previous login cannot be read.
    """
    web = Web(wanted.configured)
    found, scopes = _discovered(web, wanted, store)
    planned = PlannedLogin(
        wanted=wanted, server=found.server, kind=redirect, scopes=scopes, store=store.clients
    )
    _check_page(found.server)
    client, state = (
        planned.choose(web, redirect, planned.kept(time.time())),
        secrets.token_urlsafe(32),
    )
    try:
        with _forgetting(client, planned):
            return _begun(web, planned, found, redirect, state, client)
    except _AgainError:
        planned = replace(planned, scopes=offered(wanted, planned.server, planned.scopes))
        return _begun(web, planned, found, redirect, state, planned.choose(web, redirect, None))


def finish_login(begun: BegunLogin, answer: Mapping[str, str], store: LoginStore) -> Login:
    """Seal a login with the parameters of its redirect, whose state is right.

    Raises:
        AuthorizationError: It failed.
        VaultError: It cannot be sealed.
    """
    try:
        tokens = _granted(begun, answer)
    except AuthorizationError as error:
        if begun.client.forget_refused(error, store.clients):
            error.args = (f"{error}; open its link again, and another client is registered",)
        elif refuses_offline(begun.planned, begun.client, error):
            error.args = (f"{error}; open its link again, and offline_access is not requested",)
        raise
    return _seal(begun.planned, begun.found, tokens, begun.client, store, time.time())[0]


def _begun(
    web: Web,
    planned: PlannedLogin,
    found: Discovered,
    redirect: str,
    state: str,
    client: LoginClient,
) -> BegunLogin:
    from mcp.client.auth.oauth2 import PKCEParameters

    key, scopes = new_key(found), client.allowed(planned.scopes)
    pkce = PKCEParameters.generate()
    query: Mapping[str, str] = {
        "response_type": "code",
        "client_id": client.client.id,
        "redirect_uri": redirect,
        "state": state,
        "code_challenge": pkce.code_challenge,
        "code_challenge_method": "S256",
        "scope": " ".join(scopes),
        "resource": found.resource,
        "dpop_jkt": "" if key is None else key.thumbprint,  # the code is of no use without it
        # Some servers give a refresh token only after an explicit consent.
        "prompt": "consent" if OFFLINE_ACCESS in scopes else "",
        **habits_of(found.server).login,
        **planned.wanted.auth.parameters,
    }
    if found.server.push_endpoint:
        query = _pushed(web, found.server, client.client, query, key)
    url = _with_query(found.server.authorization_endpoint, query)
    return BegunLogin(
        planned=planned,
        found=found,
        client=client,
        redirect=redirect,
        state=state,
        verifier=pkce.code_verifier,
        url=url,
        key=key,
    )


def _pushed(
    web: Web,
    server: AuthorizationServer,
    client: Client,
    query: Mapping[str, str],
    key: ProofKey | None,
) -> Mapping[str, str]:
    """Send the request of a login; return the query that stands for it (RFC 9126)."""
    response = post(web, server, server.push_endpoint, client, query, key)
    reference = text_in(document_of(response) or {}, "request_uri")
    if not reference:
        raise AuthorizationError(f"{place_of(server.push_endpoint)} answered without a request_uri")
    return {"client_id": client.id, "request_uri": reference}


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
    web, is_bound = Web(begun.wanted.configured), begun.wanted.needs_bound
    tokens = request_token(web, server, begun.client.client, form, begun.key, is_bound=is_bound)
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
    request: LoginRequest,
    web: Web,
    found: Discovered,
    planned: PlannedLogin,
    kept: RegisteredClient | None,
    store: LoginStore,
) -> tuple[Login, bool]:
    server = found.server
    if not server.device_endpoint:
        raise AuthorizationError(
            f"the authorization server {server.issuer} offers no login by a code on another device",
            is_lasting=True,
        )
    chosen = planned.choose(web, "", kept)
    with _forgetting(chosen, planned):
        tokens = _by_code(request, web, found, planned, chosen)
    return _seal(planned, found, tokens, chosen, store, request.now())


def _by_code(
    request: LoginRequest,
    web: Web,
    found: Discovered,
    planned: PlannedLogin,
    chosen: LoginClient,
) -> TokenAnswer:
    """Return the tokens for a code that the person enters on another device."""
    server, client = found.server, chosen.client
    asked = {
        **request.wanted.auth.parameters,
        "scope": " ".join(chosen.allowed(planned.scopes)),
        "resource": found.resource,
        "client_id": client.id,
    }
    device = _device_code(web, server, client, asked)
    request.tell(Told(device.address, device.user_code))
    deadline = time.monotonic() + min(request.timeout, device.expires_in)
    form = {
        "grant_type": DEVICE_GRANT,
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
            return answer
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
