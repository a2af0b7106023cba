"""One attempt to obtain a token, and the token in use that it gives.

An attempt is discovery, then a request to the token endpoint. It blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, assert_never
from urllib.parse import urlsplit, urlunsplit

from leaseway.data_plane.core.resolved_values import UnresolvedValue
from leaseway.data_plane.oauth.challenges import Challenge
from leaseway.data_plane.oauth.errors import AuthorizationError
from leaseway.data_plane.oauth.metadata import Discovered, discover
from leaseway.data_plane.oauth.proofs import PROOF_HEADER, ProofKey, nonce_of
from leaseway.data_plane.oauth.requests import (
    Client,
    TokenAnswer,
    hidden_tokens,
    is_token,
    request_token,
)
from leaseway.data_plane.oauth.web import Web
from leaseway.spec.auth import ALWAYS, NO_RESOURCE, Auth
from leaseway.vault.logins import LoginKey

if TYPE_CHECKING:
    from yarl import URL

JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TRUSTED: Final = 10.0
"""Seconds, at most half of its lifetime, in which a new token that is refused is no reason to
request another one."""
RENEWED_EARLY: Final = 60.0
"""Seconds before its end that a token is renewed, unless it lives for a short time."""


@dataclass(frozen=True)
class Wanted:
    """What a token is wanted for.

    Attributes:
        url: The server's address.
        auth: Its configured grant.
        client: The client, resolved.
        tenant: The tenant whose token it is; empty for the service's own.
        user: The tenant's user whose token it is; empty for the tenant's own.
        values: All resolved values of `auth`.
        subject_token: The caller's own token, for grants that exchange it; may be empty.
        assertion: Reads who the workload is, for the grant that needs it; raises
            `UnresolvedValue`.
    """

    server: str
    url: str
    auth: Auth
    client: Client = field(repr=False)
    tenant: str = ""
    user: str = ""
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    subject_token: str = field(default="", repr=False)
    assertion: Callable[[], str] | None = field(default=None, repr=False, compare=False)

    @property
    def needs_bound(self) -> bool:
        """Whether only tokens that are bound to a key are accepted."""
        return self.auth.dpop == ALWAYS

    @property
    def is_of_anybody(self) -> bool:
        """Whether any login will do: it is wanted to list a server that acts for people."""
        auth = self.auth
        return auth.logs_in and not self.user and (not self.tenant or auth.subject == "user")

    @property
    def login(self) -> LoginKey:
        """The key of its sealed token."""
        auth = self.auth
        return LoginKey(
            server=self.server,
            url=self.url,
            tenant=self.tenant,
            client=self.client.id,
            issuer=auth.issuer,
            resource=auth.resource,
            user=self.user,
            configured_at=auth.configured_at,
        )

    @property
    def web_url(self) -> str:
        """The address as `http` or `https`; the one of a websocket's handshake."""
        parts = urlsplit(self.url)
        scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
        return urlunsplit(parts._replace(scheme=scheme))

    @property
    def configured(self) -> tuple[str, ...]:
        """The addresses that the operator wrote."""
        auth = self.auth
        resource = "" if auth.resource == NO_RESOURCE else auth.resource
        named = (self.web_url, *auth.addresses, resource, auth.identity_provider)
        return tuple(name for name in named if name)


@dataclass(frozen=True)
class Attempt:
    """What is known at an attempt.

    Attributes:
        challenge: What the server said last.
        scopes: Scopes that it asked for, in addition to the configured ones.
        refused: The access token that the server no longer accepts, or empty.
        is_new: Whether that token has just been issued. A login's one is kept then, and only the
            authorization server that its server names is looked at.
        is_doubted: Whether that token may still be good: one that cannot be renewed is kept.
        is_optional: Whether the server has not asked for a token: it may need none.
    """

    challenge: Challenge
    scopes: tuple[str, ...] = ()
    refused: str = field(default="", repr=False)
    is_new: bool = False
    is_doubted: bool = False
    is_optional: bool = False


class ObtainToken(Protocol):
    """Obtains a token; blocks."""

    def __call__(self, wanted: Wanted, attempt: Attempt) -> TokenAnswer:
        """Return a token.

        Raises:
            AuthorizationError: There is none.
        """


