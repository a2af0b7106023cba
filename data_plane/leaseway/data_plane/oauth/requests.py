"""Requests to a token endpoint: client authentication, the answer, OAuth's errors."""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import msgspec

from leaseway.data_plane.oauth.errors import (
    AuthorizationError,
    UnexplainedRefusalError,
    described,
)
from leaseway.data_plane.oauth.metadata import AuthorizationServer
from leaseway.data_plane.oauth.proofs import PROOF_HEADER, USE_NONCE, ProofKey, nonce_of
from leaseway.data_plane.oauth.web import (
    Web,
    document_of,
    place_of,
    seconds_in,
    text_in,
    texts_in,
)
from leaseway.spec.auth import ALWAYS, CLIENT_ID, CLIENT_SECRET, PRIVATE_KEY, Auth
from leaseway.vault.logins import LoginKey
from leaseway.wire import bounds
from leaseway.wire.channels.fetching import Response
from leaseway.wire.secrets.redaction import Hidden, hide
from leaseway.wire.secrets.secret_names import secret_forms
from leaseway.wire.timing.retry_after import retry_delay

_ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_ASSERTION_LIFETIME: Final = 120
_MAX_LIFETIME: Final = 365 * 86_400.0
_CLOCK_DIFFERENCE: Final = 30.0
_BASIC: Final = "client_secret_basic"
_BASIC_WITH_ID: Final = "client_secret_basic, and client_id in the form"
"""What the official MCP package wants; others refuse a client that is named twice."""
_BASIC_AS_IT_IS: Final = "client_secret_basic, without an encoding"
"""What authorization servers want that do not decode a secret as RFC 6749, section 2.3.1, says."""
_SIGNED: Final = "private_key_jwt"
_SIGNED_FOR_ENDPOINT: Final = "private_key_jwt, for the token endpoint"
"""What authorization servers want that follow RFC 7523 as it was, and refuse their issuer as the
audience. The issuer comes first: others accept only that (draft-ietf-oauth-rfc7523bis)."""
_OF_SECRETS: Final = (_BASIC, "client_secret_post")
"""How a secret is sent; the first if an authorization server does not say (RFC 8414, section 2)."""
_LIKE_BASIC: Final = (_BASIC_WITH_ID, _BASIC_AS_IT_IS)
INVALID_CLIENT: Final = "invalid_client"
OF_CLIENT: Final = frozenset({INVALID_CLIENT, "unauthorized_client"})
"""Codes of an authorization server that does not accept a client."""
_MAX_ACCEPTED: Final = 1_024
_accepted: Final[dict[tuple[str, str], str]] = {}
"""How a client's secret was accepted where the likeliest way was not, by endpoint and client: some
authorization servers lock clients that are refused time and again."""
_REFUSALS: Final = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED)
"""The statuses of refusals (RFC 6749, section 5.2), which some servers send without a code."""
_NO_BEARERS: Final = frozenset({"mac", "n_a", "pop"})
"""The types of tokens that a server does not take as bearer tokens. Any other word is an
authorization server's own for one that it does: Slack's are `user` and `bot`."""
_TEMPORARY: Final = frozenset({"temporarily_unavailable", "server_error", "slow_down"})
_RSA_ALGORITHMS: Final = ("RS256", "PS256")
_EC_ALGORITHMS: Final[Mapping[str, str]] = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_ED_ALGORITHMS: Final = ("EdDSA", "Ed25519")
"""Two names of one signature. Most authorization servers know only the first, though RFC 9864
deprecates it."""


@dataclass(frozen=True)
class Client:
    """A client at an authorization server. Its representation has no credential.

    Attributes:
        id: The client id.
        secret: Its secret, or empty.
        private_key: Its private key (PEM or JWK), or empty.
        algorithm: How it signs; empty for the key's usual one.
        key_id: The `kid` of the key, or empty.
        auth_method: How it authenticates (RFC 7591), as its registration says; empty for any way
            that the authorization server accepts.
    """

    id: str
    secret: str = field(default="", repr=False)
    private_key: str = field(default="", repr=False)
    algorithm: str = ""
    key_id: str = ""
    auth_method: str = ""

    @classmethod
    def of(cls, auth: Auth, values: Mapping[str, str]) -> Client:
        """Return the configured client, with its resolved values."""
        return cls(
            values.get(CLIENT_ID, ""),
            values.get(CLIENT_SECRET, ""),
            values.get(PRIVATE_KEY, ""),
            auth.algorithm,
            auth.key_id,
        )


