"""Discovery: which authorization server issues tokens for a server (RFC 9728, RFC 8414, OpenID).

The order of the addresses, and how resources are compared, is the MCP package's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from leaseway.data_plane.oauth.challenges import Challenge
from leaseway.data_plane.oauth.errors import AuthorizationError
from leaseway.data_plane.oauth.proofs import choose_algorithm
from leaseway.data_plane.oauth.web import (
    Web,
    document_of,
    is_web_address,
    place_of,
    text_in,
    texts_in,
)
from leaseway.spec.auth import (
    ALWAYS,
    CLIENT_ID,
    ENDPOINTS,
    METADATA_URL,
    NEVER,
    NO_RESOURCE,
    Auth,
)
from leaseway.wire.timing.retry_after import retry_delay

_CLIENT_DOCUMENTS: Final = "client_id_metadata_document_supported"
_PUSH_ENDPOINT: Final = "pushed_authorization_request_endpoint"
_BELOW_PATH: Final = "/.well-known/oauth-authorization-server"
_PLACE: Final = re.compile(
    r"(https?://.+)/\.well-known/(?:oauth-authorization-server|openid-configuration)(/.*)?"
)
_TENANT_GAP: Final = "{tenantid}"
_MAX_ISSUERS: Final = 3
"""Authorization servers of one server that are tried."""


@dataclass(frozen=True)
class AuthorizationServer:
    """The metadata of an authorization server; endpoints that it does not have are empty.

    Attributes:
        push_endpoint: Where the request of a login must be sent before (RFC 9126); empty if it
            need not be.
    """

    issuer: str
    token_endpoint: str
    authorization_endpoint: str = ""
    registration_endpoint: str = ""
    device_endpoint: str = ""
    push_endpoint: str = ""
    revocation_endpoint: str = ""
    client_auth_methods: tuple[str, ...] = ()
    assertion_algorithms: tuple[str, ...] = ()
    grant_types: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    accepts_metadata_documents: bool = False
    returns_issuer: bool = False
    proof_algorithms: tuple[str, ...] = ()

    @property
    def authority(self) -> str:
        """What a client is registered at, and sends its secret to.

        An issuer alone may be what any server says of itself, beside a token endpoint of its own.
        """
        return f"{self.issuer} {self.token_endpoint}"


@dataclass(frozen=True)
class Habits:
    """What an authorization server wants that no metadata say.

    Attributes:
        login: More parameters of its page for logins; an empty one is not sent.
        knows_resource: Whether it accepts resource indicators.
        needs_scopes: Whether a renewal gives the scopes of the login only if it names them.
    """

    login: Mapping[str, str] = field(default_factory=dict)
    knows_resource: bool = True
    needs_scopes: bool = False


_GOOGLE: Final = Habits({"access_type": "offline", "prompt": "consent"})
"""Without these it gives no refresh token; it has no scope `offline_access`."""
_ENTRA: Final = Habits({"prompt": ""}, knows_resource=False, needs_scopes=True)
"""Its scopes name the resource (AADSTS901002, AADSTS9010010). With `prompt=consent` nobody can log
in where only administrators may consent, even if they have (AADSTS90094)."""
_HABITS: Final[Mapping[str, Habits]] = {
    "accounts.google.com": _GOOGLE,
    "login.microsoftonline.com": _ENTRA,
    "login.microsoftonline.us": _ENTRA,
    "login.partner.microsoftonline.cn": _ENTRA,
    "sts.windows.net": _ENTRA,
}


def habits_of(server: AuthorizationServer) -> Habits:
    """Return what an authorization server wants beside the standards, by its host."""
    place = server.issuer if is_web_address(server.issuer) else server.token_endpoint
    host = urlsplit(place).hostname
    return _HABITS.get(host or "", Habits())


@dataclass(frozen=True)
class Discovered:
    """What is known about a server's authorization.

    Attributes:
        resource: The resource indicator; empty if none is sent.
        scopes: Those that the server's metadata names.
        proof: How proofs of possession are signed; empty for tokens that are bound to no key.
    """

    server: AuthorizationServer
    resource: str
    scopes: tuple[str, ...] = ()
    proof: str = ""


def discover(web: Web, url: str, auth: Auth, challenge: Challenge) -> Discovered:
    """Find the authorization server of a server.

    Args:
        web: Sends the requests.
        url: The server's address; `http` or `https`.
        auth: What the operator configured.
        challenge: What the server said.

    Raises:
        AuthorizationError: It cannot be found.
    """
    from mcp.shared.auth_utils import resource_url_from_server_url

    protected = None if auth.names_server else _protected_resource(web, url, challenge)
    if protected is None:
        server = _configured_server(web, auth, url)
        proof = _proof_algorithm(auth, challenge, {}, server)
        resource = _indicator(auth, server, resource_url_from_server_url(url))
        return Discovered(server, resource, proof=proof)
    issuers = _issuers_in(protected)
    resource = text_in(protected, "resource")
    _check_resource(url, protected)
    none_named = AuthorizationError(
        "its metadata names no authorization server; write issuer in auth", is_lasting=True
    )
    if not issuers and protected.get("authorization_servers") is not None:
        raise none_named
    server = _first_server(web, _usable(issuers, auth), url)
    if not issuers and not server.issuer:  # it is none itself either
        raise none_named
    return Discovered(
        server,
        _indicator(auth, server, resource),
        texts_in(protected, "scopes_supported"),
        _proof_algorithm(auth, challenge, protected, server),
    )


def _indicator(auth: Auth, server: AuthorizationServer, resource: str) -> str:
    """Return the resource indicator to send: the configured one, or else that of the server."""
    if auth.resource:
        return "" if auth.resource == NO_RESOURCE else auth.resource
    return resource if habits_of(server).knows_resource else ""


def _usable(issuers: Sequence[str], auth: Auth) -> Sequence[str]:
    """Return the issuers that may be used, the preferred one first; an empty text for none named.

    The client chooses among several (RFC 9728, section 2). A client that the operator has
    registered is known to one of them: its secret is for the first.
    """
    return issuers[: 1 if CLIENT_ID in auth.values else _MAX_ISSUERS] or ("",)


def _first_server(web: Web, issuers: Sequence[str], url: str) -> AuthorizationServer:
    """Return the first authorization server whose metadata can be used.

    Raises:
        AuthorizationError: There is none; why the first one cannot be used.
    """
    failure: AuthorizationError | None = None
    for issuer in issuers:
        try:
            return authorization_server(web, issuer, url)
        except AuthorizationError as error:
            failure = failure or error
    assert failure is not None  # there is at least one
    raise failure


def _proof_algorithm(
    auth: Auth, challenge: Challenge, protected: Mapping[str, Any], server: AuthorizationServer
) -> str:
    """Return how a token's proofs of possession are signed; empty if it needs none.

    What both can do decides nothing alone: many authorization servers can bind tokens to keys, and
    write that into the metadata of servers that refuse such tokens.

    Raises:
        AuthorizationError: It needs them, and nothing that all support is known here.
    """
    if auth.dpop == NEVER:
        return ""
    is_needed = (
        auth.dpop == ALWAYS
        or challenge.asks_only_proof
        or protected.get("dpop_bound_access_tokens_required") is True
    )
    is_offered = challenge.asks_proof and server.proof_algorithms
    if not is_needed and not is_offered:
        return ""
    accepted = texts_in(protected, "dpop_signing_alg_values_supported")
    found = choose_algorithm(server.proof_algorithms, accepted, challenge.algorithms)
    if not found and is_needed:
        raise AuthorizationError(
            "its tokens must be bound to a key (DPoP), by a signature that is not supported",
            is_lasting=True,
        )
    return found


def _issuers_in(protected: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the authorization servers that metadata of a resource name, if they are addresses."""
    return tuple(filter(is_web_address, texts_in(protected, "authorization_servers")))


