"""What HTTP responses and failures mean for one request."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import aiohttp
import msgspec
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND
from yarl import URL

from leaseway.data_plane.mcp.protocol.messages.codec import Envelope, decode
from leaseway.data_plane.mcp.protocol.transport import Receipt
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason, Started
from leaseway.wire.secrets.redaction import redact

MAX_ANSWER: Final = bounds.MAX_LINE
"""Bytes of one answer, as over any other transport: images in it are no part of the result."""

_LONGEST_LINE: Final = 300
_LOOKED_AT: Final = 16 << 10
"""Bytes in which values are recognised before a line is cut."""

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_HINTS: Final[Mapping[int, str]] = {
    401: "it wants a credential, or another one; set it in its entry, such as "
    "headers: { Authorization: { env: NAME } }",
    403: "its credential does not allow that; check headers in its entry",
    404: "check its url",
    405: "check its url and transport",
    406: "check its url and transport",
    421: "it does not accept requests for this host name",
    429: "it is asked too often",
}

_WHAT_BROKE: Final[Mapping[type[BaseException], str]] = {
    TimeoutError: "it took too long",
    aiohttp.ClientPayloadError: "the answer ended in the middle",
    aiohttp.ClientResponseError: "what it answers is no HTTP",
    aiohttp.ServerDisconnectedError: "it closed the connection without an answer",
    ConnectionError: "it closed the connection",
}
"""What errors of the HTTP client mean; the first that fits counts."""


async def read_body(server: str, response: aiohttp.ClientResponse) -> bytes:
    """Return a response's body.

    Raises:
        Fault: RESULT_TOO_LARGE.
    """
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER:
            raise body_too_large(server)
    return b"".join(parts)


def decode_body(body: bytes) -> list[Envelope]:
    """Return the messages of a JSON body: one, or the several of a batch.

    Raises:
        msgspec.DecodeError: It is neither.
    """
    if body.lstrip()[:1] == b"[":
        return msgspec.json.decode(body, type=list[Envelope])
    return [decode(body)]


class _RpcError(msgspec.Struct):
    """What tells the error of JSON-RPC from others, such as OAuth's, which is a word."""

    code: int
    message: str


_is_error: Final = msgspec.json.Decoder(_RpcError).decode


def rpc_error(body: bytes) -> Envelope | None:
    """Return the JSON-RPC error that a refusal's body holds, or None where it is no such thing."""
    try:
        message = decode(body)
        if not message.is_response or not memoryview(message.error):
            return None
        _is_error(message.error)
    except ValueError:
        return None  # an HTML page, say
    return message


def first_line(body: bytes) -> str:
    """Return what a refusal says in words, for people: its first line, unless it is a page."""
    text = redact(body[:_LOOKED_AT].decode(errors="replace")).strip()
    line = "".join(c if c.isprintable() else " " for c in text.partition("\n")[0]).strip()
    return "" if line.startswith("<") else line[:_LONGEST_LINE]


def redirect_target(response: aiohttp.ClientResponse, server: str) -> URL | None:
    """Return where a redirect leads, or None for any other response.

    Only redirects that keep the method and stay on the origin are followed (or go from http to
    https on the same host's default ports): credentials must not travel to strangers.

    Raises:
        Fault: SERVER_ERROR for a redirect that is not followed; it names the location.
    """
    location = response.headers.get("location")
    if response.status not in _REDIRECTS or location is None:
        return None
    target = response.url.join(URL(location))
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


def same_origin(source: URL, target: URL) -> bool:
    """Return whether credentials for one address may travel to another."""
    if target.host != source.host or target.scheme not in ("http", "https"):
        return False
    upgraded = source.scheme == "http" and target.scheme == "https"
    if upgraded and source.is_default_port() and target.is_default_port():
        return True
    return target.scheme == source.scheme and target.port == source.port