@dataclass(frozen=True)
class TokenAnswer:
    """The answer of a token endpoint. Its tokens are redacted while it exists.

    Attributes:
        lifetime: Seconds from its issue, or None if the server does not say.
        age: Seconds since its issue, for one that another worker has obtained.
        scope: The granted scopes if the server names them, or empty.
        refresh_token: Or empty.
        login: The person's login that it is from, or None.
        granted_at: When that person logged in, in seconds since 1970.
        key: The key that it is bound to, or None.
    """

    access_token: str = field(repr=False)
    lifetime: float | None = None
    scope: str = ""
    refresh_token: str = field(default="", repr=False)
    age: float = 0.0
    login: LoginKey | None = None
    granted_at: float = 0.0
    key: ProofKey | None = field(default=None, repr=False)
    hidden: Hidden | None = field(default=None, repr=False, compare=False)


def hidden_tokens(*tokens: str) -> Hidden:
    """Redact tokens in all texts for as long as the returned object exists."""
    return hide(secret_forms(token for token in tokens if token))


def request_token(
    web: Web,
    server: AuthorizationServer,
    client: Client,
    form: Mapping[str, str],
    key: ProofKey | None = None,
    *,
    is_bound: bool = False,
) -> TokenAnswer:
    """Request a token with a form of any grant.

    Args:
        web: Sends the request.
        server: Issues it.
        client: The client there.
        form: Of the grant.
        key: The key that it shall be bound to, or None.
        is_bound: Whether it must be.

    Raises:
        AuthorizationError: There is none.
    """
    keep = hidden_tokens(key.secret if key is not None else "")
    answer = _answer(server, post(web, server, server.token_endpoint, client, form, key), key)
    del keep
    if is_bound and answer.key is None:
        raise AuthorizationError(
            f"{place_of(server.token_endpoint)} issued a token that is bound to no key; it was not"
            " used, because of dpop in auth",
            is_lasting=True,
        )
    return answer


def request_assertion(
    web: Web, server: AuthorizationServer, client: Client, form: Mapping[str, str], kind: str
) -> str:
    """Request what is no access token, but an assertion for another authorization server.

    Args:
        web: Sends the request.
        server: Issues it.
        client: The client there.
        form: Of the grant.
        kind: The URI of its type.

    Raises:
        AuthorizationError: There is none.
    """
    answer = _decoded(server, post(web, server, server.token_endpoint, client, form))
    if answer.get("issued_token_type") != kind:
        raise AuthorizationError(
            f"{place_of(server.token_endpoint)} issued a token of another type than {kind}",
            is_lasting=True,
        )
    return str(answer["access_token"])


def post(
    web: Web,
    server: AuthorizationServer,
    endpoint: str,
    client: Client,
    form: Mapping[str, str],
    key: ProofKey | None = None,
) -> Response:
    """Send a form to an endpoint as the client; return the response of success.

    Args:
        web: Sends the request.
        server: Has the endpoint.
        endpoint: Its address.
        client: The client there.
        form: The fields of the request.
        key: The key whose possession it proves, or None.

    Raises:
        AuthorizationError: There is none.
    """
    nonce, (method, *others) = "", _ways(server, endpoint, client)
    failure: AuthorizationError | None = None
    while True:
        fields, headers = _authenticated(server, client, form, method)
        if key is not None:
            headers[PROOF_HEADER] = key.proof("POST", endpoint, nonce=nonce)
        keep = hidden_tokens(fields.get("client_assertion", ""))
        response = web.post_form(endpoint, fields, headers)
        if is_success(response):
            del keep
            if failure is not None:
                _remember(endpoint, client, method)
            return response
        error = refusal(server, response)
        given = nonce_of(response.headers)
        if key is not None and given and not nonce and error.code == USE_NONCE:
            nonce = given  # once: it has just been issued
        elif method == _BASIC and "client_id" in error.args[0]:
            failure, method = failure or error, _BASIC_WITH_ID
        elif others and _may_be_of_way(error, response, others[0]):
            # Nothing of the form was looked at, so that a code or a refresh token is not spent.
            failure, method = error, others.pop(0)
        elif failure is None or _may_be_of_way(error, response):
            raise failure or error
        elif method == _BASIC_AS_IT_IS and error.code in OF_CLIENT:
            raise failure  # it has decoded the secret, and so read another one
        else:
            if error.is_lasting and error.code not in OF_CLIENT:  # of the request: it was accepted
                _remember(endpoint, client, method)
            raise error


def _may_be_of_way(error: AuthorizationError, response: Response, other: str = "") -> bool:
    """Return whether a refusal may be about the way in which a client authenticates.

    An authorization server that looks for the client in the form only finds none in a header: some
    call that an invalid request, or say nothing but 401. One that found none is not helped by
    another encoding (`other`).
    """
    unsaid = response.status == HTTPStatus.UNAUTHORIZED and not error.code
    is_unseen = error.code == "invalid_request" and other != _BASIC_AS_IT_IS
    return unsaid or is_unseen or error.code == INVALID_CLIENT