def has_left(web: Web, url: str, challenge: Challenge, issuer: str) -> bool:
    """Return whether a server certainly names other authorization servers than an issuer."""
    try:
        protected = _protected_resource(web, url, challenge)
    except AuthorizationError:
        return False
    if protected is None or not _is_about(url, protected):  # the right ones may be unreachable
        return False
    issuers = _issuers_in(protected)
    return bool(issuers) and not any(_may_mean(named, issuer) for named in issuers)


def is_same_issuer(one: str, other: str) -> bool:
    """Return whether two texts name one issuer.

    Its metadata are at the same addresses with and without a slash at its end (RFC 8414, section
    3.1) or the port of its scheme, and some servers name that address instead, so that nobody else
    can answer for it; many servers and issuers do not write the same.
    """
    return one == other or _place_of_issuer(one) == _place_of_issuer(other)


def _may_mean(named: str, issuer: str) -> bool:
    """Return whether an issuer may be the one that a server names by another address.

    Some hosts have an address for each of their customers, and one issuer for all: what is above
    that address (Atlassian), or it with a gap (Microsoft Entra).
    """
    place, above = _place_of_issuer(named), _place_of_issuer(issuer)
    is_below = is_web_address(above) and place.startswith(f"{above}/")
    return place == above or is_below or fills_gap(named, issuer)