def status_fault(
    server: str,
    status: int,
    headers: Mapping[str, str],
    url: URL | None = None,
    body: bytes = b"",
) -> Fault:
    """Return the fault that an HTTP status above 399 means.

    Args:
        server: The server's id.
        status: The status.
        headers: Those of the answer.
        url: What was asked, where that is known; no more than its origin is told.
        body: What was answered, or empty.
    """
    hint = _HINTS.get(status, "")
    text = f"The server {server} answered with HTTP status {status}"
    if status in (401, 403) and url is not None:
        text += f" from {url.origin()}"
    said = first_line(body)
    if said and said != f"{status}: {_phrase(status)}":
        text += f" ({said})"
    retry_after = headers.get("retry-after", "")
    retry_delay = min(float(retry_after), 3600.0) if retry_after.isdecimal() else None
    refused = status == 429 or (status == 503 and retry_delay is not None)
    started: Started = "no" if refused else "unknown" if status >= 500 else "yes"
    code = METHOD_NOT_FOUND if status in (404, 405) else INTERNAL_ERROR
    fault = _server_error(server, f"{text}: {hint}." if hint else f"{text}.", started, status, code)
    fault.retry_delay = retry_delay
    return fault


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def unreadable(server: str, what: str) -> Fault:
    """Return the fault for an answer that MCP does not allow."""
    text = f"The server {server} answered a request with {what}: check its url and transport."
    return _server_error(server, text, "yes", 200, INVALID_REQUEST)


def session_gone(server: str, why: str = "") -> Fault:
    """Return the fault that ends a connection whose session the server does not know any more.

    Args:
        server: The server's id.
        why: Why no other session could be opened, where that was tried.
    """
    text = (
        f"The server {server} does not know its MCP session any more (it was restarted, or the "
        "session idled out); state kept in it is lost."
    )
    return Fault(
        Reason.SERVER_LOST,
        f"{text} Opening another failed: {why}." if why else text,
        metadata={"server": server},
    )


def broken(server: str, url: URL, error: Exception, entry: Receipt, answered: bool) -> Fault:
    """Return the fault for a connection that could not be made, or broke during one request."""
    if not entry.written:
        return unreachable(server, url, error)
    text = (
        f"The connection to the server {server} at {url.origin()} broke before its answer was "
        f"complete: {what_broke(error)}."
    )
    return Fault(
        Reason.SERVER_LOST,
        text,
        "yes" if answered else "unknown",
        {"server": server},
    )


def unreachable(server: str, url: URL, error: Exception) -> Fault:
    text = f"The server {server} could not be reached at {url.origin()}: {what_broke(error)}."
    return Fault(Reason.SERVER_LOST, text, "no", {"server": server})


def what_broke(error: BaseException) -> str:
    """Return what a client's error says of a connection, as the end of a sentence."""
    system = getattr(getattr(error, "os_error", error), "strerror", None)
    if system:
        return str(system)
    known = (text for kind, text in _WHAT_BROKE.items() if isinstance(error, kind))
    return next(known, "the connection failed")


def unexpected(server: str, entry: Receipt) -> Fault:
    """Return the fault for a failure that nobody has foreseen."""
    return Fault(
        Reason.INTERNAL,
        f"A request to the server {server} failed inside the worker; its log says more.",
        "unknown" if entry.written else "no",
        {"server": server},
    )


def ended_early(server: str) -> Fault:
    text = f"The server {server} ended its response stream without an answer."
    return Fault(Reason.SERVER_LOST, text, "yes", {"server": server})


def body_too_large(server: str) -> Fault:
    """Return the fault for an answer above the bound."""
    return Fault(
        Reason.RESULT_TOO_LARGE,
        f"The server {server} answered with more than {MAX_ANSWER} bytes, the bound for one "
        "answer; ask the tool for less at a time.",
        "yes",
        {"server": server, "limit": str(MAX_ANSWER)},
    )


def _server_error(server: str, text: str, started: Started, status: int, code: int) -> Fault:
    metadata = {"server": server, "code": str(code), "http_status": str(status)}
    return Fault(Reason.SERVER_ERROR, text, started, metadata)