def is_success(response: Response) -> bool:
    """Return whether a response has what was requested: some servers create tokens (201)."""
    return 200 <= response.status < 300


def _remember(endpoint: str, client: Client, method: str) -> None:
    if len(_accepted) >= _MAX_ACCEPTED:
        _accepted.clear()
    _accepted[endpoint, client.id] = method


def _ways(server: AuthorizationServer, endpoint: str, client: Client) -> Sequence[str]:
    """Return how a client may authenticate, the likeliest first.

    Authorization servers that offer two ways of sending a secret often accept only the one that a
    client is registered for, and a configured client does not say which one that is.
    """
    accepted = _accepted.get((endpoint, client.id))
    if client.private_key:
        # Only whoever has a statement's audience may get it: no other server could use it there.
        is_theirs = server.issuer and endpoint == server.token_endpoint
        signed = (_SIGNED, _SIGNED_FOR_ENDPOINT) if is_theirs else (_SIGNED,)
        return signed[::-1] if accepted == _SIGNED_FOR_ENDPOINT else signed
    if not client.secret or client.auth_method == "none":
        return ("none",)
    told = [way for way in _OF_SECRETS if way in server.client_auth_methods]
    offered: list[str] = [*(told or _OF_SECRETS)]
    likeliest = (accepted, client.auth_method)
    known = [way for way in likeliest if way in (*_OF_SECRETS, *_LIKE_BASIC)]
    if _BASIC in offered and _encoded(client) != f"{client.id}:{client.secret}":
        offered.append(_BASIC_AS_IT_IS)
    ways = dict.fromkeys((*known, *offered))
    if _BASIC_WITH_ID in ways:
        ways.pop(_BASIC, None)
    return tuple(ways)