def fills_gap(name: str, issuer: str) -> bool:
    """Return whether a name is that of an issuer whose path has a gap for a tenant."""
    before, gap, after = issuer.partition(_TENANT_GAP)
    if not gap or not is_web_address(before) or not urlsplit(before).path:
        return False
    return re.fullmatch(f"{re.escape(before)}[A-Za-z0-9.-]+{re.escape(after)}", name) is not None


def _place_of_issuer(issuer: str) -> str:
    from yarl import URL

    issuer = _without_place(issuer)
    return (str(URL(issuer)) if is_web_address(issuer) else issuer).removesuffix("/")


def _check_resource(url: str, protected: Mapping[str, Any]) -> None:
    """Refuse metadata of another server: its tokens would be sent to this one."""
    resource = text_in(protected, "resource")
    if not _is_about(url, protected):
        raise AuthorizationError(
            f"its metadata is about another resource, {place_of(resource) if resource else 'none'},"
            f" and not about {place_of(url)}; nothing was requested for it",
            is_lasting=True,
        )


def _is_of(issuer: str, document: Mapping[str, Any]) -> bool:
    return not issuer or is_same_issuer(text_in(document, "issuer"), issuer)


def _describes(issuer: str, document: Mapping[str, Any]) -> bool:
    """Return whether a document is the metadata of an issuer, not what any address answers with."""
    return _is_of(issuer, document) and bool(text_in(document, "token_endpoint"))


def _is_of_host(named: str, place: str, document: Mapping[str, Any]) -> bool:
    """Return whether a document is the metadata of a host's one issuer for many addresses.

    It names itself, so its tokens must be from that host, too. A customer may be free to write
    below its address, and must not get what is meant for the host or for another customer: a
    document of what is above comes from a place of the host's own (RFC 8414 section 3.1), and where
    the issuer has a gap, all is below what fills it.
    """
    from yarl import URL

    issuer, tokens = text_in(document, "issuer"), text_in(document, "token_endpoint")
    if not _may_mean(named, issuer) or not is_web_address(tokens):
        return False
    if fills_gap(named, issuer):
        before = issuer.partition(_TENANT_GAP)[0]
        own = f"{before}{named.removeprefix(before).partition('/')[0]}/"
        used = (tokens, text_in(document, "authorization_endpoint") or tokens)
        return all(str(URL(endpoint)).startswith(own) for endpoint in used)
    is_own_place = urlsplit(place).path.startswith("/.well-known/")
    return is_own_place and URL(tokens).origin() == URL(issuer).origin()


def _is_about(url: str, protected: Mapping[str, Any]) -> bool:
    """Return whether metadata of a resource are those of a server."""
    from mcp.shared.auth_utils import check_resource_allowed
    from yarl import URL

    resource = text_in(protected, "resource")
    # As it is usually written: without the port of its scheme.
    return is_web_address(resource) and check_resource_allowed(str(URL(url)), str(URL(resource)))


def _protected_resource(web: Web, url: str, challenge: Challenge) -> dict[str, Any] | None:
    """Return the metadata of a protected resource, or None if it has none."""
    from mcp.client.auth.utils import build_protected_resource_metadata_discovery_urls

    try:
        named = challenge.resource_metadata and urljoin(url, challenge.resource_metadata)
    except ValueError:  # no address: the metadata may be where it usually is
        named = ""
    places = build_protected_resource_metadata_discovery_urls(named or None, url)
    named_by = "the server" if named else ""
    found = _first_document(
        web,
        dict.fromkeys(places),
        named_by=named_by,
        allows_pages=not named,
        members=("resource", "authorization_servers"),
        is_right=partial(_is_about, url),
    )
    return None if found is None else found[1]


