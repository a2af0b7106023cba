"""The bounded requests of one attempt to obtain a token, and how answers are read. Blocks.

Members of an answer that have another type than the one that a standard gives them are common:
numbers as texts, lists as texts, null. What has one meaning is read as that; anything else counts
as not given.
"""

from __future__ import annotations

import math
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

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
_MAX_ITEMS: Final = 200
_MAX_TEXT: Final = 4_096
_MAX_FIELDS: Final = 100
_FORM: Final = "application/x-www-form-urlencoded"

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
        sent = {**headers, "Content-Type": _FORM}
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
                f"{place_of(url)} cannot be used: {error}", url=url, is_outage=True
            ) from None


def is_web_address(url: str) -> bool:
    """Return whether a text is an `http` or `https` address that a message may show."""
    from yarl import URL

    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises if it is none
        URL(url)  # the other parser that reads it is stricter
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


# How answers are read.


def document_of(response: Response) -> dict[str, Any] | None:
    """Return the members of a response, or None if it is no document.

    A form is one, too: some authorization servers answer with it whatever they are asked for.
    """
    body = response.body.removeprefix(BOM_UTF8)
    try:
        if response.headers.get("content-type", "").partition(";")[0].strip().lower() == _FORM:
            return dict(parse_qsl(body.decode(), max_num_fields=_MAX_FIELDS))
        found = msgspec.json.decode(body)
    except (ValueError, RecursionError):  # its text could quote a token
        return None
    return found if isinstance(found, dict) else None


def text_in(document: Mapping[str, Any], name: str, longest: int = _MAX_TEXT) -> str:
    """Return a member that is a text of at most some length, else empty."""
    value = document.get(name)
    return value if isinstance(value, str) and len(value) <= longest else ""


def identifier_in(document: Mapping[str, Any], name: str) -> str:
    """Return a member that is a text, or a whole number as one; else empty."""
    value = document.get(name)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64:
        return str(value)
    return text_in(document, name)


def texts_in(document: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return a member that is a list of texts, or a text with spaces between them; else nothing."""
    value = document.get(name)
    if isinstance(value, str):
        value = value[: _MAX_ITEMS * _MAX_TEXT].split()
    if not isinstance(value, list):
        return ()
    return tuple(
        item for item in value[:_MAX_ITEMS] if isinstance(item, str) and 0 < len(item) <= _MAX_TEXT
    )


def seconds_in(document: Mapping[str, Any], name: str) -> float | None:
    """Return a member that is a number of seconds, also as a text; None if it is none.

    It may be zero or negative.
    """
    value = document.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(seconds) else seconds