def _authenticated(
    server: AuthorizationServer, client: Client, form: Mapping[str, str], method: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the form and headers with the client's authentication."""
    fields = {name: value for name, value in form.items() if value}
    match method:
        case _ if method in (_SIGNED, _SIGNED_FOR_ENDPOINT):
            issuer = server.issuer if method == _SIGNED else ""
            fields |= {
                "client_id": client.id,
                "client_assertion_type": _ASSERTION_TYPE,
                "client_assertion": _assertion(
                    client, issuer or server.token_endpoint, server.assertion_algorithms
                ),
            }
        case _ if method in (_BASIC, *_LIKE_BASIC):
            if method == _BASIC_WITH_ID:
                fields["client_id"] = client.id
            is_encoded = method != _BASIC_AS_IT_IS
            pair = _encoded(client) if is_encoded else f"{client.id}:{client.secret}"
            return fields, {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        case "client_secret_post":
            fields |= {"client_id": client.id, "client_secret": client.secret}
        case _ if client.id:
            fields["client_id"] = client.id
    return fields, {}


def _encoded(client: Client) -> str:
    """Return what HTTP Basic says; a space is `%20`, which every decoder knows, unlike `+`."""
    return f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"


def _assertion(client: Client, audience: str, accepted: Sequence[str]) -> str:
    """Return a signed statement of the client's identity (RFC 7523).

    Args:
        client: The client.
        audience: For whom the statement is.
        accepted: The signatures that the authorization server names, or none.
    """
    from joserfc import jwt
    from joserfc.errors import JoseError

    from leaseway.identity.signatures import Signatures

    now = int(time.time())
    claims = {
        "iss": client.id,
        "sub": client.id,
        "aud": audience,
        "iat": now,
        "exp": now + _ASSERTION_LIFETIME,
        "jti": secrets.token_urlsafe(16),
    }
    try:
        key, fitting = _private_key(client.private_key)
        usual = next((name for name in fitting if name in accepted), fitting[0])
        algorithm = client.algorithm or usual
        header = {"alg": algorithm, "typ": "JWT"}
        if client.key_id:
            header["kid"] = client.key_id
        return jwt.encode(header, claims, key, registry=Signatures([algorithm]))
    except (JoseError, ValueError, TypeError, KeyError):
        raise AuthorizationError(
            "private_key cannot sign: it must be a private key as PEM or JWK"
            + (f", for {client.algorithm}" if client.algorithm else ""),
            is_lasting=True,
        ) from None


def _private_key(text: str) -> tuple[Any, Sequence[str]]:
    """Return a private key, and the algorithms that it can sign with, the usual one first."""
    from joserfc.jwk import ECKey, OKPKey, RSAKey, import_key

    if text.lstrip().startswith("{"):
        key = import_key(msgspec.json.decode(text))
    else:
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        loaded = load_pem_private_key(text.encode(), None)
        match loaded:
            case rsa.RSAPrivateKey():
                key = RSAKey.import_key(text)
            case ec.EllipticCurvePrivateKey():
                key = ECKey.import_key(text)
            case ed25519.Ed25519PrivateKey():
                key = OKPKey.import_key(text)
            case _:
                raise ValueError
    if not key.is_private:
        raise ValueError
    match key:
        case RSAKey():
            return key, _RSA_ALGORITHMS
        case ECKey():
            return key, (_EC_ALGORITHMS[key.curve_name],)
        case OKPKey():
            return key, _ED_ALGORITHMS
    raise ValueError


def _decoded(server: AuthorizationServer, response: Response) -> dict[str, Any]:
    """Return an answer whose token may be sent.

    Raises:
        AuthorizationError: It has none.
    """
    place = place_of(server.token_endpoint)
    answer = document_of(response) or {}
    token = answer.get("access_token")
    of_user = answer.get("authed_user")  # Slack's, if a person's scopes alone were requested
    if token is None and isinstance(of_user, dict):
        answer, token = of_user, of_user.get("access_token")
    if token is None and text_in(answer, "error"):  # some servers refuse with the status of success
        raise refusal(server, response)
    if not isinstance(token, str):
        raise AuthorizationError(f"{place} answered without a token")
    if not is_token(token):
        raise AuthorizationError(f"{place} answered with a token that no header may contain")
    return answer


def is_token(text: str) -> bool:
    """Return whether a text can be a token: a header may contain it."""
    return 0 < len(text) <= bounds.MAX_OAUTH_TOKEN and all(
        "!" <= character <= "~" for character in text
    )


def _answer(server: AuthorizationServer, response: Response, key: ProofKey | None) -> TokenAnswer:
    place, answer = place_of(server.token_endpoint), _decoded(server, response)
    said = text_in(answer, "token_type").strip()
    kind = said.lower() or "bearer"  # some servers do not say it
    if kind in _NO_BEARERS:
        raise AuthorizationError(
            f"{place} issues tokens of the type {described(said)}, which is not supported; only"
            " bearer and DPoP tokens are",
            is_lasting=True,
        )
    if kind == "dpop" and key is None:
        raise AuthorizationError(
            f"{place} issues tokens that are bound to a key, which were not requested; write"
            f" dpop: {ALWAYS} in auth",
            is_lasting=True,
        )
    bound = key if kind == "dpop" else None
    token = str(answer["access_token"])
    refresh = answer.get("refresh_token")
    refresh = refresh if isinstance(refresh, str) else ""
    if len(refresh) > bounds.MAX_OAUTH_TOKEN:
        raise AuthorizationError(f"{place} answered with a refresh token that is too long")
    return TokenAnswer(
        token,
        _lifetime(seconds_in(answer, "expires_in")),
        # GitHub and Slack write commas between scopes.
        " ".join(texts_in(answer, "scope")).replace(",", " ")[:_MAX_SCOPES],
        refresh,
        key=bound,
        hidden=hidden_tokens(token, refresh, bound.secret if bound is not None else ""),
    )


_MAX_SCOPES: Final = 8_192


def _lifetime(seconds: float | None) -> float | None:
    """Return the lifetime of a token: what is no time says as little as nothing.

    A token that were over when it was issued would be requested again by every call.
    """
    return min(seconds, _MAX_LIFETIME) if seconds is not None and seconds > 0 else None


def refusal(server: AuthorizationServer, response: Response) -> AuthorizationError:
    """Return the error for a response that is none of success."""
    said = document_of(response) or {}
    code = described(text_in(said, "error"))[:64]
    is_temporary = response.status >= 500 or response.status == 429 or code in _TEMPORARY
    description = described(text_in(said, "error_description", _MAX_SCOPES))
    words = f": {description}" if description else ""
    text = (
        f"the authorization server {server.issuer or place_of(server.token_endpoint)} answered"
        f" with {code or f'HTTP status {response.status}'}{words}"
    )
    difference = _clock_difference(response)
    if difference and not is_temporary:
        text += f" (its clock differs from the worker's by {difference:.0f} s)"
    is_unexplained = not code and response.status in _REFUSALS
    return (UnexplainedRefusalError if is_unexplained else AuthorizationError)(
        text,
        code=code,
        is_outage=is_temporary,
        is_lasting=bool(code) and not is_temporary,
        retry_delay=retry_delay(response.headers),
    )


def _clock_difference(response: Response) -> float:
    """Return by how many seconds the server's clock differs, or 0 if that may not matter."""
    try:
        date = parsedate_to_datetime(response.headers.get("date", ""))
        difference = abs(date.timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return difference if difference > _CLOCK_DIFFERENCE else 0.0