def _configured_server(web: Web, auth: Auth, url: str) -> AuthorizationServer:
    """Return the authorization server that the operator says, or else that of the origin of `url`.

    Raises:
        AuthorizationError: Its metadata cannot be used.
    """
    if auth.token_endpoint:
        written = {name: getattr(auth, name) for name in ENDPOINTS}
        return _server({**written, _CLIENT_DOCUMENTS: bool(auth.client_metadata_url)}, auth.issuer)
    if not auth.auth_server_metadata_url:
        return authorization_server(web, auth.issuer, url)
    place = auth.auth_server_metadata_url
    answer = _first_document(web, {place: None}, named_by="auth", allows_pages=False)
    assert answer is not None  # it must exist
    document = answer[1]
    found = text_in(document, "issuer")
    if auth.issuer and found and not is_same_issuer(found, auth.issuer):
        raise AuthorizationError(
            f"the metadata at {place_of(place)} are of another issuer, {place_of(found)}, than"
            f" issuer in auth, {place_of(auth.issuer)}; nothing was sent to it",
            is_lasting=True,
        )
    if not found and not auth.issuer:
        raise AuthorizationError(
            f"the metadata at {place_of(place)} name no issuer; write issuer in auth",
            is_lasting=True,
        )
    return _server(document, found or auth.issuer)


def authorization_server(web: Web, issuer: str, url: str) -> AuthorizationServer:
    """Return the metadata of an issuer, or of the server's own origin, as before MCP 2025-06-18.

    Raises:
        AuthorizationError: There is none, or it is of another issuer.
    """
    from mcp.client.auth.utils import build_oauth_authorization_server_metadata_discovery_urls
    from yarl import URL

    issuer = _without_place(issuer)
    if issuer:  # below its path, where it is the only part of its host that it can serve
        places = build_oauth_authorization_server_metadata_discovery_urls(issuer, url)
        places.append(f"{issuer.removesuffix('/')}{_BELOW_PATH}")
    else:  # a host may have several servers, each with an authorization server of its own
        own = build_oauth_authorization_server_metadata_discovery_urls(url, url)
        origin = str(URL(url).origin())
        places = [own[0], *build_oauth_authorization_server_metadata_discovery_urls(origin, url)]
    answer = _first_document(
        web,
        dict.fromkeys(places),
        allows_pages=not issuer,
        members=("issuer", "token_endpoint"),
        is_right=partial(_describes, issuer),
    )
    if answer is None:
        if issuer:
            raise AuthorizationError(
                f"the authorization server {place_of(issuer)} has no metadata where they are looked"
                f" for; write {METADATA_URL}, or its endpoints, in auth",
                is_lasting=True,
            )
        return _by_convention(url)
    place, document = answer
    found = text_in(document, "issuer")
    if not _is_of(issuer, document) and not _is_of_host(issuer, place, document):
        raise AuthorizationError(
            f"the metadata of the authorization server {place_of(issuer)} is of another issuer,"
            f" {place_of(found)}; nothing was sent to it; if that is right, write"
            f" {METADATA_URL}: {place_of(place)} in auth",
            is_lasting=True,
        )
    return _server(document, found, issuer or url)


def _without_place(issuer: str) -> str:
    """Return an issuer that is named by the address of its metadata, which some servers do."""
    found = _PLACE.fullmatch(issuer)
    return issuer if found is None else f"{found[1]}{found[2] or ''}"


