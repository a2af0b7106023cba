"""Opaque tokens: an authorization server says what they mean (RFC 7662).

An answer is used for some seconds, so that a revoked token is refused soon. Equal tokens are asked
about once at a time, and all together by few requests, because any client can send any text. When
the server does not answer, tokens are refused as not checkable, never as invalid.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from leaseway.identity.principal import Principal, not_checkable, unauthenticated
from leaseway.identity.tokens import (
    LEEWAY,
    MAX_TOKEN,
    Issuer,
    issuer_key,
    principal_from_claims,
)
from leaseway.wire import bounds
from leaseway.wire.channels.endpoint import is_protected
from leaseway.wire.channels.fetching import FetchError, fetch, in_thread, request
from leaseway.wire.errors import Fault
from leaseway.wire.secrets.redaction import hide

_logger = logging.getLogger(__name__)

AUTH_METHODS: Final = ("client_secret_basic", "client_secret_post")
FRESH: Final = 30.0
"""Seconds for which an answer about an active token is used."""
_FRESH_REFUSAL: Final = 10.0
MAX_CACHED: Final = 4_096
MAX_ASKED: Final = 256
"""Tokens that wait for answers; further ones are refused for the moment."""
MAX_REQUESTS: Final = 16
_TIMEOUT: Final = 5.0
_OUTAGE: Final = 1.0
"""Seconds in which a server that has just failed is not asked."""
_MAX_ANSWER: Final = 64 * bounds.KIB
_MAX_METADATA: Final = 256 * bounds.KIB
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""What an opaque token consists of (RFC 6750, section 2.1)."""


@dataclass(frozen=True)
class Introspection:
    """Who is asked about opaque tokens, and the meaning of the answers.

    Attributes:
        issuer: The issuer and its claims; it has no keys. Without an audience, tokens for any are
            accepted.
        endpoint: The address to ask; empty for the one that the issuer's metadata name.
        auth_method: How the client authenticates, one of `AUTH_METHODS`.
        secret_file: Where the secret is from, or None.
    """

    issuer: Issuer
    client_id: str
    client_secret: str = field(repr=False)
    endpoint: str = ""
    auth_method: str = AUTH_METHODS[0]
    secret_file: Path | None = None


