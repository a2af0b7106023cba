"""Converts HTTP responses and connection errors into messages and faults."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Final

import aiohttp
import msgspec
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND
from yarl import URL

from leaseway.data_plane.core.origin import meant, same_origin
from leaseway.data_plane.mcp.protocol.messages.codec import JsonRpcMessage
from leaseway.data_plane.mcp.protocol.messages.reading import read
from leaseway.data_plane.mcp.protocol.transport import Receipt
from leaseway.data_plane.oauth.challenges import challenge_of
from leaseway.data_plane.oauth.errors import INSUFFICIENT_SCOPE, described
from leaseway.wire import bounds
from leaseway.wire.channels.encryption import untrusted
from leaseway.wire.errors import Fault, Reason, Started
from leaseway.wire.secrets.redaction import redact
from leaseway.wire.timing.retry_after import retry_delay

MAX_BODY: Final = bounds.MAX_LINE
"""Maximum bytes of a response body, as of a message over other transports."""

_ERROR_TIME: Final = 5.0
"""Seconds in which the body of an error must come."""

_MAX_OAUTH_ERROR: Final = 4 << 10
_MAX_LINE: Final = 300
_REDACTED_BYTES: Final = 16 << 10
"""Bytes that are searched for secrets before a line is cut."""

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_WRONG_HOST: Final = (
    "it does not accept requests for this host name or from this origin; check its url, and which "
    "hosts and origins it allows"
)
_names_host: Final = re.compile(rb"\b(hosts?|origins?|rebinding)\b", re.IGNORECASE).search
"""What servers say that refuse a host or an origin, which protects them from web pages."""
_CHALLENGES: Final = ("cf-mitigated", "x-amzn-waf-action")
"""Headers by which firewalls (Cloudflare, AWS) say that an answer is theirs, for a browser."""
_CHALLENGED: Final = (
    "a firewall before it wants to see a browser first; ask whoever runs it to admit programs, "
    "such as by the address of the worker"
)
_WEB_PAGE: Final = (
    "that is a web page, as of a firewall or proxy before a server; check url and headers in its "
    "entry, and ask whoever runs it whether requests from the worker are admitted"
)
_UNCHECKED: Final = (
    "it failed to check its token, which may be one that it does not know any more; if that lasts, "
    "give it another one, such as by a new login"
)
_HINTS: Final[Mapping[int, str]] = {
    401: "it requires a credential, or another one; set it in its entry, such as "
    "headers: { Authorization: { env: NAME } }",
    403: "its credential does not allow that; check headers in its entry",
    404: "check its url",
    405: "check its url and transport",
    406: "check its url and transport",
    421: _WRONG_HOST,
    407: "its proxy requires a credential, or another one; set username and password of its proxy",
    429: "it receives too many requests",
}

_DESCRIPTIONS: Final[Mapping[type[BaseException], str]] = {
    TimeoutError: "it took too long",
    aiohttp.ClientPayloadError: "the response was incomplete",
    aiohttp.ClientResponseError: "its response is not HTTP",
    aiohttp.ServerDisconnectedError: "it closed the connection without a response",
    ConnectionError: "it closed the connection",
}
"""Texts for errors of the HTTP client; the first match counts."""

_PARSER_SAYS: Final[Mapping[str, str]] = {
    "Got more than": f"one of its headers has more than {bounds.MAX_RESPONSE_HEADER} bytes",
    "content-encoding": "its body is not compressed as its Content-Encoding says, or in a way that "
    "the request did not accept (gzip and deflate are accepted)",
}
"""Texts for errors that the client's parser of HTTP tells by words alone."""

CONNECTION_ERRORS: Final = (aiohttp.ClientError, OSError, TimeoutError)
"""The exceptions of a failed request."""


async def read_body(server: str, response: aiohttp.ClientResponse) -> bytes:
    """Return a response's body.

    Raises:
        Fault: RESULT_TOO_LARGE.
    """
    parts: list[bytes] = []
    await _read_into(parts, server, response)
    return b"".join(parts)


async def read_error(server: str, response: aiohttp.ClientResponse) -> bytes:
    """Return the body of an error, or what has come of it: the status may wait for no stream's end.

    Raises:
        Fault: RESULT_TOO_LARGE.
    """
    if response.content.at_eof():  # it was read before, or there is none
        return await response.read()
    parts: list[bytes] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(_ERROR_TIME):
            await _read_into(parts, server, response)
    return b"".join(parts)


async def _read_into(parts: list[bytes], server: str, response: aiohttp.ClientResponse) -> None:
    size = 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > MAX_BODY:
            raise body_too_large(server)


class _ErrorObject(msgspec.Struct):
    """Distinguishes a JSON-RPC error from others, such as OAuth's, which is a string."""

    code: int
    message: str


_decode_error_object: Final = msgspec.json.Decoder(_ErrorObject).decode