def _server(document: Mapping[str, Any], issuer: str, needed_of: str = "") -> AuthorizationServer:
    """Return the authorization server that some metadata describe.

    Args:
        document: The metadata.
        issuer: Its issuer; may be empty.
        needed_of: The server that must have a token endpoint, for messages; by default the issuer.

    Raises:
        AuthorizationError: They cannot be used.
    """
    must_push = document.get("require_pushed_authorization_requests") is True
    return AuthorizationServer(
        issuer=issuer,
        token_endpoint=_endpoint(document, "token_endpoint", needed_of or issuer),
        authorization_endpoint=_endpoint(document, "authorization_endpoint"),
        registration_endpoint=_endpoint(document, "registration_endpoint"),
        device_endpoint=_endpoint(document, "device_authorization_endpoint"),
        push_endpoint=_endpoint(document, _PUSH_ENDPOINT) if must_push else "",
        revocation_endpoint=_endpoint(document, "revocation_endpoint"),
        client_auth_methods=texts_in(document, "token_endpoint_auth_methods_supported"),
        assertion_algorithms=texts_in(document, "token_endpoint_auth_signing_alg_values_supported"),
        grant_types=texts_in(document, "grant_types_supported"),
        scopes=texts_in(document, "scopes_supported"),
        accepts_metadata_documents=document.get(_CLIENT_DOCUMENTS) is True,
        proof_algorithms=texts_in(document, "dpop_signing_alg_values_supported"),
        returns_issuer=document.get("authorization_response_iss_parameter_supported") is True,
    )


def _endpoint(document: Mapping[str, Any], name: str, needed_of: str = "") -> str:
    """Return an endpoint of an authorization server; empty if it has none.

    Browsers and workers open it, so that it must be a web address.

    Args:
        document: The metadata.
        name: The member.
        needed_of: The server that must have it, or empty.

    Raises:
        AuthorizationError: It is no web address, or needed and missing.
    """
    address = text_in(document, name)
    if address and not is_web_address(address):
        raise AuthorizationError(
            f"{name} in the metadata of its authorization server is no web address",
            is_lasting=True,
        )
    if needed_of and not address:
        raise AuthorizationError(
            f"the authorization server {place_of(needed_of)} names no {name.replace('_', ' ')}",
            is_lasting=True,
        )
    return address


def _by_convention(url: str) -> AuthorizationServer:
    """Return the endpoints that MCP 2025-03-26 assumes if there is no metadata at all."""
    from yarl import URL

    origin = str(URL(url).origin())
    return AuthorizationServer(
        issuer="",
        token_endpoint=f"{origin}/token",
        authorization_endpoint=f"{origin}/authorize",
        registration_endpoint=f"{origin}/register",
    )


def _first_document(
    web: Web,
    places: Mapping[str, None],
    *,
    named_by: str = "",
    allows_pages: bool,
    members: Sequence[str] = (),
    is_right: Callable[[Mapping[str, Any]], bool] = bool,
) -> tuple[str, dict[str, Any]] | None:
    """Return the first of some documents that is the right one, or else the first, or None.

    It comes with its place.

    Args:
        web: Sends the requests.
        places: Where it may be.
        named_by: Who has named the places, so that it must exist; empty for nobody.
        allows_pages: Whether a response that is no document means that there is none, because many
            servers have a page for every address; else something is wrong for the moment.
        members: What a document has, one of them at least, unless somebody has named its place:
            some servers have a document for every address.
        is_right: Whether a document is the one that is looked for: where issuers share a host, the
            first place of one of them may have the metadata of another.

    Raises:
        AuthorizationError: None is the right one, and one should or may be: a response was missing.
    """
    failure: AuthorizationError | None = None
    first: tuple[str, dict[str, Any]] | None = None
    busy: set[str] = set()  # hosts that ask not to be asked
    for place in places:
        host = urlsplit(place).netloc
        if host in busy:
            continue
        try:
            response = web.get(place)
        except AuthorizationError as error:
            failure = failure or error
            continue
        if response.status == 200:
            document = document_of(response)
            if document is not None and is_right(document):
                return place, document
            if document is not None:
                if named_by or not members or not document.keys().isdisjoint(members):
                    first = first or (place, document)
            elif not allows_pages:
                failure = failure or AuthorizationError(
                    f"{place_of(place)} did not answer with a JSON document", url=place
                )
        elif named_by or response.status >= 500 or response.status == 429:
            named = f", which {named_by} names," if named_by else ""
            failure = failure or AuthorizationError(
                f"{place_of(place)}{named} answered with HTTP status {response.status}",
                url=place,
                is_outage=response.status >= 500 or response.status == 429,
                retry_delay=retry_delay(response.headers),
            )
            if response.status == 429:
                busy.add(host)
    if failure is not None and (first is None or failure.is_outage):
        raise failure  # the right one may be where a response was missing
    return first