class Introspector:
    """Asks one authorization server about tokens.

    Args:
        now: Returns seconds since 1970.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self, settings: Introspection, now: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        self.settings = settings
        self._now = now
        self._clock = clock
        self._hidden = hide([settings.client_secret])
        self._endpoint = settings.endpoint
        self._answers: dict[bytes, tuple[float, Principal | Fault]] = {}
        self._asking: dict[bytes, asyncio.Task[Principal | Fault]] = {}
        self._free = asyncio.Semaphore(MAX_REQUESTS)
        self._failed_at = float("-inf")
        self._problem = ""

    async def principal(self, token: str) -> Principal:
        """Return the principal of a token.

        Raises:
            Fault: UNAUTHENTICATED: the token is not active, or not for this audience.
                AUTHORIZATION_FAILED: the server could not be asked. PERMISSION_DENIED: as
                `principal_from_claims`.
        """
        if len(token) > MAX_TOKEN or not _TOKEN.fullmatch(token):
            raise unauthenticated("This is no token: it is too long or has other characters.")
        digest = hashlib.sha256(token.encode()).digest()
        known = self._answers.get(digest)
        if known is not None and self._clock() < known[0]:
            return _or_raise(known[1])
        asking = self._asking.get(digest)
        if asking is None:
            if len(self._asking) >= MAX_ASKED:
                raise self._cannot_check()
            asking = asyncio.create_task(self._ask(digest, token), name="ask about a token")
            self._asking[digest] = asking
            asking.add_done_callback(partial(self._asked, digest))
        return _or_raise(await asyncio.shield(asking))  # others may wait for it, too

    def _asked(self, digest: bytes, _asking: object) -> None:
        self._asking.pop(digest, None)

    async def _ask(self, digest: bytes, token: str) -> Principal | Fault:
        async with self._free:
            if self._clock() - self._failed_at < _OUTAGE:
                return self._cannot_check()
            try:
                claims = await in_thread(self._request, token)
            except (OSError, ValueError, RecursionError) as error:
                return self._failed(str(error) or type(error).__name__)
        if self._problem:
            self._problem = ""
            _logger.info("Tokens of %s can be checked again.", self.settings.issuer.issuer)
        answer: Principal | Fault
        try:
            answer = self._principal(claims, token)
            fresh = FRESH
            if answer.expires_at is not None:
                fresh = min(FRESH, answer.expires_at - self._now())
        except Fault as fault:
            answer, fresh = fault, _FRESH_REFUSAL
        if len(self._answers) >= MAX_CACHED:
            self._answers.clear()
        self._answers[digest] = (self._clock() + fresh, answer)
        return answer

    def _failed(self, reason: str) -> Fault:
        if self._problem != reason:
            _logger.warning(
                "Tokens of %s cannot be checked, so requests with them are refused: %s",
                self.settings.issuer.issuer,
                reason,
            )
        self._failed_at, self._problem = self._clock(), reason
        return self._cannot_check()

    def _cannot_check(self) -> Fault:
        # The log says why.
        issuer = self.settings.issuer.issuer
        return not_checkable(f"{issuer} does not say whether it is valid", _OUTAGE)

    def _request(self, token: str) -> Mapping[str, Any]:
        """Ask the server and return its answer. Blocks.

        Raises:
            OSError, ValueError, RecursionError: There is none.
        """
        settings = self.settings
        if not self._endpoint:
            self._endpoint = _endpoint_of(settings.issuer.issuer)
        form = {"token": token, "token_type_hint": "access_token"}
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if settings.auth_method == "client_secret_post":
            form |= {"client_id": settings.client_id, "client_secret": settings.client_secret}
        else:
            pair = f"{quote(settings.client_id, safe='')}:{quote(settings.client_secret, safe='')}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        place = _place(self._endpoint)
        try:
            response = request(
                self._endpoint,
                limit=_MAX_ANSWER,
                timeout=_TIMEOUT,
                configured=[settings.endpoint or settings.issuer.issuer],
                headers=headers,
                content=urlencode(form).encode(),
            )
        except FetchError as error:
            raise FetchError(f"{place}: {error}") from None
        if response.status != HTTPStatus.OK:
            self._endpoint = settings.endpoint  # it may have moved
            is_refused = response.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
            whose = f" to the client '{settings.client_id}'" if is_refused else ""
            raise FetchError(f"{place} responds with HTTP status {response.status}{whose}")
        claims = _json(response.body)
        if not isinstance(claims, dict) or not isinstance(claims.get("active"), bool):
            raise ValueError(f"{place} responds with no JSON object that has 'active'")
        return claims

    def _principal(self, claims: Mapping[str, Any], token: str) -> Principal:
        """Return the principal that an answer describes.

        Raises:
            Fault: UNAUTHENTICATED; PERMISSION_DENIED: as `principal_from_claims`.
        """
        issuer = self.settings.issuer
        named = claims.get("iss")
        expires, begins = _time(claims, "exp", math.inf), _time(claims, "nbf", -math.inf)
        is_current = begins - LEEWAY <= self._now() < expires + LEEWAY
        if not claims["active"] or not is_current:
            raise unauthenticated(
                f"{issuer.issuer} says that this token is not active: it has expired, was revoked "
                "or is none of its tokens. Get a new one."
            )
        if named is not None and (
            not isinstance(named, str) or issuer_key(named) != issuer_key(issuer.issuer)
        ):
            raise unauthenticated(f"This token is of another issuer than {issuer.issuer}.")
        if issuer.audience and not issuer.accepts_audience(claims.get("aud")):
            wanted = "' or '".join(issuer.audience)
            raise unauthenticated(
                f"This token of {issuer.issuer} is not for the audience '{wanted}'. Get a new one "
                "for it."
            )
        principal = principal_from_claims(issuer, claims)
        return replace(principal, token=token, recheck_at=self._now() + FRESH)


def _or_raise(answer: Principal | Fault) -> Principal:
    if isinstance(answer, Fault):
        # A fault gets its traceback where it is raised, so each request has one of its own.
        raise replace(answer)
    return answer


def _time(claims: Mapping[str, Any], name: str, default: float) -> float:
    """Return a time of an answer in seconds since 1970.

    Raises:
        Fault: UNAUTHENTICATED: it is no number.
    """
    value = claims.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
        raise unauthenticated(f"The answer about this token is invalid: '{name}' is no time.")
    return float(value)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None  # the error would show what was sent


def _place(address: str) -> str:
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def _endpoint_of(issuer: str) -> str:
    """Return the introspection endpoint that an issuer's metadata name. Blocks.

    Raises:
        OSError, ValueError: It has none, or cannot be asked.
    """
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    places = dict.fromkeys(
        (
            f"{origin}/.well-known/oauth-authorization-server{path}",
            f"{origin}{path}/.well-known/oauth-authorization-server",
            f"{origin}{path}/.well-known/openid-configuration",
            f"{origin}/.well-known/openid-configuration{path}",
        )
    )
    failure = ""
    for place in places:
        try:
            content = fetch(place, limit=_MAX_METADATA, timeout=_TIMEOUT, is_protected=True)
        except FetchError as error:
            failure = failure or f"{place}: {error}"
            continue
        document = _json(content)
        named = document.get("issuer") if isinstance(document, dict) else None
        if not isinstance(named, str) or issuer_key(named) != issuer_key(issuer):
            failure = f"{place} has no metadata of {issuer}"
            continue
        endpoint = document.get("introspection_endpoint")
        if isinstance(endpoint, str) and is_protected(endpoint):
            return endpoint
        failure = f"{place} names no https introspection_endpoint"  # OpenID's need not
    raise FetchError(f"{failure}; write endpoint in [introspection] if it has no metadata")
