"""The bounded requests of one attempt to obtain a token. Blocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec

from leaseway.data_plane.oauth.errors import AuthorizationError
from leaseway.wire import bounds
from leaseway.wire.channels.fetching import FetchError, Response, request

ATTEMPT: Final = 25.0
"""Seconds of one attempt, with all its requests."""
_ONE: Final = 10.0
"""Seconds of one request."""
_MAX_REQUESTS: Final = 16
"""Requests of one attempt, so that metadata cannot lead on and on."""

_MAX_PLACE: Final = 300
_MAX_RETRY_DELAY: Final = 3_600.0

SendRequest = Callable[..., Response]
"""`fetching.request`, or its twin in tests."""


class Web:
    """Sends requests to the addresses that a server or its authorization server names.

    Args:
        configured: The addresses that the operator wrote, the server's first; see
            `fetching.request` for what others may be.
        send: Sends one request.
    """

    def __init__(self, configured: Sequence[str], send: SendRequest = request) -> None:
        self._configured = configured
        self._send = send
        self._deadline = time.monotonic() + ATTEMPT
        self._remaining = _MAX_REQUESTS

    def get(self, url: str) -> Response:
        """Return the response of any status to a GET.

        Raises:
            AuthorizationError: There is none.
        """
        return self._request(url, {}, None)

    def post_form(self, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> Response:
        """Return the response of any status to a form.

        Raises:
            AuthorizationError: There is none.
        """
        sent = {**headers, "Content-Type": "application/x-www-form-urlencoded"}
        return self._request(url, sent, urlencode(form).encode())

    def post_json(
        self, url: str, document: Mapping[str, Any], more: Mapping[str, str] | None = None
    ) -> Response:
        """Return the response of any status to a JSON document.

        Raises:
            AuthorizationError: There is none.
        """
        accept = "application/json, text/event-stream"
        headers = {"Content-Type": "application/json", "Accept": accept, **(more or {})}
        return self._request(url, headers, msgspec.json.encode(document))

    def _request(self, url: str, headers: Mapping[str, str], content: bytes | None) -> Response:
        self._remaining -= 1
        left = self._deadline - time.monotonic()
        if left <= 0 or self._remaining < 0:
            raise AuthorizationError("the authorization took too many steps or too long", url=url)
        try:
            return self._send(
                url,
                limit=bounds.MAX_OAUTH_DOCUMENT,
                timeout=min(_ONE, left),
                configured=self._configured,
                headers=headers,
                content=content,
            )
        except (FetchError, ValueError) as error:
            raise AuthorizationError(
                f"{place_of(url)} cannot be used: {error}", url=url, is_unreachable=True
            ) from None


def retry_delay_of(response: Response) -> float | None:
    """Return for how many seconds a response asks to wait, at most an hour; None if it does not.

    `Retry-After` is a number of seconds or a date, by the clock of whoever sent it.
    """
    text = response.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdecimal():
        return min(float(text), _MAX_RETRY_DELAY)
    end = _time_of(text)
    if end is None:
        return None
    now = _time_of(response.headers.get("date", "")) or time.time()
    return min(max(end - now, 0.0), _MAX_RETRY_DELAY)


def _time_of(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def is_web_address(url: str) -> bool:
    """Return whether a text is an `http` or `https` address that a message may show."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises if it is none
    except ValueError:
        return False
    is_plain = all("!" <= character <= "~" for character in url)
    return is_plain and parts.scheme in ("http", "https") and bool(parts.hostname)


def place_of(url: str) -> str:
    """Return the origin and path of an address, for messages; its query may be a secret."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"[:_MAX_PLACE]
    except ValueError:
        return "an address that is no URL"
