"""Tokens for whoever calls: the caller's own token becomes a token for the server. Blocks.

By token exchange (RFC 8693) at the server's authorization server, or, with `id_jag`, at an
enterprise's identity provider: what it issues is an assertion about the caller, for which the
server's authorization server grants the token (RFC 7523).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from leaseway.data_plane.oauth.discoveries import Discoveries
from leaseway.data_plane.oauth.errors import AuthorizationError
from leaseway.data_plane.oauth.metadata import AuthorizationServer
from leaseway.data_plane.oauth.obtaining import JWT_BEARER, Attempt, Wanted, new_key, scopes_of
from leaseway.data_plane.oauth.requests import (
    Client,
    TokenAnswer,
    hidden_tokens,
    request_assertion,
    request_token,
)
from leaseway.data_plane.oauth.web import Web
from leaseway.spec.auth import (
    ACTOR_TOKEN,
    LISTING_TOKEN,
    PROVIDER_ID,
    PROVIDER_KEY,
    PROVIDER_SECRET,
)

_EXCHANGE: Final = "urn:ietf:params:oauth:grant-type:token-exchange"
_TYPE: Final = "urn:ietf:params:oauth:token-type:"
_OF_SUBJECT: Final = frozenset(
    {"invalid_grant", "invalid_token", "invalid_request", "access_denied"}
)
"""Codes that say that the caller's token is wrong, expired or not enough. For RFC 8693
(section 2.2.2) that is `invalid_request`, which can also mean that a parameter is missing."""


def subject_token_of(wanted: Wanted) -> str:
    """Return the token to exchange: the caller's, or, to list tools, the configured one."""
    return wanted.subject_token or wanted.values.get(LISTING_TOKEN, "")


def exchange(wanted: Wanted, attempt: Attempt, discoveries: Discoveries) -> TokenAnswer:
    """Return a token for the server that stands for whoever brought the subject token.

    Raises:
        AuthorizationError: There is none.
    """
    subject_token = subject_token_of(wanted)
    keep = hidden_tokens(subject_token, wanted.values.get(ACTOR_TOKEN, ""))
    web = Web(wanted.configured)
    found = discoveries.server(web, wanted, attempt)
    form = {
        "scope": " ".join(scopes_of(wanted.auth, attempt, found)),
        "resource": found.resource,
    }
    try:
        if wanted.auth.grant == "id_jag":
            assertion = _assertion(web, wanted, found.server, form, discoveries)
            form |= {"grant_type": JWT_BEARER, "assertion": assertion}
        else:
            form |= _exchanged(wanted, "access_token")
            if wanted.auth.audience:
                form["audience"] = wanted.auth.audience
        form = {**wanted.auth.parameters, **form}
        key, is_bound = new_key(found), wanted.needs_bound
        return request_token(web, found.server, wanted.client, form, key, is_bound=is_bound)
    except AuthorizationError as error:
        error.is_of_caller = bool(wanted.subject_token) and error.code in _OF_SUBJECT
        raise
    finally:
        del keep


def _exchanged(wanted: Wanted, requested: str) -> dict[str, str]:
    """Return the form of a token exchange, without what the new token is for."""
    auth, actor = wanted.auth, wanted.values.get(ACTOR_TOKEN, "")
    usual = "id_token" if auth.grant == "id_jag" else "access_token"
    return {
        "grant_type": _EXCHANGE,
        "requested_token_type": f"{_TYPE}{requested}",
        "subject_token": subject_token_of(wanted),
        "subject_token_type": f"{_TYPE}{auth.subject_token_type or usual}",
        "actor_token": actor,
        "actor_token_type": f"{_TYPE}jwt" if actor else "",
    }


def _assertion(
    web: Web,
    wanted: Wanted,
    server: AuthorizationServer,
    target: Mapping[str, str],
    discoveries: Discoveries,
) -> str:
    """Return the identity provider's assertion about the caller, for an authorization server."""
    if not server.issuer:
        raise AuthorizationError(
            "its authorization server has no metadata, so that no assertion can name it; write"
            " issuer in auth",
            is_lasting=True,
        )
    provider = discoveries.issuer(web, wanted.auth.identity_provider, wanted)
    client = Client(
        wanted.values.get(PROVIDER_ID, ""),
        wanted.values.get(PROVIDER_SECRET, ""),
        wanted.values.get(PROVIDER_KEY, ""),
    )
    form = {**target, **_exchanged(wanted, "id-jag"), "audience": server.issuer}
    return request_assertion(web, provider, client, form, f"{_TYPE}id-jag")