def renewal_lead(lifetime: float) -> float:
    """Return how many seconds before its end a token is renewed: a fifth of its life at most."""
    return min(RENEWED_EARLY, lifetime * 0.2)


@dataclass
class Nonce:
    """The newest nonce of a server; every response may bring another one (RFC 9449, section 9)."""

    newest: str = ""


@dataclass(frozen=True)
class Token:
    """A token in use.

    Attributes:
        header: The value of `Authorization`.
        trusted_until: Until when a refusal is no reason to request another one, on the monotonic
            clock, like the other times.
        renew_at: When it is renewed; infinity for never.
        expires_at: When it must not be sent any more.
        nonce: Of the server, for the proofs of a token that is bound to a key.
    """

    header: str = field(repr=False)
    trusted_until: float
    renew_at: float
    expires_at: float
    answer: TokenAnswer = field(repr=False)
    nonce: Nonce = field(repr=False)

    @classmethod
    def of(cls, answer: TokenAnswer, now: float, nonce: Nonce) -> Token:
        lifetime = float("inf") if answer.lifetime is None else answer.lifetime
        early = renewal_lead(lifetime)
        issued = now - answer.age
        trusted = issued + min(TRUSTED, lifetime / 2)
        scheme = "Bearer" if answer.key is None else "DPoP"
        return cls(
            header=f"{scheme} {answer.access_token}",
            trusted_until=trusted,
            renew_at=issued + lifetime - early,
            expires_at=issued + lifetime,
            answer=answer,
            nonce=nonce,
        )

    def headers(self, method: str, url: URL) -> Mapping[str, str]:
        """Return the headers of one request; an `outgoing.Credential`."""
        key, token = self.answer.key, self.answer.access_token
        if key is None:
            return {"Authorization": self.header}
        proof = key.proof(method, str(url), token=token, nonce=self.nonce.newest)
        return {"Authorization": self.header, PROOF_HEADER: proof}

    def learn(self, headers: Mapping[str, str]) -> None:
        """Note the nonce that a response gives for the next proof."""
        if self.answer.key is not None:
            self.nonce.newest = nonce_of(headers) or self.nonce.newest


def obtain(wanted: Wanted, attempt: Attempt) -> TokenAnswer:
    """Return a new token of the service itself.

    Raises:
        AuthorizationError: There is none.
    """
    web = Web(wanted.configured)
    found = discover(web, wanted.web_url, wanted.auth, attempt.challenge)
    form = {
        **wanted.auth.parameters,
        "scope": " ".join(scopes_of(wanted.auth, attempt, found)),
        "resource": found.resource,
    }
    match wanted.auth.grant:
        case "workload_identity":
            form |= {"grant_type": JWT_BEARER, "assertion": _assertion(wanted)}
        case "client_credentials" | "token_exchange" | "id_jag":  # the latter to list tools
            form["grant_type"] = "client_credentials"
        case "authorization_code" | "":
            raise AuthorizationError("auth has no token of the service itself", is_lasting=True)
        case _:
            assert_never(wanted.auth.grant)
    keep = hidden_tokens(form.get("assertion", ""))
    answer = request_token(
        web, found.server, wanted.client, form, new_key(found), is_bound=wanted.needs_bound
    )
    del keep
    return answer


def _assertion(wanted: Wanted) -> str:
    """Return who the workload is, as its platform says at this moment.

    Raises:
        AuthorizationError: It cannot be read, or can be none.
    """
    assert wanted.assertion is not None
    try:
        text = wanted.assertion().strip()
    except UnresolvedValue as missing:
        raise AuthorizationError(f"auth.assertion {missing}") from None
    if not is_token(text):
        raise AuthorizationError("auth.assertion is no token", is_lasting=True)
    return text


def new_key(found: Discovered) -> ProofKey | None:
    """Return a new key for a token, if it is to be bound to one."""
    return ProofKey.create(found.proof) if found.proof else None


def scopes_of(auth: Auth, attempt: Attempt, found: Discovered) -> tuple[str, ...]:
    """Return the scopes to request: the configured ones, else those that the server names."""
    if auth.scopes:
        return tuple(dict.fromkeys((*auth.scopes, *attempt.scopes)))
    named = attempt.scopes or tuple(attempt.challenge.scope.split())
    return named or found.scopes