def rpc_error(body: bytes) -> JsonRpcMessage | None:
    """Return the JSON-RPC error in an error response's body, or None."""
    try:
        message = read(body)
        if not message.is_response or not message.has_error:
            return None
        _decode_error_object(message.error)
    except (ValueError, RecursionError):
        return None  # an HTML page, say
    return message


class _OAuthError(msgspec.Struct):
    error: str


_decode_oauth_error: Final = msgspec.json.Decoder(_OAuthError).decode


async def is_token_unchecked(response: aiohttp.ClientResponse) -> bool:
    """Return whether a server failed while it checked the token of a request; `read_error` follows.

    The official TypeScript package says so whenever a verifier rejects a token with an error of its
    own, as most do that know a token no more.
    """
    length = response.content_length or _MAX_OAUTH_ERROR + 1
    if response.status != HTTPStatus.INTERNAL_SERVER_ERROR or length > _MAX_OAUTH_ERROR:
        return False
    try:
        async with asyncio.timeout(_ERROR_TIME):
            return _says_unchecked(await response.read())
    except TimeoutError:
        return False


def _says_unchecked(body: bytes) -> bool:
    try:
        return _decode_oauth_error(body).error == "server_error"
    except (ValueError, RecursionError):
        return False


def first_line(body: bytes) -> str:
    """Return the first line of an error response's body, unless it is HTML."""
    text = redact(body[:_REDACTED_BYTES].decode(errors="replace")).strip()
    line = "".join(c if c.isprintable() else " " for c in text.partition("\n")[0]).strip()
    return "" if line.startswith("<") else line[:_MAX_LINE]


def _error_text(body: bytes) -> str:
    """Return what an error response says: the message of its JSON-RPC error, or its first line."""
    message = rpc_error(body)
    if message is None:
        return first_line(body)
    return first_line(_decode_error_object(message.error).message.encode())


def redirect_target(response: aiohttp.ClientResponse, server: str) -> URL | None:
    """Return the target of a redirect, or None for any other response.

    Only redirects that keep the method and the origin are followed (or change from http to https on
    the same host's default ports): credentials must not be sent to another server. One from https
    to http on the same host is followed over https.

    Raises:
        Fault: SERVER_ERROR for a redirect that is not followed; it names the target, if it has one.
    """
    location = response.headers.get("location")
    if response.status not in _REDIRECTS or location is None:
        return None
    try:
        target = meant(response.url, response.url.join(URL(location)))
    except ValueError:
        target = URL()
    if not target.host:
        raise unreadable(server, "a redirect to no address")
    keeps_method = response.method == "GET" or response.status in (307, 308)
    if keeps_method and same_origin(response.url, target):
        return target
    raise not_followed(server, target, response.status)


def not_followed(server: str, target: URL, status: int) -> Fault:
    return _server_error(
        server,
        f"The server {server} redirects to {target.origin()}{target.path}, which is not followed. "
        "Use that as its url if it is the intended server.",
        "no",
        status,
        INVALID_REQUEST,
    )


def status_fault(
    server: str,
    status: int,
    headers: Mapping[str, str],
    url: URL | None = None,
    body: bytes = b"",
) -> Fault:
    """Return the fault for an HTTP status above 399.

    Of the requested URL, only the origin is shown. The body may be empty.
    """
    hint = _hint(status, headers, body)
    text = f"The server {server} answered with HTTP status {status}"
    if status in (401, 403) and url is not None:
        text += f" from {url.origin()}"
    line = _error_text(body)
    if line and line != f"{status}: {_phrase(status)}":
        text += f" ({line})"
    delay = retry_delay(headers)
    refused = status == HTTPStatus.TOO_MANY_REQUESTS or (status == 503 and delay is not None)
    started: Started = "no" if refused else "unknown" if status >= 500 else "yes"
    code = METHOD_NOT_FOUND if status in (404, 405) else INTERNAL_ERROR
    fault = _server_error(server, f"{text}: {hint}." if hint else f"{text}.", started, status, code)
    fault.retry_delay = delay
    return fault


def _hint(status: int, headers: Mapping[str, str], body: bytes) -> str:
    """Return what may help against a status, which headers and the body tell more about."""
    if any(name in headers for name in _CHALLENGES):
        return _CHALLENGED
    if status == HTTPStatus.FORBIDDEN and not _is_about_credential(headers):
        if body.lstrip().startswith(b"<"):
            return _WEB_PAGE
        if _names_host(body[:_REDACTED_BYTES]):
            return _WRONG_HOST
    if status == HTTPStatus.INTERNAL_SERVER_ERROR and _says_unchecked(body):
        return _UNCHECKED
    challenge = challenge_of(status, headers)
    if challenge.error == INSUFFICIENT_SCOPE:
        scope = described(challenge.scope)
        lacking = f"the scopes {scope}" if scope else "a scope"
        return f"its token lacks {lacking}; check auth in its entry"
    if challenge.resource_metadata:
        return (
            "it asks for an OAuth token, or for another one; check auth in its entry, such as "
            "auth: { authorization_code: { for: tenant } }"
        )
    return _HINTS.get(status, "")


def _is_about_credential(headers: Mapping[str, str]) -> bool:
    return any(name.lower() == "www-authenticate" for name in headers)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def unreadable(server: str, problem: str) -> Fault:
    """Return the fault for a response that MCP does not allow."""
    text = f"The server {server} answered a request with {problem}: check its url and transport."
    return _server_error(server, text, "yes", 200, INVALID_REQUEST)


def of_unexpected_type(server: str, response: aiohttp.ClientResponse) -> Fault:
    """Return the fault for a response whose type, or status, no answer has."""
    kind = response.headers.get("content-type") and f"content type {response.content_type}"
    return unreadable(server, f"HTTP status {response.status} and {kind or 'no content type'}")


def not_found(server: str, body: bytes) -> Fault:
    """Return the fault for a 404 to one request in a session that serves others."""
    line = _error_text(body)
    shown = f" ({line})" if line else ""
    return _server_error(
        server,
        f"The server {server} answered with HTTP status 404{shown}, but serves other requests in "
        "its MCP session: this one found nothing, or a load balancer sends the requests of one "
        "session to different servers.",
        "unknown",
        HTTPStatus.NOT_FOUND,
        METHOD_NOT_FOUND,
    )


def session_expired(server: str, cause: str = "") -> Fault:
    """Return the fault for a connection whose session the server no longer knows.

    `cause` is why no new session could be opened, if that was tried.
    """
    text = (
        f"The server {server} no longer knows its MCP session (it was restarted, the session timed "
        "out, or a load balancer sends its requests to different servers); the session's state is "
        "lost."
    )
    return Fault(
        Reason.SERVER_LOST,
        f"{text} Opening a new one failed: {cause}." if cause else text,
        metadata={"server": server},
    )


def broken(server: str, url: URL, error: Exception, entry: Receipt, answered: bool) -> Fault:
    """Return the fault for a connection that could not be opened, or broke during a request."""
    if not entry.written:
        return unreachable(server, url, error)
    text = (
        f"The connection to the server {server} at {url.origin()} broke before its response was "
        f"complete: {describe_error(error)}."
    )
    return Fault(
        Reason.SERVER_LOST,
        text,
        "yes" if answered else "unknown",
        {"server": server},
    )


def unreachable(server: str, url: URL, error: Exception) -> Fault:
    text = f"The server {server} could not be reached at {url.origin()}: {describe_error(error)}."
    return Fault(Reason.SERVER_LOST, text, "no", {"server": server})


def describe_error(error: BaseException) -> str:
    """Return the text of a connection error, as the end of a sentence."""
    cause = getattr(error, "os_error", error)
    refusal = untrusted(error)
    if refusal is not None:
        return refusal
    if isinstance(error, aiohttp.ClientHttpProxyError):
        hint = (
            f": {_HINTS[407]}" if error.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED else ""
        )
        return f"its proxy answered with HTTP status {error.status}{hint}"
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return f"its proxy could not be reached ({_os_text(error.os_error)})"
    if isinstance(cause, OSError) and cause.strerror:
        return _os_text(cause)
    for words, text in _PARSER_SAYS.items():
        if words in str(error):
            return text
    descriptions = (text for kind, text in _DESCRIPTIONS.items() if isinstance(error, kind))
    return next(descriptions, "the connection failed")


def _os_text(error: OSError) -> str:
    text = error.strerror or "the connection failed"
    if error.errno is not None and text.startswith("Connect call failed"):
        return os.strerror(error.errno)  # asyncio's own text shows the address as a tuple
    return text


def unexpected(server: str, entry: Receipt) -> Fault:
    """Return the fault for an unexpected exception."""
    return Fault(
        Reason.INTERNAL,
        f"A request to the server {server} failed inside the worker; see its log.",
        "unknown" if entry.written else "no",
        {"server": server},
    )


def ended_early(server: str) -> Fault:
    text = f"The server {server} ended its response without answering the request."
    return Fault(Reason.SERVER_LOST, text, "yes", {"server": server})


async def not_continued(server: str, refusal: aiohttp.ClientResponse) -> Fault:
    """Return the fault for a response whose rest the server refuses to send."""
    line = _error_text(await read_error(server, refusal))
    text = (
        f"The server {server} ended its response without answering the request, and answered with "
        f"HTTP status {refusal.status}{f' ({line})' if line else ''} when asked to continue it."
    )
    return Fault(Reason.SERVER_LOST, text, "yes", {"server": server})


def body_too_large(server: str) -> Fault:
    """Return the fault for a body above the limit."""
    return Fault(
        Reason.RESULT_TOO_LARGE,
        f"The server {server} answered with more than {MAX_BODY} bytes, the limit for a response; "
        "ask the tool for less at a time.",
        "yes",
        {"server": server, "limit": str(MAX_BODY)},
    )


def _server_error(server: str, text: str, started: Started, status: int, code: int) -> Fault:
    metadata = {"server": server, "code": str(code), "http_status": str(status)}
    return Fault(Reason.SERVER_ERROR, text, started, metadata)
